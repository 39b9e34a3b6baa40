"""How leased jobs reach their worker: what was not written to the connection goes back at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeVar

from google.protobuf.message import Message

from everwork.core.job import LeasedJob
from everwork.exceptions import CallTimeout
from everwork.server.grpc.gateway import Context
from everwork.service.service import JobService

MESSAGE_BYTES_MAX: Final = 3 * 1024 * 1024
"""Clients refuse messages over 4 MiB."""
FIELD_BYTES_MAX: Final = 6
"""What a message costs beyond its own bytes inside another one."""

Part = TypeVar("Part", bound=Message)


async def deliver(
    service: JobService, context: Context, jobs: Sequence[LeasedJob], messages: Iterable[tuple[bytes, int]]
) -> None:
    """Write messages that carry so many of the jobs each, in their order.

    The jobs are ours until `write` has returned for their message: if it raises, or the caller goes away,
    those that are left are handed back.
    """
    written = 0
    try:
        for message, carried in messages:
            await context.write(message)
            written += carried
    finally:
        if written < len(jobs):
            service.release_undelivered(jobs[written:])


def portions(parts: Iterable[Part], bytes_max: int = MESSAGE_BYTES_MAX) -> Iterator[list[Part]]:
    """Messages in groups, none of them over a size; one that is over it by itself stands alone."""
    group: list[Part] = []
    size = 0
    for part in parts:
        part_size = part.ByteSize() + FIELD_BYTES_MAX
        if group and size + part_size > bytes_max:
            yield group
            group, size = [], 0
        group.append(part)
        size += part_size
    if group:
        yield group


def wait_ms(context: Context, seconds_max: float) -> int:
    """How long a poll may wait: never past the caller's deadline, which it must not see as a failure.

    Once the deadline has passed, nothing may be leased any more: nobody would read it.
    """
    left: float | None = context.time_remaining()
    if left is None:
        return round(seconds_max * 1000)
    if left <= 0:
        raise CallTimeout("the caller's deadline has passed")
    return max(0, round(min(seconds_max, left - min(0.5, 0.1 + left * 0.05)) * 1000))
