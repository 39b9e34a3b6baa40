"""Names, addresses and numbers that nobody expects: the dashboard does what was meant, or says no."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from everwork.exceptions import EngineUnavailable
from everwork.server.http.ui.dashboard import OUTCOME_UNKNOWN
from everwork.server.http.ui.render import asset_url
from everwork.service.access.audit import Audit
from everwork.service.access.principal import ANYBODY
from everwork.service.access.sessions import Sessions
from tests.server.http.serving import DEADLINE_S, ROOT_KEY, Rest
from tests.server.http.ui.visiting import Visitor

WIDE = "".join(chr(ord(digit) + 0xFEE0) for digit in "12")
"""Twelve, in digits that are no ASCII."""


async def test_names_are_taken_to_the_letter_so_that_no_deed_hits_a_neighbour(visitor: Visitor) -> None:
    rest = visitor.rest
    plain, spaced = await rest.job(type="mail"), await rest.job(type="mail ")
    assert (await visitor.done("/ui/type/pause", type="mail "))["text"].startswith("mail  is paused")
    await visitor.done("/ui/type/breaker-open", type="mail ", seconds="60")
    shown = {info.type: (info.paused, info.breaker.value) for info in await rest.engine.types()}
    assert shown == {"mail": (False, "closed"), "mail ": (True, "open")}
    assert "Resume" in await visitor.page("/ui/type", name="mail ")
    assert "Resume" not in await visitor.page("/ui/type", name="mail")
    listed = await visitor.page("/ui/jobs", type="mail ")
    assert re.findall(r'<tr[^>]* data-key="(\d+)"', listed) == [spaced["key"]]
    await visitor.done("/ui/jobs/change", act="cancel", scope="all", filter="type=mail+", below="99", sure="yes")
    states = [(await rest.ok("GET", f"/api/v1/jobs/{job['key']}"))["state"] for job in (plain, spaced)]
    assert states == ["pending", "cancelled"]


@pytest.mark.parametrize("origin", ["http://[", "http://[::1", "//", "", "http://\u00e9", "https://a:b:c"])
async def test_an_origin_that_is_no_address_is_refused_and_no_defect(local: Rest, origin: str) -> None:
    async with httpx.AsyncClient(base_url=local.url, timeout=DEADLINE_S) as stranger:
        answer = await stranger.post("/ui/login", data={"key": ROOT_KEY}, headers=[(b"Origin", origin.encode())])
    assert answer.status_code == 403
    assert "nothing was changed" in answer.text


async def test_the_login_is_no_page_to_follow(visitor: Visitor) -> None:
    answer = await visitor.client.get("/ui/live", params={"path": "/ui/login"})
    assert answer.status_code == 404


async def test_a_live_page_that_meets_a_defect_ends_with_words_for_it(
    visitor: Visitor, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: object) -> None:
        raise ZeroDivisionError("secret detail")

    visitor.rest.engine.count = broken  # type: ignore[assignment,method-assign]
    answer = await visitor.client.get("/ui/live", params={"path": "/ui/jobs"})
    assert "event: trouble" in answer.text
    assert "Internal error; see the server log" in answer.text
    assert "secret detail" not in answer.text
    assert "internal error in a live page" in caplog.text


async def test_a_form_that_met_an_outage_is_not_sent_again_by_itself_and_says_what_is_known(visitor: Visitor) -> None:
    job = await visitor.rest.job()
    path, form = f"/ui/jobs/{job['key']}", {"csrf": visitor.csrf}
    await visitor.rest.engine.close()
    looked, sent = await visitor.get(path), await visitor.client.post(f"{path}/cancel", data=form)
    assert (looked.status_code, sent.status_code) == (503, 503)
    assert "data-retry" in looked.text
    assert "data-retry" not in sent.text
    assert "Nothing was changed. Try again when it is back." in sent.text


async def test_a_deed_that_got_no_answer_is_not_called_undone(visitor: Visitor) -> None:
    job = await visitor.rest.job()

    async def silent(*_: object, **__: object) -> None:
        raise EngineUnavailable("no answer from 10.0.0.7")

    visitor.rest.engine.cancel = silent  # type: ignore[assignment,method-assign]
    said = await visitor.done(f"/ui/jobs/{job['key']}/cancel")
    assert (said["text"], said["is_good"]) == (OUTCOME_UNKNOWN, False)


async def test_secrets_stay_out_of_the_names_of_a_job(visitor: Visitor) -> None:
    secret = "hunter2-hunter2"
    job = await visitor.rest.job(
        variables={"db": f"redis://:{secret}@h"}, correlation_id=secret, dedupe_key=f"a-{secret}", limit_key=secret
    )
    page = await visitor.page(f"/ui/jobs/{job['key']}")
    assert "hunter2" not in page
    assert page.count("••••••") >= 4


@pytest.mark.parametrize("typed", [WIDE, "1_0", "1e999", "0x10", "nan", "9" * 400])
async def test_a_number_is_typed_in_plain_digits(visitor: Visitor, typed: str) -> None:
    made = {"name": "a", "permission": "jobs"}
    for name in ("days", "rate"):
        answer = await visitor.post("/ui/keys/create", **made, **{name: typed})
        assert (answer.status_code, "must be a number" in answer.text) == (422, True), name
    said = await visitor.done("/ui/type/breaker-open", type="email-send", seconds=typed)
    assert (said["is_good"], "must be a number" in said["text"]) == (False, True)


async def test_a_group_of_dead_letters_whose_job_has_gone_tells_no_error(visitor: Visitor) -> None:
    await visitor.rest.dead_letter("hunter2 is refused", variables={"password": "hunter2"})
    assert "•••••• is refused" in await visitor.page("/ui/dead")

    async def gone(keys: Sequence[int]) -> list[None]:
        return [None for _ in keys]

    visitor.rest.engine.get = gone  # type: ignore[assignment,method-assign]
    page = await visitor.page("/ui/dead")
    assert "email-send" in page
    assert "hunter2" not in page
    assert "is refused" not in page


async def test_what_was_done_is_told_once_also_on_a_page_that_says_what_went_wrong(visitor: Visitor) -> None:
    job = await visitor.rest.job()
    await visitor.done(f"/ui/jobs/{job['key']}/cancel")
    assert "was cancelled" in await visitor.page("/ui/jobs/999", 404)
    assert "was cancelled" not in await visitor.page("/ui/workers")


@pytest.mark.parametrize(
    ("action", "target", "detail", "href"),
    [
        ("jobs.delete", "7", {}, None),
        ("dead.purge", "7", {}, None),
        ("jobs.requeue", "7", {}, "/ui/jobs/7"),
        ("jobs.cancel", "7", {"filter": {"type": "7"}, "matched": 2}, "/ui/type?name=7"),
    ],
)
async def test_an_entry_of_the_audit_log_leads_to_what_is_there(
    visitor: Visitor, action: str, target: str, detail: dict[str, Any], href: str | None
) -> None:
    await Audit(visitor.rest.engine).record(ANYBODY, action, target, "cli", detail)
    page = await visitor.page("/ui/audit", action=action)
    assert re.findall(r'<a href="([^"]+)">7</a>', page) == ([] if href is None else [href])


async def test_a_planted_login_link_asks_before_it_makes_another_of_somebody(visitor: Visitor) -> None:
    link = f"/ui/login?token={await Sessions(visitor.rest.engine).new_link()}"
    async with httpx.AsyncClient(base_url=visitor.rest.url, timeout=DEADLINE_S) as stranger:
        assert "data-autosubmit" in (await stranger.get(link)).text
        for site in ("cross-site", "same-site"):
            assert "data-autosubmit" not in (await stranger.get(link, headers={"Sec-Fetch-Site": site})).text
    page = await visitor.page(link)
    assert "data-autosubmit" not in page
    assert "Open the dashboard" in page


async def test_a_form_leads_to_no_place_outside_of_the_dashboard(visitor: Visitor) -> None:
    job = await visitor.rest.job()
    for back in (
        "/ui/../..//evil.test",
        "/ui//evil.test",
        "/ui/%2e%2e/x",
        "/ui/.%2E",
        "/ui/./x",
        "/uix",
        "//evil.test",
    ):
        assert (await visitor.done(f"/ui/jobs/{job['key']}/priority", back, priority="1"))["to"] == "/ui", back
    fine = "/ui/jobs?type=a//../b&x=.."
    assert (await visitor.done(f"/ui/jobs/{job['key']}/priority", fine, priority="1"))["to"] == fine


async def test_files_of_the_dashboard_are_only_read(visitor: Visitor) -> None:
    for method in ("POST", "PUT", "DELETE"):
        answer = await visitor.client.request(method, asset_url("app.js"))
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
    assert (await visitor.client.head(asset_url("app.js"))).status_code == 200
