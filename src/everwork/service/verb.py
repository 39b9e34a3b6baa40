"""A verb is a method that declares who may call it, how keys restricted to tenants are treated, and what is audited.

    @verb(Permission.JOBS, tenants=OWNER, audit="jobs.cancel")
    async def cancel(self, key: int, reason: str = "") -> State: ...

The key of the caller is checked before the method runs, and the change is recorded after it. Callers in the same
process (`IN_PROCESS`) are neither checked nor recorded.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

from everwork.aio.loops import shielded
from everwork.core import checks
from everwork.service.access.principal import ANYBODY, Permission, Principal, sufficient_for

if TYPE_CHECKING:
    from everwork.service.access.audit import Audit


class Tenants(Enum):
    """How a verb treats a key restricted to tenants. The method enforces this, unless a value is checked here."""

    OWNER = "the job must belong to its tenants"
    """Checked here: the first argument is the job's key."""
    ITEMS = "every job in the call must belong to its tenants"
    CONFINED = "applies to its tenants' jobs only"
    CUT = "returns only its tenants' data"
    ANY = "no restriction"
    UNBOUND = "refused"
    """Checked here: the call affects all tenants."""


class Audited(Enum):
    """How calls are recorded in the audit log."""

    EACH = "each call"
    BY_MINUTE = "each call by a person; calls by a program are aggregated per minute"
    ITSELF = "itself"
    """The method records its own calls, because only it knows the target or the details."""


OWNER, ITEMS, CONFINED, CUT, ANY, UNBOUND = Tenants
EACH, BY_MINUTE, ITSELF = Audited


@dataclass(frozen=True, slots=True)
class Rule:
    """Who may call a verb: the key needs one of the permissions. `audit` holds the actions that are recorded."""

    permissions: tuple[Permission, ...]
    tenants: Tenants
    audit: tuple[str, ...] = ()
    audited: Audited = EACH
    withheld: tuple[str, ...] = ()
    """Arguments that are recorded as `changed`, without their values; such a call gets its own entry."""
    _sufficient: frozenset[Permission] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_sufficient", sufficient_for(*self.permissions))
        if not self.permissions:
            raise TypeError("a verb needs at least one permission")
        if len(self.audit) > 1 and self.audited is not ITSELF:
            raise TypeError(f"only the method itself knows which of {self.audit} it did")

    @property
    def is_recorded(self) -> bool:
        """Whether calls are recorded here, and not by the method."""
        return bool(self.audit) and self.audited is not ITSELF

    def admit(self, principal: Principal) -> None:
        """Refuse a caller that lacks permission."""
        principal.require_any(self._sufficient)
        if self.tenants is UNBOUND:
            principal.require_unbound()


class Caller:
    """The caller: who it is, where it calls from, and whether it is a person."""

    __slots__ = ("_origin", "is_person", "principal")

    def __init__(self, principal: Principal, origin: str | Callable[[], str], is_person: bool = False) -> None:
        self.principal = principal
        self._origin = origin
        self.is_person = is_person

    @property
    def origin(self) -> str:
        """Where the call came from, determined only when it is recorded."""
        return self._origin if isinstance(self._origin, str) else self._origin()


IN_PROCESS: Final = Caller(ANYBODY, "in process")
"""The application that uses the store directly."""


S = TypeVar("S", bound="ForCaller")
P = ParamSpec("P")
T = TypeVar("T")
Method = Callable[Concatenate[S, P], Coroutine[Any, Any, T]]
Verb = Callable[..., Coroutine[Any, Any, Any]]

_RULES: Final[dict[Callable[..., Any], Rule]] = {}
"""The rules, keyed by the verb function, because an attribute would be copied to any wrapper of it."""


