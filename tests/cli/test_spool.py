"""everwork spool: what offline mode has kept, delivered by hand, or deleted."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from everwork import State
from everwork.cli.commands.spool import drop
from everwork.client import Client
from everwork.codec.urls import store_name
from everwork.core.job import NewJob
from everwork.core.outcome import Complete
from everwork.engines.open import open_engine
from everwork.exceptions import EngineBusy
from everwork.spool import contents
from everwork.spool.courier import Turn
from everwork.spool.file import SpoolFile
from everwork.spool.settings import Offline, Spool
from tests.client.server import KEY, ServerProcess, a_free_port, tls_files
from tests.conformance.observe import every_job

if TYPE_CHECKING:
    from collections.abc import Iterator

    from everwork.engines.contract import Engine
    from tests.cli.conftest import Cli

BAD = NewJob("work", priority=10_000)


@pytest.fixture
def spool(cli: Cli) -> Iterator[SpoolFile]:
    """A spool for the command's default store."""
    offline = Offline.of(Spool(str(cli.folder / "spool.db"), max_age=86_400), f"sqlite:///{cli.file}")
    assert offline is not None
    file = SpoolFile(*offline)
    yield file
    file.close()


def numbered(last: int) -> list[NewJob]:
    return [NewJob("work", f'{{"number":{number}}}') for number in range(1, last + 1)]


async def created(engine: Engine) -> list[str]:
    return [job.variables for job in reversed(await every_job(engine))]


# list -------------------------------------------------------------------------------------------------


def test_list_shows_what_waits_and_what_is_set_aside_and_why(cli: Cli, spool: SpoolFile) -> None:
    spool.keep_jobs(numbered(2))
    spool.keep_outcomes([Complete(5, 1)])
    spool.set_aside([1], "the tenant\nis unknown")
    answer = cli("spool", "list", "spool.db")
    assert (answer.code, answer.err) == (0, "")
    for words in (
        f"spool     {spool.spool.path}",
        f"engine    sqlite:///{cli.file}",
        "of 268,435,456 bytes",
        "set aside after 1d",
        "waiting   1 job, 1 outcome",
        "set aside 1 entry",
        "5/1",
        f"{spool.id}-1",
        "the tenant is unknown",
    ):
        assert words in answer.out


def test_list_of_an_empty_spool_does_not_say_that_something_was_set_aside(cli: Cli, spool: SpoolFile) -> None:
    assert "oldest    none; set aside after 1d\n" in cli("spool", "list", spool.spool.path).out


def test_list_answers_in_json(cli: Cli, spool: SpoolFile) -> None:
    spool.keep_jobs(numbered(1))
    spool.keep_outcomes([Complete(5, 1)])
    report: dict[str, Any] = cli("spool", "list", "spool.db", "--json").json
    assert (report["jobs"], report["outcomes"], report["aside"], report["max_age"]) == (1, 1, 0, 86_400)
    outcome, job = report["entries"]
    assert (outcome["id"], outcome["kind"], outcome["type"]) == ("5/1", "outcome", "complete")
    assert (job["id"], job["kind"], job["type"], job["state"]) == (f"{spool.id}-1", "job", "work", "waiting")
    assert (job["reason"], job["age_ms"] >= 0) == (None, True)


def test_list_has_a_limit_and_says_what_it_leaves_out(cli: Cli, spool: SpoolFile) -> None:
    spool.keep_jobs(numbered(5))
    answer = cli("spool", "list", "spool.db", "--limit", "2")
    assert f"{spool.id}-2" in answer.out
    assert f"{spool.id}-3" not in answer.out
    assert answer.err == "everwork: 3 more entries; raise --limit to see them\n"
    assert "limit: must be a whole number from 1 to 10000" in cli("spool", "list", "spool.db", "--limit", "x").complaint


def test_a_file_that_is_no_spool_is_one_clear_line(cli: Cli) -> None:
    missing = cli("spool", "list", "gone.db")
    assert (missing.code, missing.complaint) == (2, f"spool: no such file: {cli.folder}/gone.db")
    (cli.folder / "notes.txt").write_text("notes " * 1000)
    for command in (("list", "notes.txt"), ("drop", "notes.txt", "--all", "--yes"), ("list", ".")):
        answer = cli("spool", *command)
        assert (answer.code, answer.complaint.startswith("spool: cannot ")) == (2, True)


# flush ------------------------------------------------------------------------------------------------


