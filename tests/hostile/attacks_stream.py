"""Attacks with the key of a worker: on its stream, and with leases that it does not read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from everwork.proto import work_pb2
from tests.hostile.attacks_grpc import MIB, WORK, Attack, connected, grpc_message, push_all, with_key
from tests.hostile.attacks_requests import read_nothing

ACTIVATE: Final = "/everwork.v1.DeskService/Activate"
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
def worker_messages(
    port: int, key: str, messages: Sequence[work_pb2.FromWorker], streams: int = 1, *, end: bool = False
) -> Iterator[Attack]:
    """Worker streams that send these messages; with `end`, they then close their side."""
    data = memoryview(b"".join(grpc_message(one.SerializeToString()) for one in messages))
    with connected(port, 1) as attack:
        [one] = attack.connections
        push_all(attack, {(one, one.open(WORK, with_key(key))): data for _ in range(streams)}, end=end)
        one.ping()
        yield attack


@contextmanager
def outcomes_without_reading(port: int, key: str, type: str, count: int, bytes: int = 4_000_000) -> Iterator[Attack]:
    """A worker that reports outcomes as large as a message may be, and reads nothing, so that none is settled."""
    hello = work_pb2.FromWorker(hello=HELLO.hello, grants=[work_pb2.Grant(type=type, credits=1_000)])
    complete = work_pb2.Complete(result=b"1" * bytes)
    outcome = work_pb2.FromWorker(outcomes=[work_pb2.Outcome(key=1, attempt=1, complete=complete)])
    with _without_reading(port, key, hello, outcome, count) as attack:
        yield attack


@contextmanager
def heartbeats_without_reading(port: int, key: str, count: int, leases: int = 20_000) -> Iterator[Attack]:
    """A worker that extends leases which it does not have, and does not read that they are lost."""
    lost = [work_pb2.Lease(key=(1 << 60) + number, attempt=1) for number in range(leases)]
    heartbeat = work_pb2.FromWorker(heartbeats=lost)
    with _without_reading(port, key, HELLO, heartbeat, count) as attack:
        yield attack


@contextmanager
def _without_reading(
    port: int, key: str, hello: work_pb2.FromWorker, message: work_pb2.FromWorker, count: int
) -> Iterator[Attack]:
    """A worker that sends one message many times, and reads nothing."""
    with connected(port, 1) as attack:
        [one] = attack.connections
        read_nothing(one)
        stream = one.open(WORK, with_key(key))
        one.push(stream, grpc_message(hello.SerializeToString()))
        one.ping()
        push_all(attack, {(one, stream): memoryview(grpc_message(message.SerializeToString()) * count)})
        yield attack


@contextmanager
def unread_activations(port: int, key: str, types: Sequence[str], max_jobs: int = 1_000) -> Iterator[Attack]:
    """Activations whose jobs are never read, one for each of these types."""
    with connected(port, 1) as attack:
        [one] = attack.connections
        read_nothing(one)
        for type in types:
            request = work_pb2.ActivateRequest(type=type, worker="reads-nothing", limit=max_jobs)
            one.push(one.open(ACTIVATE, with_key(key)), grpc_message(request.SerializeToString()), end=True)
        one.ping()
        yield attack
