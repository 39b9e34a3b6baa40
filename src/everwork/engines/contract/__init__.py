"""The engine contract: what every job store must do. The docstrings are the contract.

Rules for every call:

- A call is atomic: once it returns, it has taken full effect; if it raises, it has had no effect.
- The caller has validated the values (`codec.new_job`); engines do not validate them again.
- Batches return one result per item, in the order of the request. A refused item does not affect the others.
- Time is the engine's own clock (G11). Callers pass durations, which the engine adds to its current time.
- A change that the job's state does not allow is reported as a `Judged`, not as an exception. Exceptions are for the
  operator: `EngineUnavailable` and its subclasses. After `EngineUnavailable` from a writing call, its effect is
  unknown; repeating `settle`, `cancel` or a deduplicated `create` is safe.
- A refused item changes nothing: no state, no history, no count.
- Damaged data affects only its own job or record. A damaged text is returned as far as it can be decoded, and is then
  not valid JSON; a record that cannot be read is left out of every answer, and logged.

Only `activate`, `subscribe`, `fire`, breakers and limits are decided inside the store, based on the numbers in the
type's policy (`core.policy`, `core.breaker`). Every other rule is decided by the pure core.
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
"""Returns the current instant in milliseconds UTC."""


class Engine(Lifecycle, JobFlow, Changes, Questions, Registry, Triggers, Moving):
    """A store that holds jobs and enforces every rule. Its calls are grouped by topic, one module each."""
