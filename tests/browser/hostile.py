"""Texts that mean harm, and a store that has them in every field that a page shows."""

from __future__ import annotations

import json
from typing import Any, Final

from everwork.core.job import NewJob
from everwork.core.leasing import Demand
from everwork.core.outcome import Complete, Throw
from everwork.service.access.audit import Audit
from everwork.service.access.principal import ANYBODY, Principal
from everwork.service.fleet.entries import ManagerEntry, ProcessEntry, TriggerEntry, WorkerEntry, own_source
from everwork.service.fleet.fleet import Fleet
from tests.server.whole import Whole

RUN: Final = "window.__pwned="
ELSEWHERE: Final = "http://other.invalid/"

CORPUS: Final[dict[str, str]] = {
    "image": f"<img src=x onerror=\"{RUN}'image'\">",
    "script": f"<script>{RUN}'script'</script>",
    "foreign script": f'<script src="{ELSEWHERE}x.js"></script>',
    "attribute": f"\" autofocus onfocus=\"{RUN}'focus'\" onmouseover='{RUN}1' style=\"color:red",
    "single quotes": f"' onclick='{RUN}1' tabindex='1",
    "way out": f"</pre></textarea></title></select></script></time><svg onload=\"{RUN}'svg'\"><p>out</p>",
    "address": f"javascript:{RUN}'address'//",
    "data address": f"data:text/html,<script>{RUN}'data'</script>",
    "elsewhere": f"<meta http-equiv=refresh content=0;url={ELSEWHERE}><link rel=stylesheet href={ELSEWHERE}>",
    "base": f'<base href="{ELSEWHERE}"><iframe src="{ELSEWHERE}"></iframe><form action="{ELSEWHERE}"></form>',
    "template": "{{7*7}}{% raw %}{{ config }}{# x #}${7*7}<%= 7*7 %>#{7*7}",
    "entities": f"&lt;img src=x&gt;&#60;script&#62;{RUN}'entity'&#60;/script&#62;&amp;lt;",
    "path": "../../../etc/passwd?x=1&y=%2e%2e%00#fragment;\\..\\",
    "long word": "W" * 255,
    "stacked marks": "e" + "\u0301\u0323" * 60,
    "terminal": "\x1b[31mred\x1b[0m\x1b]8;;http://other.invalid\x07link\x1b]8;;\x07",
    "turned round": "user\u202egnp.exe\u202c \u2066isolated\u2069 \u200fmark\ufeff",
    "controls": "bell\x07 back\x08\x08 form\x0c escape\x1b delete\x7f next\x85 line\u2028 paragraph\u2029",
    "event stream": f'x\n\nevent: page\ndata: "<img src=x onerror={RUN}1>"\n\nevent: ended\ndata: "x"\n\n',
    "json": f'"}}],"x":{{"</script><img src=x onerror={RUN}2>',
}

NAMES: Final = {name: text for name, text in CORPUS.items() if text.isprintable()}
"""Those that may be the name of something."""
HUGE: Final = 1_048_576


async def pour(whole: Whole) -> dict[str, int]:
    """Fill a store; the keys of jobs that have a text in every field, by the text's name."""
    for name, text in NAMES.items():
        await _fleet(whole, name, text)
        await whole.server.keys.create(text, ["jobs:read"], tenants=[text])
    await _audit(whole)
    failed = {name: await _failed(whole, name, text) for name, text in CORPUS.items()}
    return {**failed, "huge": await _huge(whole)}


async def _failed(whole: Whole, name: str, text: str) -> int:
    """A dead letter that says it everywhere, before jobs in all other states that do."""
    engine, type = whole.service._engine, NAMES.get(name, name)
    said = json.dumps({text: text, "list": [text, {"deep": text}]}, ensure_ascii=False)
    names: dict[str, Any] = {"correlation_id": type, "limit_key": type, "dedupe_key": type}
    new = NewJob(type, said, tenant=type, headers=said, **names)
    [failed, done, gone, _] = await engine.create(
        [new, new._replace(dedupe_key="done"), new._replace(dedupe_key="gone"), new._replace(dedupe_key="waits")]
    )
    await engine.cancel([gone.key], text)
    leased = (await engine.activate([Demand(type, type, 2, 3_600_000)])).jobs
    outcomes = {failed.key: lambda job: Throw(job.key, job.attempt, type, text), done.key: _complete(said)}
    await engine.settle([outcomes[job.key](job) for job in leased])
    return failed.key


def _complete(said: str) -> Any:
    return lambda job: Complete(job.key, job.attempt, said)


async def _huge(whole: Whole) -> int:
    """As much as a job may carry."""
    text = json.dumps({"huge": "<b>" * (HUGE // 3 - 100)})
    [created] = await whole.service._engine.create([NewJob("huge", text)])
    [job] = (await whole.service._engine.activate([Demand("huge", "w", 1, 3_600_000)])).jobs
    await whole.service._engine.settle([Complete(created.key, job.attempt, text)])
    return created.key


async def _fleet(whole: Whole, name: str, text: str) -> None:
    """A worker, its trigger, and a process that cannot start it."""
    fleet, id = Fleet(whole.service._engine), name.replace(" ", "-").ljust(16, "0")
    worker = WorkerEntry(id=id, title=text, description=text, sources=(text, own_source(id)))
    said = json.dumps({text: text})
    trigger = TriggerEntry(
        worker_id=id, id="t", title=text, description=text, schedule=text, type=own_source(id), variables=said
    )
    await fleet.declare([worker], [trigger])
    process = ProcessEntry(name=f"{text}/0", manager=text, host=text, workers=(id,), broken={id: text}, state="running")
    await fleet.beat(ManagerEntry(name=text, uuid=text, host=text, version=text), [process])


async def _audit(whole: Whole) -> None:
    audit = Audit(whole.service._engine)
    for text in CORPUS.values():
        who = Principal("id", text, ANYBODY.permissions)
        await audit.record(who, "types.pause", text, text, {"name": text, text: [text]})
