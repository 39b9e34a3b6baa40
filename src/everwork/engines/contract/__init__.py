"""The engine contract: what every store of jobs must do. The docstrings are the contract.

Rules that hold for every call:

- A call is one atomic step. It happened as a whole when it returned, or not at all when it raised.
- Values have been checked by the caller (`codec.new_job`); engines do not check them again.
- Batches answer item by item, in the order of the request. One refused item does not disturb the others.
- Time is the engine's own clock (G11). Durations come in, the engine adds its now.
- What cannot be done because of the job's state is a `Judged`, not an exception. Exceptions are for
  the operator: `EngineUnavailable` and its kin. After `EngineUnavailable` from a writing call its effect
  is unknown; repeating `settle`, `cancel` or a deduplicated `create` is safe.
- A refused item changes nothing: no state, no history, no count.

Only `activate`, `subscribe`, `fire`, breaker and limits decide inside the store, by the numbers of the type's policy
(`core.policy`, `core.breaker`). Every other rule is decided by the pure core.
"""

from __future__ import annotations

from collections.abc import Callable

from everwork.engines.contract.changes import Changes
from everwork.engines.contract.jobs import JobFlow
from everwork.engines.contract.lifecycle import Lifecycle
from everwork.engines.contract.moving import Moving
from everwork.engines.contract.questions import Questions
from everwork.engines.contract.registry import Registry
from everwork.engines.contract.triggers import Triggers

Clock = Callable[[], int]
"""Returns the instant, in milliseconds UTC."""


class Engine(Lifecycle, JobFlow, Changes, Questions, Registry, Triggers, Moving):
    """A store that holds jobs and enforces every rule; its topics are in the modules beside this one."""
