"""Each error of a server is the same error in the client."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest

from everwork import exceptions as e
from everwork.client.errors import WRITE_FAILED, error_of
from everwork.server.errors import TABLE

MESSAGES = {
    e.InvalidInput: "priority: must be small",
    e.JobNotFound: "Job '7' not found",
    e.NotFound: "key 'k' not found",
}


@pytest.mark.parametrize("kind", TABLE, ids=lambda kind: kind.__name__)
def test_an_error_comes_back_as_itself(kind: type[e.EverworkError]) -> None:
    text = MESSAGES.get(kind, "Job '7' says no")
    error = error_of(refused(TABLE[kind].grpc, text, TABLE[kind].code))
    assert (type(error), str(error)) == (kind, text)
    assert not isinstance(error, e.JobError) or error.key == 7


def test_a_hint_when_to_come_again_is_kept() -> None:
    error = error_of(refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "slow down", "too_many_requests", hint="250"))
    assert isinstance(error, e.TooManyRequests)
    assert error.retry_after_ms == 250


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, e.EngineUnavailable),
        (grpc.StatusCode.CANCELLED, e.EngineUnavailable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, e.CallTimeout),
        (grpc.StatusCode.UNAUTHENTICATED, e.Unauthenticated),
        (grpc.StatusCode.PERMISSION_DENIED, e.PermissionDenied),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, e.TooManyRequests),
        (grpc.StatusCode.INVALID_ARGUMENT, e.InvalidInput),
        (grpc.StatusCode.UNIMPLEMENTED, e.BadConfiguration),
        (grpc.StatusCode.INTERNAL, e.EverworkError),
    ],
)
def test_what_stands_between_has_no_codes_and_is_understood_by_its_status(
    status: grpc.StatusCode, kind: type[e.EverworkError]
) -> None:
    assert type(error_of(refused(status, "a proxy says no"))) is kind


def test_a_failed_write_means_that_the_server_is_unavailable() -> None:
    error = error_of(refused(grpc.StatusCode.INTERNAL, WRITE_FAILED))
    assert isinstance(error, e.EngineUnavailable)
    assert str(error) == "the stream ended while the client was writing; gRPC lost the server's reason"


def refused(
    status: grpc.StatusCode, text: str, code: str | None = None, hint: str | None = None
) -> grpc.aio.AioRpcError:
    """A call that ended so."""
    said = [(name, value) for name, value in (("everwork-code", code), ("retry-after-ms", hint)) if value]
    return grpc.aio.AioRpcError(status, grpc.aio.Metadata(), grpc.aio.Metadata(*said), text, None)