async def test_flush_delivers_in_order_and_says_how_much(cli: Cli, engine: Engine, spool: SpoolFile) -> None:
    spool.keep_jobs(numbered(1_100))
    answer = cli("spool", "flush", "spool.db")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == "1,100 jobs and 0 outcomes delivered\n"
    assert await created(engine) == [job.variables for job in numbered(1_100)]


async def test_flush_ends_with_1_if_an_entry_is_refused(cli: Cli, engine: Engine, spool: SpoolFile) -> None:
    [good, *_] = numbered(1)
    spool.keep_jobs([good, BAD])
    answer = cli("spool", "flush", "spool.db", "--json")
    assert answer.code == 1
    assert '"delivered":1' in answer.out
    assert '"aside":1' in answer.out
    assert await created(engine) == [good.variables]
    again = cli("spool", "flush", "spool.db", "--retry-aside")
    assert (again.code, again.out) == (
        1,
        "0 jobs and 0 outcomes delivered; 1 entry set aside: see everwork spool list\n",
    )
    assert cli("spool", "drop", "spool.db", "--aside", "--yes").code == 0
    assert cli("spool", "flush", "spool.db").code == 0


def test_flush_names_the_engine_that_the_spool_is_for(cli: Cli, spool: SpoolFile) -> None:
    spool.keep_jobs(numbered(1))
    other = f"sqlite:///{cli.folder}/other.db"
    assert cli("migrate", other).code == 0
    answer = cli("spool", "flush", "spool.db", "--engine", other)
    assert answer.code == 2
    assert f"belongs to sqlite:///{cli.file}, not to {other}; pass its engine with --engine" in answer.complaint


async def test_flush_delivers_to_another_engine_if_that_is_wanted(cli: Cli, spool: SpoolFile) -> None:
    other = f"sqlite:///{cli.folder}/other.db"
    assert cli("migrate", other).code == 0
    spool.keep_jobs(numbered(2))
    with spool.transaction() as db:
        db.execute("UPDATE job SET producer = 'shop', number = 1 WHERE id = 1")
    answer = cli("spool", "flush", "spool.db", "--engine", other, "--rebind")
    assert answer.code == 0
    assert answer.err == "everwork: 1 job in doubt may be created twice\n"
    opened = open_engine(other)
    await opened.open()
    assert await created(opened) == [job.variables for job in numbered(2)]
    await opened.close()


def test_flush_with_an_engine_that_is_away_is_one_clear_line(cli: Cli) -> None:
    url = f"postgresql://ann@127.0.0.1:{a_free_port()}/jobs"
    with closing(SpoolFile(Spool(str(cli.folder / "spool.db")), store_name(url))) as spool:
        spool.keep_jobs(numbered(1))
        answer = cli("spool", "flush", "spool.db", "--engine", url)
        assert (answer.code, "cannot reach PostgreSQL 'jobs'" in answer.complaint) == (2, True)
        assert spool.counts().jobs == 1


async def test_flush_creates_the_store_of_the_spool_but_no_other(cli: Cli, spool: SpoolFile) -> None:
    spool.keep_jobs(numbered(2))
    answer = cli("spool", "flush", "spool.db", "--engine", f"sqlite:///{cli.folder}/typo.db", "--rebind")
    assert (answer.code, "does not exist" in answer.complaint) == (2, True)
    assert cli("spool", "flush", "spool.db").out == "2 jobs and 0 outcomes delivered\n"
    opened = open_engine(f"sqlite:///{cli.file}")
    await opened.open()
    assert await created(opened) == [job.variables for job in numbered(2)]
    await opened.close()


async def test_flush_retries_jobs_that_were_too_old_as_if_they_were_new(
    cli: Cli, engine: Engine, spool: SpoolFile
) -> None:
    spool.keep_jobs([NewJob("work", delay_ms=86_400_000), NewJob("work", delay_ms=10 * 86_400_000)])
    with spool.transaction() as db:  # The clock was wrong until the host was started again.
        db.execute("UPDATE job SET boot = 'before', wall_ms = wall_ms - 5 * 86400000")
    assert cli("spool", "flush", "spool.db").code == 1
    assert [one.reason for one in contents.entries(spool, 9)] == ["not delivered within 86400 s"] * 2
    assert cli("spool", "flush", "spool.db", "--retry-aside").out == "2 jobs and 0 outcomes delivered\n"
    later, now = await every_job(engine)
    assert now.run_at_ms <= now.created_at_ms
    assert abs(later.run_at_ms - later.created_at_ms - 5 * 86_400_000) < 60_000


