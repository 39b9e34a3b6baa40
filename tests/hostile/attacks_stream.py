"""Attacks with the key of a worker: on its stream, and with leases and responses that it does not read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from everwork.proto import work_pb2
from tests.hostile.attacks_grpc import MIB, SECONDS_MAX, WORK, Attack, connected, grpc_message, push_all, with_key
from tests.hostile.http2 import INITIAL_WINDOW_SIZE, SETTINGS, Http2, frame

ACTIVATE: Final = "/everwork.v1.DeskService/Activate"
LIST: Final = "/everwork.v1.DeskService/List"
HELLO: Final = work_pb2.FromWorker(hello=work_pb2.Hello(worker="hostile"))


@contextmanager
def unfinished_after_hello(
    port: int, key: str, streams: int = 100, bytes: int = 4 * MIB, *, connections: int = 1
) -> Iterator[Attack]:
    """Worker streams whose second message never ends: its last byte is missing."""
    hello = grpc_message(HELLO.SerializeToString())
    message = memoryview(hello + b"\0" + bytes.to_bytes(4, "big") + b"\0" * (bytes - 1))
    with connected(port, connections) as attack:
        left = {(one, one.open(WORK, with_key(key))): message for one in attack.connections for _ in range(streams)}
        push_all(attack, left)
        yield attack


@contextmanager
def worker_messages(port: int, key: str, messages: Sequence[work_pb2.FromWorker], streams: int = 1) -> Iterator[Attack]:
    """Worker streams that send these messages."""
    data = memoryview(b"".join(grpc_message(one.SerializeToString()) for one in messages))
    with connected(port, 1) as attack:
        [one] = attack.connections
        push_all(attack, {(one, one.open(WORK, with_key(key))): data for _ in range(streams)})
        one.ping()
        yield attack


@contextmanager
def unread_activations(port: int, key: str, types: Sequence[str], max_jobs: int = 1_000) -> Iterator[Attack]:
    """Activations whose jobs are never read, one for each of these types."""
    requests = [work_pb2.ActivateRequest(type=type, worker="reads-nothing", limit=max_jobs) for type in types]
    with unread_calls(port, key, ACTIVATE, [one.SerializeToString() for one in requests]) as attack:
        yield attack


@contextmanager
def unread_calls(port: int, key: str, path: str, requests: Sequence[bytes]) -> Iterator[Attack]:
    """Calls whose responses are never read."""
    with connected(port, 1) as attack:
        [one] = attack.connections
        _read_nothing(one)
        for request in requests:
            one.push(one.open(path, with_key(key)), grpc_message(request), end=True)
        one.ping()
        yield attack


@contextmanager
def unread_verdicts(port: int, key: str, count: int, bytes: int = 1_000_000) -> Iterator[Attack]:
    """A worker that reports large results and reads no verdict: first it fills the server's list of verdicts."""
    unknown = [work_pb2.Outcome(key=number, attempt=1) for number in range(1, 10_001)]
    large = work_pb2.Outcome(key=1, attempt=1, complete=work_pb2.Complete(result=b"1" * bytes))
    messages = [HELLO, *[work_pb2.FromWorker(outcomes=unknown)] * 3, *[work_pb2.FromWorker(outcomes=[large])] * count]
    with connected(port, 1) as attack:
        [one] = attack.connections
        _read_nothing(one)
        data = memoryview(b"".join(grpc_message(message.SerializeToString()) for message in messages))
        push_all(attack, {(one, one.open(WORK, with_key(key))): data})
        yield attack


def _read_nothing(one: Http2) -> None:
    one.send(frame(SETTINGS, 0, INITIAL_WINDOW_SIZE.to_bytes(2, "big") + bytes(4)))
    one.receive(SECONDS_MAX)
