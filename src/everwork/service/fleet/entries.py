"""The registry entries of workers, triggers, managers and processes: their fields, and how they are stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, Final, NamedTuple, TypeVar

import orjson

from everwork.core import checks
from everwork.engines.values import Registered
from everwork.exceptions import InvalidInput
from everwork.logs import get_logger

log = get_logger("everwork")

PROBLEM_CHARS_MAX: Final = 2_000
"""How much of a worker's startup error is stored; the error is written to the registry with every heartbeat."""

MANAGED: Final = "manager"
"""A process of a manager."""
APPLICATION: Final = "application"
"""A process that runs the functions of an application."""
STREAM: Final = "stream"
"""A program that receives jobs over a stream."""
POLLER: Final = "poller"
"""A program that polls for jobs over REST or gRPC."""
CLIENTS_MAX: Final = 200
"""How many streams one server lists, and also how many pollers."""
CLIENT_TYPES_MAX: Final = 20
"""How many types are listed for each stream or poller."""
CLIENTS_BYTES_MAX: Final = 128 * 1024
"""The maximum size of the whole list in the registry."""
READ_MAX: Final = 4_096
"""How many parsed entries are cached: a page reads all of them several times."""

# Every field added after the first version needs a default, because entries written by other versions are also read.


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEntry:
    """A worker class: its sources and settings."""

    id: str
    title: str
    description: str = ""
    sources: tuple[str, ...] = ()
    concurrency: int = 1
    execution_timeout_ms: int = 0
    has_retry: bool = False

    @property
    def types(self) -> frozenset[str]:
        """The job types that the worker takes: its declared sources and its own source."""
        return frozenset((*self.sources, own_source(self.id)))


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerEntry:
    """A trigger: when it fires (`schedule`, for display) and what (a job of `type` with `variables`, a JSON text).

    `interval_ms`, or `cron` with `timezone`, hold the schedule for programs. If `is_foreign`, only the program that
    declared the trigger can compute its times.
    """

    worker_id: str
    id: str
    title: str
    description: str = ""
    schedule: str = ""
    type: str
    variables: str = "{}"
    is_catchup: bool = False
    lifetime_ms: int | None = None
    interval_ms: int | None = None
    cron: str = ""
    timezone: str = ""
    is_foreign: bool = False

    @property
    def name(self) -> str:
        """Its name in the store."""
        return f"{self.worker_id}/{self.id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerEntry:
    """A running manager. `workers` are the ids of its workers, even while their processes are down."""

    name: str
    uuid: str = ""
    host: str = ""
    pid: int = 0
    version: str = ""
    started_at_ms: int = 0
    workers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEntry:
    """A running worker process, stream or poller, by `kind`.

    A manager's process has `workers`, by id, and `broken`, the workers that could not start, with the reasons;
    `is_replaced` means that another process is taking its place. The other kinds have `types`. Jobs are leased under
    the name `worker` or, if that is not set, under the entry's own name. `via` is the server that a stream or poller is
    connected to. `quiet_ms` is the time since the last heartbeat when the entry was written.
    """

    name: str
    kind: str = MANAGED
    worker: str = ""
    types: tuple[str, ...] = ()
    concurrency: int = 0
    via: str = ""
    manager: str = ""
    host: str = ""
    pid: int = 0
    state: str = "starting"
    workers: tuple[str, ...] = ()
    broken: Mapping[str, str] = field(default_factory=dict)
    started_at_ms: int = 0
    running: int = 0
    ended: int = 0
    restarts: int = 0
    memory_bytes: int | None = None
    quiet_ms: int = 0
    is_replaced: bool = False

    @property
    def lease_name(self) -> str:
        """The name under which the process leases jobs."""
        return self.worker or self.name


class ClientsEntry(NamedTuple):
    """The streams and pollers of a server or an in-process client; `left_out` is how many more it has."""

    workers: tuple[ProcessEntry, ...]
    left_out: int


class ProcessView(NamedTuple):
    """A process: `beat_ms` is its last heartbeat; `is_restarting` is True while it is being replaced."""

    entry: ProcessEntry
    beat_ms: int
    is_restarting: bool


class WorkerView(NamedTuple):
    """A worker, with the `processes` that run it, and `broken`: those that could not start it, with the reason."""

    entry: WorkerEntry
    is_on: bool
    processes: int
    broken: tuple[str, ...]

    @property
    def status(self) -> str:
        """ "on" or "off", for display."""
        return "on" if self.is_on else "off"


class TriggerView(NamedTuple):
    """A trigger: since when it has been known, and its last scheduled time that has passed, None if there is none yet.

    `next_ms` is the next scheduled time; None if there is none or it is unknown, as `next_unknown` explains. If the
    trigger is not served, no running manager or application would fire it.
    """

    entry: TriggerEntry
    is_on: bool
    began_ms: int | None
    last_ms: int | None
    next_ms: int | None
    next_unknown: str | None
    is_served: bool

    @property
    def status(self) -> str:
        """ "on" or "off", for display."""
        return "on" if self.is_on else "off"


class Off(NamedTuple):
    """The disabled workers, by id, and triggers, by name."""

    workers: frozenset[str]
    triggers: frozenset[str]


Entry = WorkerEntry | TriggerEntry | ManagerEntry | ProcessEntry
E = TypeVar("E", WorkerEntry, TriggerEntry, ManagerEntry, ProcessEntry)


