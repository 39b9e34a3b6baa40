"""Enqueues jobs, by type or by function, with options, in an event loop or blocking."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar, Unpack, cast, overload

from everwork.app.handle import AnyHandle, JobCall, JobHandle, Load, SyncJobHandle
from everwork.app.options import FOREIGN_NAMES, OPTIONS, JobOptions, Options
from everwork.codec.json import require_object
from everwork.core import checks
from everwork.core.job import NewJob
from everwork.core.leasing import Created
from everwork.exceptions import InvalidInput
from everwork.service.policies import attempts_in_code

if TYPE_CHECKING:
    from everwork.app.after_commit import AfterCommitEnqueuer, SyncAfterCommitEnqueuer
    from everwork.app.app import Everwork
    from everwork.app.engine_host import EngineHost
    from everwork.app.function import JobFunction

P = ParamSpec("P")
R = TypeVar("R")
H = TypeVar("H", bound=AnyHandle)

Pair = tuple[str, Mapping[str, Any]]
"""A type and the arguments of its handler."""


TYPES_KEPT_MAX: Final = 1_000


class Door:
    """Creates the jobs of an application."""

    def __init__(
        self, app: Everwork, host: EngineHost, functions: Mapping[str, JobFunction[..., Any, ..., Any]]
    ) -> None:
        self.app = app
        self.host = host
        self.functions = functions
        self._handles: dict[tuple[type[AnyHandle], Load | None], type[AnyHandle]] = {}

    def handle(self, kind: type[H], load: Load | None, created: Created) -> H:
        """The handle of a created job."""
        bound = self._handles.get((kind, load))
        if bound is None:
            bound = self._handles[kind, load] = kind.bound(self.app, load)
        return cast("H", bound.of(created))

    def create(self, jobs: list[NewJob], tx: object) -> Coroutine[Any, Any, list[Created]]:
        """Create jobs, in the caller's transaction if there is one."""
        return self.host.create(jobs) if tx is None else self.host.create_in(tx, jobs)

    def create_blocking(self, jobs: list[NewJob], tx: object) -> list[Created]:
        """Like `create`, from a thread without an event loop."""
        return self.host.create_blocking(jobs) if tx is None else self.host.create_in_blocking(tx, jobs)


# By function --------------------------------------------------------------------------------------------


class _FunctionCalls(Generic[P, R]):
    """A function and options, for jobs that have not been created yet."""

    def __init__(self, door: Door, function: JobFunction[P, R, ..., Any], options: Options) -> None:
        self._door = door
        self._function = function
        self._options = options

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> JobCall[R]:
        """Prepare a job without creating it, for `app.enqueue_many`."""
        _refuse_tx(self._options.tx)
        return JobCall(self._new(args, kwargs), self._function.load)

    def _new(self, given: tuple[Any, ...], arguments: dict[str, Any]) -> NewJob:
        return new_function_job(self._function, given, arguments, self._options)

    def _with(self, options: JobOptions) -> Options:
        return Options(self._function.type, {**self._options.given, **options})