class ForCaller:
    """The base of classes with verbs: created for one caller, cheap enough for a single call.

    Every public member of a class and its bases must be a verb, otherwise the import fails, unless `is_guarded=False`.
    """

    __slots__ = ("caller",)

    def __init_subclass__(cls, *, is_guarded: bool = True) -> None:
        for kind in cls.__mro__ if is_guarded else ():
            for name, value in vars(kind).items() if kind not in (ForCaller, object) else ():
                if _is_public(name, value) and not _is_verb(value):
                    raise TypeError(f"{cls.__name__}.{name} must declare who may call it, with @verb, or be private")

    def __init__(self, caller: Caller) -> None:
        self.caller = caller

    @property
    def principal(self) -> Principal:
        """The holder of the caller's key."""
        return self.caller.principal

    @property
    def _audit(self) -> Audit:
        raise NotImplementedError

    async def _require_own(self, keys: Sequence[int]) -> None:
        """Refuse jobs that do not exist or belong to tenants that the caller has no access to."""
        raise NotImplementedError

    async def _audited(
        self,
        action: str,
        target: str,
        act: Callable[[], Awaitable[T]],
        detail: Mapping[str, Any] | None = None,
        *,
        by_minute: bool = False,
    ) -> T:
        """Perform an action and record it, even if the caller disconnects. Refused actions are not recorded."""

        async def act_and_record() -> T:
            result = await act()
            if by_minute:
                await self._audit.record_call(self.principal, action, target, self.caller.origin, detail or {})
            else:
                await self._record(action, target, detail)
            return result

        return await shielded(act_and_record())

    async def _record(
        self, action: str, target: str, detail: Mapping[str, Any] | None, name: str | None = None
    ) -> None:
        if self.caller is not IN_PROCESS:
            await self._audit.record(self.principal, action, target, self.caller.origin, detail, name=name)


def verb(
    *permissions: Permission,
    tenants: Tenants,
    audit: str | tuple[str, ...] = (),
    audited: Audited = EACH,
    withheld: tuple[str, ...] = (),
) -> Callable[[Method[S, P, T]], Method[S, P, T]]:
    """Declare who may call a method: callers whose key has one of the permissions.

    In the audit log, the first argument is the target; the others, unless empty, are the details, without the values
    of those that are `withheld`.
    """
    rule = Rule(permissions, tenants, (audit,) if isinstance(audit, str) else audit, audited, withheld)

    def declare(method: Method[S, P, T]) -> Method[S, P, T]:
        signature = _checked_signature(method, rule)
        first, is_recorded = [*signature.parameters, ""][1], rule.is_recorded
        is_plain = tenants is not OWNER and not is_recorded  # Only the caller is checked here, once.

        @wraps(method)
        def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
            if self.caller is IN_PROCESS:
                return method(self, *args, **kwargs)
            if is_plain:  # Raises at the call; other verbs raise when they are awaited.
                rule.admit(self.caller.principal)
                return method(self, *args, **kwargs)
            return admitted(self, *args, **kwargs)

        async def admitted(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
            caller = self.caller
            rule.admit(caller.principal)
            if tenants is OWNER and caller.principal.tenants:
                await self._require_own([checks.job_key(args[0] if args else kwargs[first])])
            if not is_recorded:
                return await method(self, *args, **kwargs)
            target, detail = _target_and_detail(signature.bind(self, *args, **kwargs))
            if withheld and (given := detail.keys() & set(withheld)):
                detail |= dict.fromkeys(given, "changed")
                return await self._audited(rule.audit[0], target, partial(method, self, *args, **kwargs), detail)
            by_minute = audited is BY_MINUTE and not caller.is_person
            act = partial(method, self, *args, **kwargs)
            return await self._audited(rule.audit[0], target, act, detail, by_minute=by_minute)

        _RULES[call] = rule
        return call

    return declare


def rule_of(verb: Verb | Rule) -> Rule:
    """The rule of a verb; a rule is returned as it is."""
    return verb if isinstance(verb, Rule) else _RULES[verb]


def rules_of(service: type) -> dict[str, Rule]:
    """The rules of all verbs of a class, in the order of their declaration."""
    classes = reversed(service.__mro__)
    return {name: rule_of(one) for kind in classes for name, one in vars(kind).items() if _is_verb(one)}


def _checked_signature(method: Callable[..., Any], rule: Rule) -> inspect.Signature:
    if not inspect.iscoroutinefunction(method):
        raise TypeError(f"{method.__qualname__} must be a coroutine to be a verb")
    signature = inspect.signature(method)
    if (rule.tenants is OWNER or rule.is_recorded) and len(signature.parameters) < 2:
        raise TypeError(f"{method.__qualname__} must have an argument that names its target")
    return signature


def _target_and_detail(given: inspect.BoundArguments) -> tuple[str, dict[str, Any]]:
    given.apply_defaults()
    (_, target), *others = list(given.arguments.items())[1:]
    return str(target), {name: value for name, value in others if value not in (None, "") and value is not False}


def _is_public(name: str, value: object) -> bool:
    return not name.startswith("_") and (callable(value) or hasattr(value, "__get__"))


def _is_verb(value: object) -> bool:
    return inspect.isfunction(value) and value in _RULES