def test_a_damaged_entry_is_named_as_such(cli: Cli, engine: Engine, spool: SpoolFile) -> None:
    spool.keep_jobs(numbered(1))
    with spool.transaction() as db:
        db.execute("UPDATE job SET body = substr(body, 1, 9)")
    assert cli("spool", "flush", "spool.db").code == 1
    assert "is damaged: not JSON" in cli("spool", "list", "spool.db").out


# flush to a server ------------------------------------------------------------------------------------


async def test_the_spool_of_a_client_is_delivered_to_its_server_and_what_it_refuses_is_set_aside(cli: Cli) -> None:
    acme = cli("keys", "create", "--name", "acme", "--permission", "jobs", "--tenant", "acme", "--json").json["key"]
    server = ServerProcess(f"sqlite:///{cli.file}", cli.folder).start()
    try:
        jobs = [NewJob("work", tenant=tenant) for tenant in ("acme", "other", "acme")]
        with closing(SpoolFile(Spool(str(cli.folder / "client.db")), server.grpc_url)) as spool:
            spool.keep_jobs(jobs)
            flush = ("spool", "flush", "client.db", "--engine", server.grpc_url)
            refused = cli(*flush)
            assert (refused.code, spool.counts()[:3]) == (1, (3, 0, 0))
            assert refused.err.endswith("; it is taken from EVERWORK_API_KEY\n")
            partly = cli(*flush, EVERWORK_API_KEY=acme)
            assert partly.out.startswith("2 jobs and 0 outcomes delivered; 1 entry set aside")
            [aside] = contents.entries(spool, 9)
            assert aside.reason == "key 'acme' is not allowed to act for tenant 'other'"
            whole = cli(*flush, "--retry-aside", EVERWORK_API_KEY=KEY)
            assert (whole.code, whole.out) == (0, "1 job and 0 outcomes delivered\n")
        async with Client(server.grpc_url, key=KEY) as client:
            assert [job.tenant async for job in client.list()] == ["other", "acme", "acme"]
    finally:
        server.stop()


async def test_outcomes_of_a_client_are_reported_to_its_server_over_tls(cli: Cli) -> None:
    authority, flags = tls_files(cli.folder)
    server = ServerProcess(f"sqlite:///{cli.file}", cli.folder, *flags).start()
    url = server.grpc_url.replace("grpc://", "grpcs://")
    try:
        async with Client(url, key=KEY, tls=str(authority)) as client:
            key = (await client.create("work")).key
            [job] = await client.activate("work")
            with closing(SpoolFile(Spool(str(cli.folder / "client.db")), server.grpc_url)) as spool:
                spool.keep_outcomes([Complete(key, job.attempt)])
            flush = ("spool", "flush", "client.db", "--engine", url, "--tls-ca", str(authority))
            done = cli(*flush, EVERWORK_API_KEY=KEY)
            assert (done.code, done.out) == (0, "0 jobs and 1 outcome delivered\n")
            assert (await client.get(key)).state is State.COMPLETED
    finally:
        server.stop()


def test_a_server_that_is_away_or_another_one_is_one_clear_line(cli: Cli) -> None:
    address = f"127.0.0.1:{a_free_port()}"
    with closing(SpoolFile(Spool(str(cli.folder / "client.db")), f"grpc://{address}")) as spool:
        spool.keep_jobs(numbered(1))
    away = cli("spool", "flush", "client.db", "--engine", f"grpc://{address}")
    assert (away.code, away.complaint) == (2, f"cannot reach the server at grpc://{address}; is it running?")
    for engine in (("--engine", "grpc://elsewhere:27500"), ()):
        other = cli("spool", "flush", "client.db", *engine)
        assert (other.code, f"client.db belongs to grpc://{address}, not to" in other.complaint) == (2, True)
    tls = cli("spool", "flush", "client.db", "--tls-ca", "ca.pem")
    assert (tls.code, tls.complaint) == (2, "tls_ca, tls_certificate, tls_key: are for servers: grpcs://host:port")


# drop -------------------------------------------------------------------------------------------------


