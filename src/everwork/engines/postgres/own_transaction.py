"""Jobs created and completed inside the user's own transaction, on the user's own connection and driver."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from everwork.core.job import NewJob
from everwork.core.leasing import Created, Judged
from everwork.core.outcome import Complete
from everwork.engines.base import Clock
from everwork.engines.postgres.create import create_document, created_of, events_of, packed
from everwork.engines.postgres.drivers import Fetch, driver_of, is_asynchronous
from everwork.engines.postgres.settle import ACCEPTED, refusals, rounds_of
from everwork.engines.postgres.statements import statements
from everwork.engines.postgres.store_url import Address
from everwork.engines.postgres.wake import DONE, channel, payload
from everwork.exceptions import InvalidInput


class Place(NamedTuple):
    """Which store the transaction must be on; the id is known once the engine was open."""

    address: Address
    store_id: UUID | None
    clock: Clock | None

    def now_ms(self) -> int | None:
        """The instant that a test dictates."""
        return self.clock() if self.clock is not None else None


async def create_in(place: Place, transaction: object, jobs: Sequence[NewJob]) -> list[Created]:
    """Create jobs that exist, and wake workers, only if the user commits."""
    if not jobs:
        return []
    fetch = await _checked(place, transaction)
    document = create_document(jobs, place.now_ms()).decode()
    [row] = await fetch(statements("create", place.address.schema)["create"], document)
    await _notify(place, fetch, {job.type for job in jobs})
    return created_of(row[0], row[1])


async def complete_in(place: Place, transaction: object, completions: Sequence[Complete]) -> list[Judged]:
    """Complete attempts if, and only if, the user commits."""
    fetch = await _checked(place, transaction)
    judged: dict[int, Judged] = {}
    for places in rounds_of(completions):
        answers = await _complete(place, fetch, [completions[number] for number in places])
        judged.update((number, answers[completions[number].key]) for number in places)
    await _notify(place, fetch, {DONE, *(event.type for outcome in completions for event in outcome.events)})
    return [judged[number] for number in range(len(completions))]


async def _complete(place: Place, fetch: Fetch, batch: Sequence[Complete]) -> dict[int, Judged]:
    now_ms, schema = place.now_ms(), place.address.schema
    document: dict[str, Any] = {"done": {str(o.key): [o.attempt, o.result] for o in batch}}
    if now_ms is not None:
        document["now"] = now_ms
    events = events_of(batch, now_ms)
    if events:
        document["events"] = events
    [[accepted]] = await fetch(statements("complete", schema)["complete"], packed(document).decode())
    refused = [outcome for outcome in batch if outcome.key not in accepted]
    judged = dict.fromkeys(accepted, ACCEPTED)
    if refused:
        keys = packed(sorted(outcome.key for outcome in refused)).decode()
        rows = await fetch(_by_document(statements("get", schema)["where"]), keys)
        ends = await fetch(_by_document(statements("settle", schema)["past_ends"]), keys)
        judged |= refusals(refused, rows, ends)
    return judged


def _by_document(sql: str) -> str:
    """A statement that takes keys, taking them as one document instead: drivers disagree on arrays."""
    return sql.replace("ANY($1::bigint[])", "ANY(ARRAY(SELECT k::bigint FROM jsonb_array_elements_text($1::jsonb) k))")


async def _notify(place: Place, fetch: Fetch, words: set[str]) -> None:
    """NOTIFY is part of the transaction: nobody hears it before the commit, nor after a rollback."""
    if place.address.notify:
        document = packed([channel(place.address), payload(words)]).decode()
        await fetch("SELECT pg_notify($1::jsonb->>0, $1::jsonb->>1)", document)


async def _checked(place: Place, transaction: object) -> Fetch:
    """How to run statements in the transaction, once it is known to be one on this store."""
    fetch = driver_of(transaction)
    if is_asynchronous(transaction):
        # Whoever cannot wait takes the call back here, before anything is under way on the user's connection.
        await asyncio.sleep(0)
    schema = place.address.schema
    [row] = await fetch("SELECT to_regclass($1::jsonb->>0) IS NOT NULL", packed([f"{schema}.store"]).decode())
    if not row[0]:
        raise InvalidInput(
            "tx",
            f"its database holds no jobs in schema {schema!r}: it must be a connection to {place.address.shown},"
            " on which the application was opened before",
        )
    if place.store_id is not None:
        [row] = await fetch(f"SELECT id::text FROM {schema}.store WHERE $1::jsonb IS NOT NULL", "null")  # noqa: S608
        if row[0] != str(place.store_id):
            raise InvalidInput("tx", f"must be a connection to {place.address.shown}, not to another store")
    return fetch
