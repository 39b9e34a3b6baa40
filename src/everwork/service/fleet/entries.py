"""What the registry says of workers, triggers, managers and processes: cards, and how they are written and read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar

import orjson

from everwork.core import checks
from everwork.engines.values import Registered
from everwork.exceptions import InvalidInput
from everwork.logs import get_logger

log = get_logger("everwork")

PROBLEM_CHARS_MAX: Final = 2_000
"""Of the reason why a worker does not start: it stands in the registry, and is written with every beat."""

# Every field that was added after the first version needs a default: cards of other versions are read, too.


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEntry:
    """A worker class: what it takes and how."""

    id: str
    title: str
    description: str = ""
    sources: tuple[str, ...] = ()
    concurrency: int = 1
    execution_timeout_ms: int = 0
    has_retry: bool = False

    @property
    def types(self) -> frozenset[str]:
        """The job types that it takes: its sources, and the one of its own."""
        return frozenset((*self.sources, own_source(self.id)))


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerEntry:
    """A trigger: when it fires (`schedule`, for people) and what (a job of `type` with `variables`, a JSON text).

    `interval_ms`, or `cron` with `timezone`, say it to programs; `is_foreign`: only code of its own program can tell.
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
    """A manager that lives. `workers` are the ids of those that it runs, also while their processes do not live."""

    name: str
    uuid: str = ""
    host: str = ""
    pid: int = 0
    version: str = ""
    started_at_ms: int = 0
    workers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEntry:
    """A process that lives. `workers` are ids; `broken` says which of them could not start, and why.

    Its name is also the one under which it leases jobs. `quiet_ms`: how long it had given no sign of life when its
    manager wrote this; `is_replaced`: another is to take its place.
    """

    name: str
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


class ProcessView(NamedTuple):
    """A process as it stands: `beat_ms` is its last sign of life, `is_restarting` that another takes its place."""

    entry: ProcessEntry
    beat_ms: int
    is_restarting: bool


class WorkerView(NamedTuple):
    """A worker as it stands: `processes` run it; `broken` tells those that could not start it, with the reason."""

    entry: WorkerEntry
    is_on: bool
    processes: int
    broken: tuple[str, ...]

    @property
    def status(self) -> str:
        """On or off, as people say it."""
        return "on" if self.is_on else "off"


class TriggerView(NamedTuple):
    """A trigger as it stands: since when it is known, and the last time point that has passed; None: none yet.

    `next_ms` is the next time point, None if there is none or nobody here can tell, as `next_unknown` says. If it is
    not served, nobody lives who would fire it.
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
        """On or off, as people say it."""
        return "on" if self.is_on else "off"


class Off(NamedTuple):
    """What is switched off: workers by id, triggers by name."""

    workers: frozenset[str]
    triggers: frozenset[str]


Card = WorkerEntry | TriggerEntry | ManagerEntry | ProcessEntry
C = TypeVar("C", WorkerEntry, TriggerEntry, ManagerEntry, ProcessEntry)


def own_source(worker_id: str) -> str:
    """The source that every worker has, besides those that it names."""
    return f"worker:{worker_id}:source"


def entry_body(card: Card) -> str:
    """The entry of the registry, whatever stands in the texts of the card."""
    return orjson.dumps({name: _storable(value) for name, value in asdict(card).items()}).decode()


def _storable(value: Any) -> Any:
    """File names and users' errors may have characters that JSON does not know."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, Mapping):
        return {_storable(name): _storable(text)[:PROBLEM_CHARS_MAX] for name, text in value.items()}
    return [_storable(one) for one in value] if isinstance(value, tuple) else value


def read_entries(kind: type[C], entries: list[Registered]) -> list[C]:
    """The cards of entries; those that cannot be read are left out."""
    found = [_read(kind.__name__, entry.name, entry.body) for entry in entries]
    return [card for card in found if isinstance(card, kind)]


def trigger_names(entry: Registered) -> tuple[str, ...]:
    """The triggers that somebody fires who is no manager; none, if the entry cannot be read."""
    try:
        return _texts("triggers", orjson.loads(entry.body))
    except ValueError as error:
        log.error("an entry of the registry cannot be read", card="firing", name=entry.name, error=str(error))
        return ()


@lru_cache(maxsize=1024)
def _read(kind: str, name: str, body: str) -> Card | None:
    """A card; None, and told once, if somebody has written what is none. Fields of other versions are ignored."""
    try:
        said = _object(orjson.loads(body))
        known = {one.name: one.type for one in fields(_KINDS[kind])}
        return _KINDS[kind](**{key: _READERS[known[key]](key, value) for key, value in said.items() if key in known})
    except (ValueError, TypeError) as error:
        log.error("an entry of the registry cannot be read", card=kind, name=name, error=str(error))
        return None


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInput("body", f"must be an object, not {checks.shown(value)}")
    return value


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidInput(name, f"must be a text, not {checks.shown(value)}")
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


_KINDS: Final[Mapping[str, type[Card]]] = {
    kind.__name__: kind for kind in (WorkerEntry, TriggerEntry, ManagerEntry, ProcessEntry)
}

_READERS: Final[Mapping[Any, Callable[[str, object], Any]]] = {
    "str": _text,
    "bool": _flag,
    "int": _number,
    "int | None": _number_or_none,
    "tuple[str, ...]": _texts,
    "Mapping[str, str]": _text_by_name,
}
"""How a field is read, by its annotation."""
