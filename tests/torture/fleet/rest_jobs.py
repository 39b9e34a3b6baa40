"""Gives the REST API the engine's methods, for `LoggedEngine`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import httpx

from everwork.core.instants import utc_text
from everwork.core.job import NewJob
from everwork.core.leasing import Created, Judged, Lease, LeaseStatus, Settlement, Verdict
from everwork.core.outcome import Complete, Failed, Outcome, Throw
from everwork.exceptions import EngineUnavailable, EverworkError
from tests.torture.fleet.grpc_jobs import NOTHING
from tests.torture.fleet.parts import CALL_SECONDS, Caller, Eyes, RemoteEngine
from tests.torture.logged import wire_outcome
from tests.torture.plan import PolledJob

_AT_ONCE: Final = 8
_REFUSED: Final = {404: Verdict.NOT_FOUND, 409: Verdict.LEASE_LOST}
STORED: Final = "stored"
"""The verdict for an outcome that is stored: REST does not show whether it was reported before."""


class RestEngine(RemoteEngine):
    """A REST client whose calls are logged; outcomes that REST does not support are replaced by others."""

    async def report(self, outcomes: Sequence[Outcome]) -> list[Judged | None]:
        """End attempts, a few at a time, each with its own call."""
        judged: list[Judged | None] = []
        for start in range(0, len(outcomes), _AT_ONCE):
            judged += await asyncio.gather(*map(self._report_one, outcomes[start : start + _AT_ONCE]))
        return judged

    async def _report_one(self, outcome: Outcome) -> Judged | None:
        told = in_rest(outcome)
        done = await self._logged("settle", [wire_outcome(told)], lambda: self.engine.settle([told]), _shown)
        return None if done is None else done.judged[0]


def _shown(done: Settlement) -> tuple[list[Any], list[Any]]:
    return [STORED if one.verdict is Verdict.ACCEPTED else one.verdict.value for one in done.judged], []


def in_rest(outcome: Outcome) -> Outcome:
    """An outcome that REST supports: results are objects, and no events are emitted."""
    key, attempt = outcome.key, outcome.attempt
    match outcome:
        case Complete(result=result):
            token = json.loads(result or "null")
            shown = token if isinstance(token, dict) else {"token": token}  # Converted before a restart.
            return Complete(key, attempt, json.dumps(shown, separators=(",", ":")))
        case Throw():
            return outcome
        case Failed(final=True):
            return Failed(key, attempt, outcome.error, 0, 0)
        case Failed():
            return outcome
        case _:
            return Failed(key, attempt, f"instead of {type(outcome).__name__}", None, 0)


class RestJobs:
    """Calls to a server."""

    def __init__(self, caller: Caller, eyes: Eyes, worker: str) -> None:
        self._eyes = eyes
        self._worker = worker
        headers = {"X-API-Key": caller.key, "Prefer": "return=minimal"}
        self._http = httpx.AsyncClient(base_url=caller.http_url, headers=headers, timeout=CALL_SECONDS)

    async def close(self) -> None:
        """Close every connection."""
        await self._http.aclose()

    async def create(self, jobs: Sequence[NewJob]) -> list[Created]:
        """Create jobs, all or none; one that is in a spool has no key yet."""
        found = await self._call("POST", "/api/v1/jobs", [_new(job) for job in jobs])
        return [Created(-1 if one["key"] is None else int(one["key"]), one["deduplicated"]) for one in found]

    async def poll(self, type: str, limit: int, lease_ms: int, wait: float, group: str = "") -> list[PolledJob]:
        """Lease jobs; if there are none, wait."""
        asked = {"type": type, "worker": self._worker, "max_jobs": limit, "timeout_ms": lease_ms, "wait": wait}
        found = await self._call("POST", "/api/v1/jobs/activate", {**asked, "group": group})
        return [_leased(one) for one in found["jobs"]]

    async def settle(self, outcomes: Sequence[Outcome], _demands: object = ()) -> Settlement:
        """End one attempt."""
        [outcome] = outcomes
        return Settlement([await self._judged(*_told(outcome))], NOTHING)

    async def extend(self, leases: Sequence[Lease], lease_ms: int) -> list[LeaseStatus]:
        """Extend leases, one by one."""
        paths = [(f"/api/v1/jobs/{key}/timeout", {"timeout_ms": lease_ms, "attempt": n}) for key, n in leases]
        judged = [await self._judged("PUT", path, sent) for path, sent in paths]
        return [LeaseStatus.HELD if one.verdict is Verdict.ACCEPTED else LeaseStatus.LOST for one in judged]

    async def cancel(self, keys: Sequence[int], reason: str) -> list[Judged]:
        """Cancel jobs, one by one."""
        return [await self._judged("PUT", f"/api/v1/jobs/{key}/cancel", {"reason": reason}) for key in keys]

    async def requeue(self, keys: Sequence[int]) -> list[Judged]:
        """Requeue dead letters, one by one."""
        return [await self._judged("PUT", f"/api/v1/jobs/{key}/requeue", {}) for key in keys]

    async def look(self, key: int) -> None:
        """Read a job that may belong to another tenant, and a list."""
        await self._judged("GET", f"/api/v1/jobs/{key}", None)
        await self._judged("GET", "/api/v1/jobs?limit=20", None)

    async def _judged(self, method: str, path: str, sent: object) -> Judged:
        response = await self._send(method, path, sent)
        if response.status_code in _REFUSED:
            return Judged(_REFUSED[response.status_code])
        _require_ok(response)
        return Judged(Verdict.ACCEPTED)

    async def _call(self, method: str, path: str, sent: object) -> Any:
        response = await self._send(method, path, sent)
        _require_ok(response)
        return response.json()

    async def _send(self, method: str, path: str, sent: object) -> httpx.Response:
        try:
            response = await self._http.request(method, path, json=sent)
        except httpx.TransportError as error:
            raise EngineUnavailable(f"{type(error).__name__}: {error}") from None
        self._eyes.look(path, response.content)
        return response


class UnexpectedAnswer(Exception):
    """A server has returned a status that it should never return."""


def _require_ok(response: httpx.Response) -> None:
    if response.is_success:
        return
    text = f"{response.status_code}: {response.text[:300]}"
    if response.status_code in (502, 503, 504):
        raise EngineUnavailable(text)
    if response.is_server_error:
        raise UnexpectedAnswer(text)
    raise EverworkError(text)


def _new(job: NewJob) -> dict[str, Any]:
    sent: dict[str, Any] = {"type": job.type, "variables": json.loads(job.variables), "tenant": job.tenant}
    sent |= {"priority": job.priority, "delay_ms": job.delay_ms, "dedupe_key": job.dedupe_key}
    sent["limit_key"] = job.limit_key
    if job.expires_at_ms is not None:
        sent["expires_at"] = utc_text(job.expires_at_ms)
    return sent


def _leased(shown: dict[str, Any]) -> PolledJob:
    until = datetime.fromisoformat(shown["deadline"])
    counts = (shown["attempt"], shown["attempts"], shown["max_attempts"])
    return PolledJob(int(shown["key"]), *counts, round(until.timestamp() * 1000), json.dumps(shown["variables"]))


def _told(outcome: Outcome) -> tuple[str, str, dict[str, Any]]:
    """An outcome as a request."""
    path, sent = f"/api/v1/jobs/{outcome.key}", {"attempt": outcome.attempt}
    match outcome:
        case Complete(result=result):
            return "PUT", f"{path}/complete", {**sent, "variables": json.loads(result or "{}")}
        case Throw(code=code, error=error):
            return "POST", f"{path}/throw-error", {**sent, "error_code": code, "error_message": error}
        case Failed():
            told = {"error_message": outcome.error, "retries": outcome.retries, "backoff_ms": outcome.backoff_ms}
            return "PUT", f"{path}/fail", {**sent, **{name: one for name, one in told.items() if one is not None}}
        case _:
            raise AssertionError(outcome)
