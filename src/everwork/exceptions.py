"""The errors of Everwork, and the three signals that a handler can raise.

Errors are grouped by who must act:

    EverworkError
    ├── InvalidInput              the caller: a value is wrong; names the field and what is allowed
    ├── JobError                  the job's state does not allow it
    │   ├── JobNotFound           no such job
    │   ├── WrongState            the job is in another state
    │   ├── LeaseLost             the attempt no longer holds the lease
    │   ├── NotDelivered          the job is in a local spool and has no key yet, or was set aside there
    │   ├── ResultNotStored       `result()` of a completed job whose result is not JSON-serializable or too large
    │   └── JobFailed             `result()` of a job that failed
    │       └── JobCancelled      `result()` of a job that was cancelled
    ├── NotFound                  no such API key, group or other object that is not a job
    │   └── NothingMatches        a filter matches nothing that can be changed
    ├── ResultTimeout             the job did not finish within the timeout of `result()`
    ├── CallTimeout               a server did not answer within the caller's deadline
    ├── AccessError               the holder of the key
    │   ├── Unauthenticated       no key, or one that is unknown, expired or revoked
    │   ├── PermissionDenied      the key does not allow this, or not for this tenant
    │   └── TooManyRequests       rate limit exceeded; says when to retry
    └── EngineError               the operator
        ├── BadConfiguration      an engine URL or setting is wrong
        ├── EngineUnavailable     the store cannot be reached, opened or written
        │   └── SpoolFull         the engine is unavailable and the local spool is full
        ├── EngineBusy            another process holds the store's write lock
        └── SchemaMismatch        the store was written by a newer version

Signals (not errors; they end an attempt):

    Signal
    ├── Fail      failed permanently, kept as a dead letter
    ├── Reject    dropped: failed, marked rejected, never requeued automatically
    └── Retry     retried within max_attempts
"""

from __future__ import annotations


class EverworkError(Exception):
    """The base class of every error that Everwork raises."""


class InvalidInput(EverworkError, ValueError):
    """A value from the caller is invalid. `field` names it, `problem` says what is wrong and what is allowed."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class JobError(EverworkError):
    """The job's state does not allow the call. `key` is the job's key."""

    def __init__(self, key: int, message: str) -> None:
        super().__init__(message)
        self.key = key


class JobNotFound(JobError):
    """There is no job with this key; it may have been deleted. `key` is 0 if the given text is not a valid key."""

    def __init__(self, key: int, message: str | None = None) -> None:
        super().__init__(key, message or f"Job '{key}' not found")


class WrongState(JobError):
    """The job is in a state that does not allow the call; for example, a completed job cannot be cancelled."""


class LeaseLost(JobError):
    """The attempt no longer holds the job's lease."""


class NotDelivered(JobError):
    """The job is in the local spool: it is waiting for the engine, or was set aside because the engine refused it."""


class ResultNotStored(JobError):
    """The job is completed, but its handler's return value could not be stored."""


class JobFailed(JobError):
    """Raised by `result()` if the job failed. `error` is its last error."""

    state = "failed"

    def __init__(self, key: int, message: str, error: str = "") -> None:
        super().__init__(key, message)
        self.error = error


class JobCancelled(JobFailed):
    """Raised by `result()` if the job was cancelled. `error` is the reason, if one was given."""

    state = "cancelled"


class NotFound(EverworkError):
    """The object (such as an API key or a group) does not exist. For jobs, see `JobNotFound`."""

    def __init__(self, what: str, name: str) -> None:
        super().__init__(f"{what} '{name}' not found")


class NothingMatches(NotFound):
    """A filter matches nothing that can be changed."""

    def __init__(self, message: str) -> None:
        EverworkError.__init__(self, message)


class ResultTimeout(EverworkError, TimeoutError):
    """The job did not finish within the caller's timeout."""


class CallTimeout(EverworkError, TimeoutError):
    """A server did not answer within the caller's deadline; the request may or may not have been carried out."""


class AccessError(EverworkError):
    """The caller's API key does not allow the call."""


class Unauthenticated(AccessError):
    """There is no API key, or the key is unknown, expired or revoked."""


class PermissionDenied(AccessError):
    """The API key does not allow the call, or does not allow it for this tenant."""


class TooManyRequests(AccessError):
    """The rate limit of the API key is exceeded; try again after `retry_after_ms` milliseconds."""

    def __init__(self, message: str, retry_after_ms: int) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class EngineError(EverworkError):
    """The store needs the operator's attention."""


class BadConfiguration(EngineError):
    """A setting or an engine URL is wrong."""


class EngineUnavailable(EngineError):
    """The store cannot be reached, opened or written."""


class SpoolFull(EngineUnavailable):
    """The engine is unavailable, and the local spool has reached its maximum size."""


class EngineBusy(EngineError):
    """Another process holds the store's write lock."""


class SchemaMismatch(EngineError):
    """This program does not know the version of the store's schema."""


class Signal(Exception):
    """Raised by a handler to end its attempt with a specific outcome."""


class Fail(Signal):
    """Raise this to fail the job permanently: it becomes a dead letter, even if attempts are left."""

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail)
        self.detail = detail


class Reject(Signal):
    """Raise this if the job is invalid: it fails, is marked as rejected, and is never requeued automatically."""

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail)
        self.detail = detail


class Retry(Signal):
    """Raise this to retry the job within its `max_attempts`: `raise Retry("not ready yet", delay=30)`.

    `delay` is in seconds (default: by the policy). `Retry(30)` sets only the delay.
    """

    def __init__(self, detail: str | float = "", *, delay: float | None = None, **unknown: object) -> None:
        for name in unknown:
            raise InvalidInput(
                name,
                "Retry accepts only a message and a delay; set the number of attempts in the retry policy: "
                "WorkerSettings(retry=RetryPolicy(max_attempts=100)) or @app.job(..., retry=RetryPolicy(...))",
            )
        super().__init__(detail)
        # A single number is the delay.
        is_delay = isinstance(detail, int | float) and delay is None
        self.detail: object = "" if is_delay else detail
        self.delay = float(detail) if is_delay else delay
