"""Errors of a Redis server and its connection, translated to Everwork's own: one line that says what to do."""

from __future__ import annotations

import re
from typing import Final

from everwork.exceptions import BadConfiguration, EngineBusy, EngineError, EngineUnavailable

RIGHTS: Final = "+@all -@dangerous +info ~{namespace}* resetchannels &{namespace}:*"
"""The ACL rules that a user needs."""

_LOGIN_REFUSED = "refuses the password; correct it in the URL or in EVERWORK_REDIS_PASSWORD"
_MOVING = "is moving the store to another node; nothing is lost, retry when it is done"
_FORBIDDEN = f"denies this user a required command; grant {RIGHTS} (see docs/reference/redis.md)"
_ADVICE: tuple[tuple[str, type[EngineError], str], ...] = (
    ("WRONGPASS ", BadConfiguration, _LOGIN_REFUSED),
    ("NOAUTH ", BadConfiguration, "requires a password; set it in the URL or in EVERWORK_REDIS_PASSWORD"),
    ("ERR AUTH <password> called without", BadConfiguration, "has no password set; remove it from the URL"),
    ("ERR invalid password", BadConfiguration, _LOGIN_REFUSED),
    ("NOPERM ", BadConfiguration, _FORBIDDEN),
    ("The user executing the script can't", BadConfiguration, _FORBIDDEN),
    ("ERR ACL failure in script", BadConfiguration, _FORBIDDEN),
    ("ERR DB index", BadConfiguration, "has no such database; choose another one in the URL, such as /0"),
    ("OOM ", EngineUnavailable, "is out of memory and accepts no writes; raise maxmemory, or let retention free some"),
    ("READONLY ", EngineUnavailable, "has become a read-only replica; use the primary, or wait for the failover"),
    ("MISCONF ", EngineUnavailable, "cannot write to its disk and accepts no writes; free space there, see its log"),
    ("NOREPLICAS ", EngineUnavailable, "has fewer replicas than min-replicas-to-write requires; start them"),
    ("LOADING ", EngineUnavailable, "is still loading its data; retry later"),
    ("MASTERDOWN ", EngineUnavailable, "has lost its primary; wait for the failover"),
    ("CLUSTERDOWN ", EngineUnavailable, "is a cluster that is down; check CLUSTER INFO"),
    ("MOVED ", EngineUnavailable, "has moved the store to another node; retry"),
    ("ASK ", EngineUnavailable, _MOVING),
    ("TRYAGAIN ", EngineUnavailable, _MOVING),
    ("BUSY ", EngineBusy, "is busy with another client's script; wait, or run SCRIPT KILL"),
)

_LOSES_ITS_NODE = ("READONLY ", "MOVED ", "CLUSTERDOWN ", "MASTERDOWN ")
_IN_SCRIPT = re.compile(r"ERR Error running script .*?@user_script:\s?\d+: (?:@user_script:\s?\d+: )?-?", re.DOTALL)


def loses_its_node(error: Exception) -> bool:
    """Whether the node must be looked up again after this error."""
    return _bare(error).startswith(_LOSES_ITS_NODE)


def of_reply(error: Exception, where: str) -> Exception:
    """The error for a reply; an error inside a script is a bug in Everwork, not a reason to retry."""
    bare, text = _bare(error), str(error)
    for prefix, error_class, advice in _ADVICE:
        if bare.startswith(prefix):
            return error_class(f"Redis at {where} {advice}")
    if "user_script" in text:
        return RuntimeError(f"a script failed on Redis at {where}: {' '.join(text.split())[:300]}")
    return EngineUnavailable(f"Redis at {where} refuses: {' '.join(text.split())[:300]}")


def _bare(error: Exception) -> str:
    """The message of an error, without the script details that Redis 6.2 adds."""
    text = str(error)
    return text[wrapped.end() :] if (wrapped := _IN_SCRIPT.match(text)) else text


def unreachable(where: str, error: BaseException) -> EngineUnavailable:
    """The error for a server that cannot be reached."""
    cause = str(error) or type(error).__name__
    return EngineUnavailable(f"cannot reach Redis at {where}: {cause}; start it, or correct the URL")


def not_replicated(where: str, acknowledged: int, replicas: int) -> EngineUnavailable:
    """The error for a write that a failover may lose."""
    return EngineUnavailable(
        f"Redis at {where} has {acknowledged} of {replicas} replicas with the last write, so a failover may lose it; "
        "check INFO replication, or lower ?replicas="
    )


def lost(where: str, error: BaseException) -> EngineUnavailable:
    """The error for a connection that was lost during a call."""
    return EngineUnavailable(f"lost Redis at {where}: {error}")
