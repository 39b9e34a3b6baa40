"""Turns: how many requests of one API key are in progress, and how many of them run while other keys are active.

The keys of one tenant are one party. If only one party is active, it runs up to `running_alone` requests concurrently.
Once several are active, each runs only a few at a time: as many as the event loop can serve without delaying others.
The rest wait here, at no cost, while the party's keys take turns. So a request of a quiet party never waits behind the
queue of a noisy one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from everwork.aio.clocks import Seconds
from everwork.exceptions import TooManyRequests
from everwork.service.access.principal import Party, Principal

BUSY_RETRY_MS: Final = 1_000
ACTIVE_SECONDS: Final = 2.5
"""A party without requests counts as active for one to two of these intervals."""
LAG_SECONDS_MAX: Final = 0.0005
"""If the event loop takes longer than this to get to new work, each party runs fewer requests at a time."""
PROBE_SECONDS: Final = 0.001
FEWER: Final = 0.75
MORE: Final = 0.02
"""After each measurement, this number is multiplied by `FEWER`, or increased by `MORE`."""
RUNNING_FIRST: Final = 16
"""How many requests each party runs at a time once another one is active, until the event loop has been measured."""
GIVE_WAY_SECONDS: Final = 0.003
"""How long a large call waits for the running requests of others, after each slice of its work."""
UNLIMITED: Final = 1 << 30


class Budget(NamedTuple):
    """How many requests of one key may be in progress, and `tenant_factor` times as many of one tenant's keys together.

    A party runs `running_min` to `running_max` requests at a time while others are active, otherwise `running_alone`.
    """

    what: str
    setting: str
    per_key: int
    tenant_factor: int
    running_min: int
    running_max: int
    running_alone: int = UNLIMITED


class _Party:
    """The keys of one tenant, or one key that is not restricted to tenants."""

    __slots__ = ("held", "is_fresh", "large", "queue", "running")

    def __init__(self) -> None:
        self.held = 0
        self.running = 0
        self.large: set[asyncio.Task[Any]] = set()
        """The tasks of its large calls, which let others go first."""
        self.is_fresh = True
        self.queue: dict[_Account, None] = {}
        """The keys with waiting requests, in the order of their turns."""


class _Account:
    """The requests in progress of one key."""

    __slots__ = ("held", "party", "waiting")

    def __init__(self, party: _Party) -> None:
        self.party = party
        self.held = 0
        self.waiting: dict[asyncio.Future[None], None] = {}


class Turns:
    """Counts and orders the requests of all keys against one budget. Bound to one event loop."""

    def __init__(self, budget: Budget, clock: Seconds = time.perf_counter) -> None:
        self._budget = budget
        self._tenant_max = budget.per_key * budget.tenant_factor
        self._clock = clock
        self._accounts: dict[str, _Account] = {}
        self._parties: dict[Party, _Party] = {}
        self._queued: dict[_Party, None] = {}
        """The parties with waiting requests."""
        self._running_max = budget.running_alone
        self._level = 0.0
        """`running_max` before it is rounded down."""
        self._is_contended = False
        self.on_contention: Callable[[bool], object] | None = None
        """Called when several parties become active, with True, and when they no longer are."""
        self._is_probing = False
        self._pass_began = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def try_enter(self, principal: Principal) -> bool:
        """Count a request; False if it must `wait` for its turn. Refused if the key has too many in progress."""
        account = self._accounts.get(principal.id) or self._open(principal)
        party = account.party
        if account.held >= self._budget.per_key or party.held >= self._tenant_max:
            raise self._too_many(account)
        account.held += 1
        party.held += 1
        party.is_fresh = True
        if self._is_contended and not self._is_probing:
            self._probe()
        if party.running < self._running_max:
            party.running += 1
            return True
        return False

    def require_room(self, principal: Principal) -> None:
        """Refuse a request that would be refused anyway, before its body is read."""
        account = self._accounts.get(principal.id)
        if account is not None and (account.held >= self._budget.per_key or account.party.held >= self._tenant_max):
            raise self._too_many(account)

    async def wait(self, principal: Principal) -> None:
        """Wait for the turn of a request that could not enter directly; if it is cancelled, it is not counted."""
        account = self._accounts[principal.id]
        party = account.party
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        account.waiting[turn] = None
        party.queue[account] = None
        self._queued[party] = None
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                party.running -= 1  # The turn came at the same moment as the cancellation.
            account.waiting.pop(turn, None)
            if not account.waiting:
                party.queue.pop(account, None)
            if not party.queue:
                self._queued.pop(party, None)
            self._uncount(account)
            raise

    async def pace(self, principal: Principal) -> None:
        """Make a request wait for its turn that must not be refused any more, such as a poll that has leased jobs."""
        account = self._accounts.get(principal.id) or self._open(principal)
        party = account.party
        party.is_fresh = True
        if self._is_contended and party.running >= self._running_max:
            account.held += 1
            party.held += 1
            await self.wait(principal)
            self.leave(principal)

    async def give_way(self, principal: Principal) -> None:
        """Let others go first between two slices of a large call."""
        account, task = self._accounts.get(principal.id), asyncio.current_task()
        if self._is_contended and account is not None and task is not None and task not in account.party.large:
            account.party.large.add(task)
            task.add_done_callback(account.party.large.discard)
        await self.let_others_run(principal)

    async def let_others_run(self, principal: Principal) -> None:
        """Wait until no other party's request runs, or time is up; for work without a turn.

        One pass of the event loop is not enough: each step of the engine's threads would wait for a slice.
        """
        party, ends = self._parties.get(principal.party), self._clock() + GIVE_WAY_SECONDS
        await asyncio.sleep(0)
        if not self._is_contended:
            return
        while self._are_others_running(party) and self._clock() < ends:  # noqa: ASYNC110 - an event costs others
            await asyncio.sleep(PROBE_SECONDS)

    def _are_others_running(self, party: _Party | None) -> bool:
        """Whether other parties run requests other than large calls; large calls do not wait for each other."""
        return any(one.running > len(one.large) for one in self._parties.values() if one is not party)

    def leave(self, principal: Principal) -> None:
        """End a request that has entered."""
        account = self._accounts[principal.id]
        party = account.party
        if party.large and (task := asyncio.current_task()) is not None:
            party.large.discard(task)  # It may go on without a turn, to send its response.
        party.running -= 1
        account.held -= 1
        party.held -= 1
        if party.queue:
            self._admit(party)

    def of(self, principal: Principal) -> _Turn:
        """A turn as a context manager, for work that is not on the hot path."""
        return _Turn(self, principal)

    def held(self, principal: Principal) -> int:
        """How many requests of a key are in progress."""
        account = self._accounts.get(principal.id)
        return 0 if account is None else account.held

    def running(self, principal: Principal) -> int:
        """How many requests of a key's party are running."""
        account = self._accounts.get(principal.id)
        return 0 if account is None else account.party.running

    @property
    def running_max(self) -> int:
        """How many requests of one party may run now."""
        return self._running_max

    @property
    def is_contended(self) -> bool:
        """Whether several parties are active."""
        return self._is_contended

    # Parties --------------------------------------------------------------------------------------

    def _open(self, principal: Principal) -> _Account:
        name = principal.party
        party = self._parties.get(name)
        if party is None:
            self._parties[name] = party = _Party()
            self._judge_contention()
        self._accounts[principal.id] = account = _Account(party)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(ACTIVE_SECONDS, self._forget_idle)
        return account

    def _forget_idle(self) -> None:
        for id, account in list(self._accounts.items()):
            if not account.held and not account.party.is_fresh:
                del self._accounts[id]
        for name, party in list(self._parties.items()):
            if not party.held and not party.is_fresh:
                del self._parties[name]
            party.is_fresh = False
        self._judge_contention()
        self._timer = None
        if self._accounts:
            self._timer = asyncio.get_running_loop().call_later(ACTIVE_SECONDS, self._forget_idle)

    def _judge_contention(self) -> None:
        is_contended = len(self._parties) > 1
        if is_contended != self._is_contended:
            self._is_contended = is_contended
            first = min(RUNNING_FIRST, self._budget.running_max)
            self._level = first
            self._set_running_max(first if is_contended else self._budget.running_alone)
            if self.on_contention is not None:
                self.on_contention(is_contended)

    # Order ----------------------------------------------------------------------------------------

    def _uncount(self, account: _Account) -> None:
        party = account.party
        account.held -= 1
        party.held -= 1
        if party.queue:
            self._admit(party)

    def _admit(self, party: _Party) -> None:
        """Admit waiting requests while there is room, one of each key in turn."""
        while party.queue and party.running < self._running_max:
            account = next(iter(party.queue))
            del party.queue[account]
            turn = next(iter(account.waiting))
            del account.waiting[turn]
            if account.waiting:
                party.queue[account] = None
            if not turn.done():  # Otherwise it was cancelled, and `wait` has not noticed yet.
                party.running += 1
                turn.set_result(None)
        if not party.queue:
            self._queued.pop(party, None)

    def _probe(self) -> None:
        """Measure how long one whole pass of the event loop takes: this is how long others wait for each step."""
        if self._budget.running_min == self._budget.running_max:
            return  # There is nothing to adapt.
        self._is_probing = True
        asyncio.get_running_loop().call_soon(self._start_pass)

    def _start_pass(self) -> None:
        self._pass_began = self._clock()
        asyncio.get_running_loop().call_soon(self._adapt)

    def _adapt(self) -> None:
        self._is_probing = False
        if not self._is_contended:
            return
        budget = self._budget
        if self._clock() - self._pass_began > LAG_SECONDS_MAX:
            self._level = max(budget.running_min, self._level * FEWER)
        else:
            self._level = min(budget.running_max, self._level + MORE)
        if int(self._level) != self._running_max:
            self._set_running_max(int(self._level))
        if self._queued:
            # If no new request arrives, nothing else measures the loop; if it is idle, more requests may run.
            self._is_probing = True
            asyncio.get_running_loop().call_later(PROBE_SECONDS, self._start_pass)

    def _set_running_max(self, running_max: int) -> None:
        self._running_max = running_max
        for party in list(self._queued):
            self._admit(party)

    def _too_many(self, account: _Account) -> TooManyRequests:
        budget = self._budget
        own = f"{account.held:,} of this API key are in progress (setting {budget.setting})"
        if account.held < budget.per_key:
            together = f"{account.party.held:,} of this tenant's API keys are in progress"
            own = f"{together} (settings {budget.setting} and tenant_factor)"
        return TooManyRequests(f"too many {budget.what}: {own}; retry later", BUSY_RETRY_MS)


class _Turn:
    """Holds a turn: `async with turns.of(principal):`."""

    __slots__ = ("_principal", "_turns")

    def __init__(self, turns: Turns, principal: Principal) -> None:
        self._turns = turns
        self._principal = principal

    async def __aenter__(self) -> Self:
        if not self._turns.try_enter(self._principal):
            await self._turns.wait(self._principal)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._turns.leave(self._principal)
