"""Waits for a spooled job to be delivered; shared by applications, clients and the outbox."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from everwork.core import checks
from everwork.core.leasing import Created, Spooled
from everwork.core.limits import DELAY_MS_MAX
from everwork.exceptions import NotDelivered, ResultTimeout

T = TypeVar("T")

LOOK_SECONDS: Final = 0.1


async def delivered_within(timeout: float | None, spool_id: str, deliver: Callable[[], Awaitable[T]]) -> T:
    """Wait for a delivery; raises `ResultTimeout` when `timeout` seconds have passed."""
    if timeout is not None:
        checks.number("timeout", timeout, 0, DELAY_MS_MAX / 1000)
    limit = asyncio.timeout(timeout)
    try:
        async with limit:
            return await deliver()
    except TimeoutError:
        if not limit.expired():
            raise
        raise ResultTimeout(f"job '{spool_id}' is still in the spool after {timeout:g} s") from None


async def until_delivered(spool_id: str, look: Callable[[], Awaitable[Spooled]]) -> Created:
    """Poll until the job is delivered; raises `NotDelivered` if it was set aside."""
    while True:
        created = created_of(spool_id, await look())
        if created is not None:
            return created
        await asyncio.sleep(LOOK_SECONDS)


def created_of(spool_id: str, spooled: Spooled) -> Created | None:
    """The store's answer to a job, None if it is still waiting; raises `NotDelivered` if it was set aside."""
    if spooled.created is None and spooled.reason is not None:
        raise NotDelivered(0, f"job '{spool_id}' was set aside in the spool: {spooled.reason}")
    return spooled.created
