"""everwork spool: what offline mode has kept, delivered by hand, or deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from everwork.cli.commands.spool import drop
from everwork.core.job import NewJob
from everwork.core.outcome import Complete
from everwork.engines.open import open_engine
from everwork.exceptions import EngineBusy
from everwork.spool.courier import Turn
from everwork.spool.file import SpoolFile
from everwork.spool.settings import Offline, Spool
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
    assert (missing.code, missing.complaint) == (2, f"spool: there is no file {cli.folder}/gone.db")
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
    assert f"holds entries for sqlite:///{cli.file}, not for {other}" in answer.complaint


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


def test_the_spool_of_a_client_is_delivered_by_a_client(cli: Cli) -> None:
    SpoolFile(Spool(str(cli.folder / "client.db")), "grpc://server:27500").close()
    complaint = cli("spool", "flush", "client.db").complaint
    assert complaint.endswith("belongs to a client of grpc://server:27500; deliver it by starting a client with it")


def test_flush_with_an_engine_that_is_away_is_one_clear_line(cli: Cli, spool: SpoolFile) -> None:
    spool.keep_jobs(numbered(1))
    answer = cli("spool", "flush", "spool.db")
    assert (answer.code, "there is no file" in answer.complaint) == (2, True)
    assert spool.counts().jobs == 1


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
    assert (bad.code, bad.complaint) == (2, "id: must be an entry id as in everwork spool list, not 'seven'")


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
    assert "2 entries wait in the spool" in problems[1]
    assert "the oldest for 13.9 h, and entries are set aside after 24.0 h" in problems[1]


async def test_doctor_finds_a_spool_that_is_nearly_full_or_for_another_store(cli: Cli, engine: Engine) -> None:
    small = SpoolFile(Spool(str(cli.folder / "small.db"), max_bytes=1_048_576), "redis://elsewhere/0")
    small.keep_jobs([NewJob("work", '{"text":"' + "x" * 900_000 + '"}')])
    small.close()
    problems = cli("doctor", "--spool", "small.db").out
    assert "holds entries for redis://elsewhere/0, not for this engine" in problems
    assert "% full" in problems


async def test_doctor_has_nothing_to_say_about_an_empty_spool(cli: Cli, engine: Engine, spool: SpoolFile) -> None:
    assert cli("doctor", "--spool", "spool.db", "--json").json["ok"]


async def test_doctor_names_a_spool_that_cannot_be_used(cli: Cli, engine: Engine) -> None:
    answer = cli("doctor", "--spool", "gone.db")
    assert (answer.code, "the spool cannot be used: there is no file" in answer.out) == (1, True)