def own_source(worker_id: str) -> str:
    """The source that every worker has in addition to its declared sources."""
    return f"worker:{worker_id}:source"


def entry_body(entry: Entry) -> str:
    """The registry body of an entry; its strings may contain any characters."""
    return orjson.dumps({name: _storable(value) for name, value in asdict(entry).items()}).decode()


def clients_body(workers: Sequence[ProcessEntry], left_out: int) -> str:
    """The registry body of a list of streams and pollers: as many as fit, the shortest entries first."""
    bodies: list[bytes] = []
    size = 0
    for body in sorted(map(_brief, workers), key=len):
        size += len(body) + 1
        if size > CLIENTS_BYTES_MAX:
            break
        bodies.append(body)
    return f'{{"workers":[{b",".join(bodies).decode()}],"left_out":{left_out + len(workers) - len(bodies)}}}'


def _brief(worker: ProcessEntry) -> bytes:
    """An entry without the fields that have their defaults."""
    values = {one.name: getattr(worker, one.name) for one in fields(worker) if one.default_factory is MISSING}
    return orjson.dumps({name: _storable(value) for name, value in values.items() if value != _DEFAULTS.get(name)})


def read_clients(entry: Registered) -> ClientsEntry:
    """A list of streams and pollers; unreadable entries are left out."""
    try:
        stored = _object(orjson.loads(entry.body))
        named = {at: one.get("name", at) if isinstance(one, dict) else at for at, one in enumerate(stored["workers"])}
        bodies = [orjson.dumps(one).decode() for one in stored["workers"]]
        found = [_read(ProcessEntry.__name__, f"{entry.name}/{named[at]}", body) for at, body in enumerate(bodies)]
        workers = tuple(one for one in found if isinstance(one, ProcessEntry))
        return ClientsEntry(workers, _number("left_out", stored["left_out"]))
    except (ValueError, TypeError, KeyError) as error:
        log.error("a registry entry cannot be read", kind="clients", name=entry.name, error=str(error))
        return ClientsEntry((), 0)


def _storable(value: Any) -> Any:
    """Make a value storable: file names and users' errors can contain characters that JSON does not allow."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, Mapping):
        return {_storable(name): _storable(text)[:PROBLEM_CHARS_MAX] for name, text in value.items()}
    return [_storable(one) for one in value] if isinstance(value, tuple) else value


def read_entries(kind: type[E], entries: list[Registered]) -> list[E]:
    """Parse entries, leaving out unreadable ones."""
    found = [_read(kind.__name__, entry.name, entry.body) for entry in entries]
    return [one for one in found if isinstance(one, kind)]


def trigger_names(entry: Registered) -> tuple[str, ...]:
    """The triggers that an application without a manager fires; none if the entry cannot be read."""
    try:
        return _texts("triggers", orjson.loads(entry.body))
    except ValueError as error:
        log.error("a registry entry cannot be read", kind="firing", name=entry.name, error=str(error))
        return ()


def _read(kind: str, name: str, body: str) -> Entry | None:
    """Parse an entry, unless its body has not changed since it was last parsed."""
    known = _parsed.get((kind, name))
    if known is not None and known[0] == body:
        return known[1]
    entry = _parse(kind, name, body)
    if known is None and len(_parsed) >= READ_MAX:
        _parsed.pop(next(iter(_parsed)), None)
    _parsed[kind, name] = body, entry
    return entry


def _parse(kind: str, name: str, body: str) -> Entry | None:
    """Parse an entry; None if it cannot be read, which is logged. Fields of other versions are ignored."""
    try:
        stored = _object(orjson.loads(body))
        known = {one.name: one.type for one in fields(_KINDS[kind])}
        return _KINDS[kind](**{key: _READERS[known[key]](key, value) for key, value in stored.items() if key in known})
    except (ValueError, TypeError) as error:
        log.error("a registry entry cannot be read", kind=kind, name=name, error=str(error))
        return None


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInput("body", f"must be an object, not {checks.shown(value)}")
    return value


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidInput(name, f"must be a string, not {checks.shown(value)}")
    return value


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(name, f"must be true or false, not {checks.shown(value)}")
    return value


def _number(name: str, value: object) -> int:
    return checks.whole_number(name, value, 0, 2**63 - 1)


def _number_or_none(name: str, value: object) -> int | None:
    return None if value is None else _number(name, value)


def _texts(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise InvalidInput(name, f"must be a list, not {checks.shown(value)}")
    return tuple(_text(name, one) for one in value)


def _text_by_name(name: str, value: object) -> Mapping[str, str]:
    return {key: _text(name, one) for key, one in _object(value).items()}


_KINDS: Final[Mapping[str, type[Entry]]] = {
    kind.__name__: kind for kind in (WorkerEntry, TriggerEntry, ManagerEntry, ProcessEntry)
}
_parsed: Final[dict[tuple[str, str], tuple[str, Entry | None]]] = {}
"""By kind and name: the body that was parsed last, and its entry."""
_DEFAULTS: Final = {one.name: one.default for one in fields(ProcessEntry)}

_READERS: Final[Mapping[Any, Callable[[str, object], Any]]] = {
    "str": _text,
    "bool": _flag,
    "int": _number,
    "int | None": _number_or_none,
    "tuple[str, ...]": _texts,
    "Mapping[str, str]": _text_by_name,
}
"""The function that reads a field, by the field's annotation."""