def test_drop_deletes_entries_by_id(cli: Cli, spool: SpoolFile) -> None:
    spool.keep_jobs(numbered(3))
    spool.keep_outcomes([Complete(5, 1), Complete(2**63 - 1, 1)])
    answer = cli("spool", "drop", "spool.db", f"{spool.id}-2", "5/1", f"{2**63 - 1}/1", "--yes")
    assert (answer.code, answer.out, answer.err) == (0, "3 entries deleted\n", "")
    assert spool.counts()[:3] == (2, 0, 0)


def test_drop_names_ids_that_do_not_exist(cli: Cli, spool: SpoolFile) -> None:
    spool.keep_jobs(numbered(1))
    answer = cli("spool", "drop", "spool.db", f"{spool.id}-1", f"{spool.id}-9", "9" * 19 + "/1", "--yes")
    assert (answer.code, answer.out) == (1, "1 entry deleted\n")
    assert f"everwork: no entry '{spool.id}-9' in the spool\n" in answer.err
    bad = cli("spool", "drop", "spool.db", "seven", "--yes")
    assert (bad.code, bad.complaint) == (2, "id: must be an entry id as shown by everwork spool list, not 'seven'")


def test_drop_deletes_what_is_set_aside_or_everything(cli: Cli, spool: SpoolFile) -> None:
    spool.keep_jobs(numbered(3))
    spool.set_aside([1], "refused")
    assert cli("spool", "drop", "spool.db", "--aside", "--yes").out == "1 entry deleted\n"
    assert spool.counts()[:3] == (2, 0, 0)
    assert cli("spool", "drop", "spool.db", "--all", "--yes", "--json").json["dropped"] == 2
    assert spool.counts()[:3] == (0, 0, 0)


def test_drop_asks_first_and_needs_one_selection(cli: Cli, spool: SpoolFile) -> None:
    spool.keep_jobs(numbered(1))
    assert "yes: --yes is required" in cli("spool", "drop", "spool.db", "--all").complaint
    for wrong in ((), ("--all", "--aside"), (f"{spool.id}-1", "--all")):
        answer = cli("spool", "drop", "spool.db", *wrong, "--yes")
        assert (answer.code, answer.complaint) == (2, "id: pass entry ids, --aside or --all")
    assert spool.counts().jobs == 1


def test_drop_does_not_delete_what_another_process_is_sending(
    spool: SpoolFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool.keep_jobs(numbered(1))
    turn = Turn(spool.spool.path)
    assert turn.take()
    monkeypatch.setattr("everwork.cli.commands.spool.TURN_SECONDS", 0)
    with pytest.raises(EngineBusy, match="is being delivered by another process; try again later"):
        drop(spool.spool.path, all=True, yes=True)
    assert spool.counts().jobs == 1
    turn.give_back()
    drop(spool.spool.path, all=True, yes=True)
    assert spool.counts().jobs == 0


# doctor -----------------------------------------------------------------------------------------------


async def test_doctor_finds_what_is_wrong_with_a_spool(cli: Cli, engine: Engine, spool: SpoolFile) -> None:
    spool.keep_jobs(numbered(3))
    spool.set_aside([1], "refused")
    with spool.transaction() as db:
        db.execute("UPDATE job SET boot_ms = boot_ms - 50000000")
    answer = cli("doctor", "--spool", "spool.db")
    assert answer.code == 1
    problems = [line for line in answer.out.splitlines() if line.startswith("problem")]
    assert "1 entry is set aside in the spool" in problems[0]
    assert "2 entries are waiting in the spool" in problems[1]
    assert "the oldest for 13.9 h, and entries are set aside after 24.0 h" in problems[1]


async def test_doctor_finds_a_spool_that_is_nearly_full_or_for_another_store(cli: Cli, engine: Engine) -> None:
    small = SpoolFile(Spool(str(cli.folder / "small.db"), max_bytes=1_048_576), "redis://elsewhere/0")
    small.keep_jobs([NewJob("work", '{"text":"' + "x" * 900_000 + '"}')])
    small.close()
    problems = cli("doctor", "--spool", "small.db").out
    assert "has entries for redis://elsewhere/0, not for this store" in problems
    assert "% full" in problems


async def test_doctor_has_nothing_to_say_about_an_empty_spool(cli: Cli, engine: Engine, spool: SpoolFile) -> None:
    assert cli("doctor", "--spool", "spool.db", "--json").json["ok"]


async def test_doctor_names_a_spool_that_cannot_be_used(cli: Cli, engine: Engine) -> None:
    answer = cli("doctor", "--spool", "gone.db")
    assert (answer.code, "the spool cannot be used: no such file: " in answer.out) == (1, True)
