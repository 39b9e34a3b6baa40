"""Copies a stopped store to another, of any engine: types, registry, jobs with their keys; then compares the counts."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from everwork.codec.json import encode
from everwork.core.job import StoredJob
from everwork.core.limits import DEFAULT_TENANT
from everwork.core.queries import Count, JobFilter, TypeInfo
from everwork.engines.contract import Engine
from everwork.engines.values import JobRecord, Registered
from everwork.exceptions import InvalidInput
from everwork.service.access.sessions import LINK, SESSION
from everwork.service.fleet.live import CLIENTS, FIRING, MANAGER, PROCESS, RESTART
from everwork.service.monitor.sampler import MINUTE_KIND

IN_USE_MS: Final = 30_000
"""Idle workers poll at least this often, and engines record their polls with about this precision."""
LIVE_KINDS: Final = frozenset({MANAGER, PROCESS, FIRING, CLIENTS})
"""Entries of running managers, processes and applications; these register again in the store they start on."""
OWN_KINDS: Final = frozenset({SESSION, LINK, RESTART, MINUTE_KIND})
"""Entries that are valid in one store only: sessions, restart requests, metrics."""
COPY_KIND: Final = "copy"
COPY_MARK_MS: Final = 30 * 86_400_000
STEP_JOBS_MAX: Final = 1_000
STEP_BYTES: Final = 4_000_000


class Progress(NamedTuple):
    """The progress of a copy: jobs processed so far, and in total."""

    done: int
    total: int


class Difference(NamedTuple):
    """A count that differs between the stores."""

    what: str
    source: int
    target: int


@dataclass(slots=True)
class Copied:
    """The result of a copy."""

    jobs: int = 0
    present: int = 0
    """Jobs that an earlier run had already copied."""
    types: int = 0
    entries: int = 0
    differences: list[Difference] = field(default_factory=list)


class StoreCopy:
    """Copies one open store into another. Repeated after an interruption, it resumes."""

    def __init__(self, source: Engine, target: Engine, name: str, show: Callable[[Progress], None]) -> None:
        self._source = source
        self._target = target
        self._name = name
        self._show = show
        self._copied = Copied()

    async def copy(self, *, into_non_empty: bool = False, while_running: bool = False) -> Copied:
        """Copy everything, compare, and drop groups in the target that the source has dropped."""
        if not while_running:
            await self._require_idle()
        await self._require_two_stores()
        before = sum(count.jobs for count in await self._target.count())
        after = 0 if into_non_empty or not before else await self._resumable_from()
        self._copied.present = before if after else 0
        known = {info.type for info in await self._target.types()} if into_non_empty else set[str]()
        await self._target.register(COPY_KIND, self._name, _body(self._name), COPY_MARK_MS)
        await self._copy_types(known)
        await self._copy_entries(overwrite=not into_non_empty)
        await self._copy_jobs(after)
        self._copied.differences = await self._compare(before if into_non_empty else None)
        await self._drop_groups(known)
        await self._target.unregister(COPY_KIND, self._name)
        return self._copied

    # Before -----------------------------------------------------------------------------------------

    async def _require_idle(self) -> None:
        """Refuse a source that is in use, because a copy is a snapshot."""
        now_ms = await self._source.now()
        for info in await self._source.types():
            if info.last_asked_ms is not None and now_ms - info.last_asked_ms < IN_USE_MS:
                ago = max(0, now_ms - info.last_asked_ms) // 1000
                raise InvalidInput(
                    "source",
                    f"is in use: a worker polled for '{info.type}' {ago} s ago; stop the workers and wait "
                    f"{IN_USE_MS // 1000} s, or copy it while in use with --while-running",
                )
        for entry in await self._source.registered(None):
            if entry.kind in LIVE_KINDS and entry.until_ms is not None:
                who = {FIRING: "application", CLIENTS: "server"}.get(entry.kind, entry.kind)
                raise InvalidInput("source", f"is in use by {who} '{entry.name}'; stop it first")

    async def _require_two_stores(self) -> None:
        """Refuse two URLs of the same store: an entry written to the target must not appear in the source."""
        probe = secrets.token_hex(8)
        await self._target.register(COPY_KIND, probe, "{}", 10_000)
        seen = any(entry.name == probe for entry in await self._source.registered(COPY_KIND))
        await self._target.unregister(COPY_KIND, probe)
        if seen:
            raise InvalidInput("target", "is the same store as the source; choose another one")

    async def _resumable_from(self) -> int:
        """The highest key in the target, if that job came from this source."""
        [newest] = (await self._target.find(JobFilter(), 1)).jobs
        [origin] = await self._source.get([newest.key])
        if origin is None or not _is_same(origin, newest):
            raise InvalidInput(
                "target",
                f"is not empty, and its newest job, {newest.key}, does not come from this source; "
                "choose an empty store, or pass --into-non-empty",
            )
        return newest.key

    # Copying ----------------------------------------------------------------------------------------

    async def _copy_types(self, known: set[str]) -> None:
        for info in await self._source.types():
            if info.type not in known:
                await self._copy_type(info)
                self._copied.types += 1

    async def _copy_type(self, info: TypeInfo) -> None:
        await self._target.pause(info.type, info.paused)
        await self._target.set_policy(info.type, info.policy)
        for group in info.groups:
            await self._target.add_group(info.type, group)

    async def _copy_entries(self, *, overwrite: bool) -> None:
        now_ms = await self._source.now()
        present = set() if overwrite else {entry[:2] for entry in await self._target.registered(None)}
        for entry in await self._source.registered(None):
            if entry.kind not in LIVE_KINDS | OWN_KINDS | {COPY_KIND} and entry[:2] not in present:
                await self._copy_entry(entry, now_ms)
                self._copied.entries += 1

    async def _copy_entry(self, entry: Registered, now_ms: int) -> None:
        ttl_ms = None if entry.until_ms is None else max(1, entry.until_ms - now_ms)
        await self._target.register(entry.kind, entry.name, entry.body, ttl_ms)

    async def _copy_jobs(self, after: int) -> None:
        total = sum(count.jobs for count in await self._source.count())
        done, step = self._copied.present if after else 0, 100
        self._show(Progress(done, total))
        while records := await self._source.dump(after, step):
            loaded = await self._target.load(records)
            if loaded < len(records):
                await self._require_same(records)
            self._copied.jobs += loaded
            self._copied.present += len(records) - loaded
            after, done = records[-1].job.key, done + len(records)
            self._show(Progress(done, max(total, done)))
            step = _next_step(records)

    async def _require_same(self, records: Sequence[JobRecord]) -> None:
        """Refuse keys that other jobs have in the target: keys are not overwritten, so jobs would be lost silently."""
        present = await self._target.get([record.job.key for record in records])
        for record, job in zip(records, present, strict=True):
            if job is not None and not _is_same(record.job, job):
                raise InvalidInput(
                    "target",
                    f"already has another job with key {job.key} (type '{job.type}'), so the source's job with that "
                    "key cannot be copied; copy into an empty store",
                )

    # After ------------------------------------------------------------------------------------------

    async def _compare(self, before: int | None) -> list[Difference]:
        """The counts that differ; if the target already had jobs, only the sums are compared."""
        here, there = await self._source.count(), await self._target.count()
        if before is None:
            return differences(here, there)
        expected, found = before + self._copied.jobs, sum(count.jobs for count in there)
        missing = sum(count.jobs for count in here) - self._copied.jobs - self._copied.present
        if expected == found and missing == 0:
            return []
        return [Difference("all jobs", expected + missing, found)]

    async def _drop_groups(self, known: set[str]) -> None:
        """Drop groups that reappeared with their finished jobs, so that new jobs are not copied to them."""
        groups = {info.type: set(info.groups) for info in await self._source.types()}
        for info in await self._target.types():
            if info.type in groups and info.type not in known:
                for group in set(info.groups) - groups[info.type]:
                    await self._target.drop_group(info.type, group)


def differences(source: Sequence[Count], target: Sequence[Count]) -> list[Difference]:
    """The counts that differ."""
    here = {count._replace(jobs=0): count.jobs for count in source}
    there = {count._replace(jobs=0): count.jobs for count in target}
    counted = sorted(here.keys() | there.keys())
    return [
        Difference(_words(count), here.get(count, 0), there.get(count, 0))
        for count in counted
        if here.get(count) != there.get(count)
    ]


def _words(count: Count) -> str:
    more = f", group '{count.group}'" if count.group else ""
    more += f", tenant '{count.tenant}'" if count.tenant != DEFAULT_TENANT else ""
    return f"{count.state.label} jobs of '{count.type}'{more}"


def _is_same(one: StoredJob, other: StoredJob) -> bool:
    """Whether two records describe the same job, in whatever state."""
    return (one.key, one.type, one.tenant, one.group, one.created_at_ms, one.variables) == (
        other.key, other.type, other.tenant, other.group, other.created_at_ms, other.variables,
    )  # fmt: skip


def _next_step(records: Sequence[JobRecord]) -> int:
    """How many jobs to copy next; the larger the jobs, the fewer, so that no step is huge."""
    size = sum(len(r.job.variables) + len(r.job.result or "") + 200 + 200 * len(r.history) for r in records)
    return max(1, min(STEP_JOBS_MAX, STEP_BYTES * len(records) // size))


def _body(name: str) -> str:
    return encode("copy", {"source": name}, 10_000)