class FunctionEnqueuer(_FunctionCalls[P, R]):
    """Enqueues jobs of one function, with options: returned by `send.using(delay=60)`."""

    async def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Create a job with the function's arguments and return its handle. The job is stored when this returns.

        Raises `InvalidInput` if an argument does not match the function, and `EngineUnavailable` if the store cannot be
        reached.
        """
        job = self._new(args, kwargs)
        [created] = await self._door.create([job], self._options.tx)
        handle: JobHandle[R] = self._door.handle(JobHandle, self._function.load, created)
        return handle

    def using(self, **options: Unpack[JobOptions]) -> FunctionEnqueuer[P, R]:
        """Add options, such as `delay` or `dedupe_key`, to those set before; see `JobOptions`.

        Example: `await send.using(delay=60).enqueue(to="ada@example.com")`.
        """
        return FunctionEnqueuer(self._door, self._function, self._with(options))

    def within(self, tx: object) -> FunctionEnqueuer[P, R]:
        """Create jobs in your own database transaction; short for `using(tx=tx)`."""
        return self.using(tx=_given_tx(tx))

    def handle(self, key: int) -> JobHandle[R]:
        """Return a handle for an existing job of this function, by its key."""
        handle: JobHandle[R] = self._door.handle(JobHandle, self._function.load, Created(checks.job_key(key)))
        return handle

    @property
    def sync(self) -> SyncFunctionEnqueuer[P, R]:
        """A blocking version, for synchronous code."""
        return SyncFunctionEnqueuer(self._door, self._function, self._options)


class SyncFunctionEnqueuer(_FunctionCalls[P, R]):
    """`function.sync`: enqueues jobs of one function from synchronous code."""

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> SyncJobHandle[R]:
        """Create a job with the function's arguments and return its handle. The job is stored when this returns.

        Raises `InvalidInput` if an argument does not match the function, and `EngineUnavailable` if the store cannot be
        reached.
        """
        job = self._new(args, kwargs)
        [created] = self._door.create_blocking([job], self._options.tx)
        handle: SyncJobHandle[R] = self._door.handle(SyncJobHandle, self._function.load, created)
        return handle

    def using(self, **options: Unpack[JobOptions]) -> SyncFunctionEnqueuer[P, R]:
        """Add options to those set before; see `JobOptions`."""
        return SyncFunctionEnqueuer(self._door, self._function, self._with(options))

    def within(self, tx: object) -> SyncFunctionEnqueuer[P, R]:
        """Create jobs in your own database transaction; short for `using(tx=tx)`."""
        return self.using(tx=_given_tx(tx))

    def handle(self, key: int) -> SyncJobHandle[R]:
        """Return a handle for an existing job of this function, by its key."""
        handle: SyncJobHandle[R] = self._door.handle(SyncJobHandle, self._function.load, Created(checks.job_key(key)))
        return handle


def new_function_job(
    function: JobFunction[P, R, ..., Any], given: tuple[Any, ...], arguments: dict[str, Any], options: Options
) -> NewJob:
    """A validated job of a function."""
    if given:
        arguments = function.arguments.named(given, arguments)
    try:
        dumped = function.arguments.dump(arguments)
    except InvalidInput as error:
        name = error.field
        option = name if name in OPTIONS else FOREIGN_NAMES.get(name)
        if option and name in arguments and name not in function.arguments.names:
            own = function.__name__ if function.__name__.isidentifier() else "app"
            raise _is_option(name, f"{own}.using({option}=...).enqueue(...)", function.type) from None
        raise
    # The declared policy applies even before it is stored.
    return options.job(dumped, attempts_in_code(function.type, function.policy_said))


# By type ------------------------------------------------------------------------------------------------


class _Calls:
    """Options for jobs of any type that have not been created yet."""

    def __init__(self, door: Door, options: Mapping[str, Any]) -> None:
        self._door = door
        self._options = options
        self._tx = options.get("tx")
        self._by_type: dict[str, Options] = {}
        if options:
            self._of_type("any")  # Refuses invalid options here.

    def call(self, type: str, arguments: Mapping[str, Any] | None = None, /, **kwargs: Any) -> JobCall[Any]:
        """Prepare a job of a type without creating it, for `enqueue_many`."""
        _refuse_tx(self._tx)
        return self._call(type, () if arguments is None else (arguments,), kwargs)

    def _calls(self, jobs: Iterable[JobCall[Any] | Pair]) -> list[JobCall[Any]]:
        """The validated jobs; an error names the index of the first invalid one."""
        if not isinstance(jobs, Iterable):
            raise InvalidInput("jobs", f"must be calls, or pairs of a type and arguments, not {checks.shown(jobs)}")
        calls = []
        for at, item in enumerate(jobs):
            try:
                calls.append(self._of(item))
            except InvalidInput as error:
                field = f"jobs[{at}].{error.field}" if error.field else f"jobs[{at}]"
                raise InvalidInput(field, error.problem) from None
        return calls

    def _of(self, item: JobCall[Any] | Pair) -> JobCall[Any]:
        if not isinstance(item, JobCall):
            try:
                type, arguments = item
            except (TypeError, ValueError):
                raise InvalidInput("", _NO_CALL) from None
            return self._call(type, (), {**require_object("arguments", arguments)})
        for name in self._options.keys() - {"tx"}:
            raise InvalidInput(name, "must be set for each call: write send.using(...).call(...)")
        return item

    def _of_type(self, type: Any) -> Options:
        """The options for a type, checked once."""
        options = self._by_type.get(type) if isinstance(type, str) else None
        if options is None:
            if callable(type):
                raise InvalidInput(
                    "type", f"must be a type or a function declared with @app.job, not {checks.shown(type)}"
                )
            options = Options(checks.name("type", type), self._options)
            if len(self._by_type) < TYPES_KEPT_MAX:
                self._by_type[type] = options
        return options

    def _call(self, target: object, given: tuple[Any, ...], arguments: dict[str, Any]) -> JobCall[Any]:
        if isinstance(target, _FunctionCalls):
            of_function: JobFunction[Any, Any, ..., Any] = target._function  # noqa: SLF001 - of this module
            options = Options(of_function.type, {**target._options.given, **self._options})  # noqa: SLF001
            return JobCall(new_function_job(of_function, given, arguments, options), of_function.load)
        options = self._of_type(target)
        function = self._door.functions.get(options.template.type)
        if given:
            arguments = {**_one_object(given), **arguments}
        elif function is None:
            for name in sorted(OPTIONS & arguments.keys()):
                raise _is_option(name, f"app.using({name}=...).enqueue({target!r}, ...)", target, _AS_ARGUMENT)
        if function is None:
            return JobCall(options.job(arguments))
        return JobCall(new_function_job(function, (), arguments, options), function.load)


class Enqueuer(_Calls):
    """Enqueues jobs of any type or function, with the same options: returned by `app.using(delay=60)`."""

    @overload
    async def enqueue(self, target: FunctionEnqueuer[P, R], /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]: ...
    @overload
    async def enqueue(
        self, target: str, arguments: Mapping[str, Any] | None = None, /, **kwargs: Any
    ) -> JobHandle[Any]: ...
    async def enqueue(self, target: Any, /, *args: Any, **kwargs: Any) -> JobHandle[Any]:
        """Create a job and return its handle. The job is stored when this returns::

            await app.enqueue("email-send", to="ada@example.com")

        `target` is a job function, or the name of a type; its handler can be in another program. All other arguments
        are passed to the handler. For a type, they can also be given as one mapping. Pass options with `using`.

        Raises `InvalidInput` if an argument is invalid, and `EngineUnavailable` if the store cannot be reached.
        """
        call = self._call(target, args, kwargs)
        [created] = await self._door.create([call.new], self._tx)
        handle: JobHandle[Any] = self._door.handle(JobHandle, call.load, created)
        return handle

    @overload
    async def enqueue_many(self, jobs: Iterable[JobCall[R]]) -> list[JobHandle[R]]: ...
    @overload
    async def enqueue_many(self, jobs: Iterable[JobCall[Any] | Pair]) -> list[JobHandle[Any]]: ...
    async def enqueue_many(self, jobs: Iterable[JobCall[Any] | Pair]) -> list[JobHandle[Any]]:
        """Create many jobs in one transaction, all or none, and return their handles::

            await app.enqueue_many([send.call(to="ada"), ("email-send", {"to": "bob"})])

        Each item is a call such as `send.call(...)`, or a pair of a type and its arguments. An error names the index of
        the first invalid item.
        """
        calls = self._calls(jobs)
        created = await self._door.create([call.new for call in calls], self._tx)
        return [self._door.handle(JobHandle, call.load, one) for one, call in zip(created, calls, strict=True)]

    def using(self, **options: Unpack[JobOptions]) -> Enqueuer:
        """Set options for the jobs to create: `await app.using(delay=60).enqueue("email-send", to="ada")`.

        Options: `delay` (seconds) or `run_at` (a datetime with time zone), `priority`, `tenant`, `dedupe_key`,
        `limit_key`, `correlation_id`, `expires_at`, `timeout`, `headers`, `max_attempts`, `retry`, `tx`. `JobOptions`
        describes each of them.
        """
        return Enqueuer(self._door, {**self._options, **options})

    def within(self, tx: object) -> Enqueuer:
        """Create jobs in your own database transaction; short for `using(tx=tx)`."""
        return self.using(tx=_given_tx(tx))

    def after_commit(self, session: object) -> AfterCommitEnqueuer:
        """Create jobs after `session` commits, and none if it rolls back. For jobs stored apart from your data.

        `session` is a SQLAlchemy session, async or not, or a Django connection, on any database. If the jobs are in the
        same database as your data, use `within` instead: here, a crash between the commit and the creation of the jobs
        loses them. If the jobs cannot be created, the error is logged and raised by the commit, but your data is
        already committed.
        """
        from everwork.app.after_commit import AfterCommitEnqueuer, waiting_for_commit  # noqa: PLC0415 - few need it

        return AfterCommitEnqueuer(self._door, self._options, waiting_for_commit(self._door, session))

    @property
    def sync(self) -> SyncEnqueuer:
        """A blocking version, for synchronous code."""
        return SyncEnqueuer(self._door, self._options)


class SyncEnqueuer(_Calls):
    """`Enqueuer` for synchronous code: each call blocks."""

    @overload
    def enqueue(self, target: FunctionEnqueuer[P, R], /, *args: P.args, **kwargs: P.kwargs) -> SyncJobHandle[R]: ...
    @overload
    def enqueue(
        self, target: str, arguments: Mapping[str, Any] | None = None, /, **kwargs: Any
    ) -> SyncJobHandle[Any]: ...
    def enqueue(self, target: Any, /, *args: Any, **kwargs: Any) -> SyncJobHandle[Any]:
        """Create a job of a type or a function; see `Enqueuer.enqueue`."""
        call = self._call(target, args, kwargs)
        [created] = self._door.create_blocking([call.new], self._tx)
        handle: SyncJobHandle[Any] = self._door.handle(SyncJobHandle, call.load, created)
        return handle

    @overload
    def enqueue_many(self, jobs: Iterable[JobCall[R]]) -> list[SyncJobHandle[R]]: ...
    @overload
    def enqueue_many(self, jobs: Iterable[JobCall[Any] | Pair]) -> list[SyncJobHandle[Any]]: ...
    def enqueue_many(self, jobs: Iterable[JobCall[Any] | Pair]) -> list[SyncJobHandle[Any]]:
        """Create many jobs, all or none; see `Enqueuer.enqueue_many`."""
        calls = self._calls(jobs)
        created = self._door.create_blocking([call.new for call in calls], self._tx)
        return [self._door.handle(SyncJobHandle, call.load, one) for one, call in zip(created, calls, strict=True)]

    def using(self, **options: Unpack[JobOptions]) -> SyncEnqueuer:
        """Set options; see `Enqueuer.using`."""
        return SyncEnqueuer(self._door, {**self._options, **options})

    def within(self, tx: object) -> SyncEnqueuer:
        """Create jobs in your own database transaction; short for `using(tx=tx)`."""
        return self.using(tx=_given_tx(tx))

    def after_commit(self, session: object) -> SyncAfterCommitEnqueuer:
        """Create jobs after the session commits; see `Enqueuer.after_commit`."""
        from everwork.app.after_commit import SyncAfterCommitEnqueuer, waiting_for_commit  # noqa: PLC0415

        return SyncAfterCommitEnqueuer(self._door, self._options, waiting_for_commit(self._door, session))


def _one_object(given: tuple[Any, ...]) -> Mapping[str, Any]:
    if len(given) > 1:
        raise InvalidInput("arguments", "must be passed by name or as one mapping if the target is a type")
    return require_object("arguments", given[0])


def _given_tx(tx: object) -> object:
    """Refuse None: the jobs would be created outside the caller's transaction."""
    if tx is None:
        raise InvalidInput("tx", "must be a connection or session, not None")
    return tx


def _refuse_tx(tx: object) -> None:
    if tx is not None:
        raise InvalidInput("tx", "applies to the whole batch: write app.using(tx=...).enqueue_many(calls)")


def _is_option(name: str, instead: str, type: object, otherwise: str = "") -> InvalidInput:
    return InvalidInput(name, f"is an option of the job, not an argument of '{type}': write {instead}{otherwise}")


_NO_CALL: Final = "must be a call, such as send.call(...), or a pair of a type and its arguments"
_AS_ARGUMENT: Final = "; to pass an argument of this name, use a mapping: app.call(type, {...})"
