"""everwork types: policy, list, pause, resume, open-breaker, reset-breaker, delete; everwork groups: list, drop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from everwork.aio.clocks import host_clock_ms
from everwork.cli.options import AsJson, EngineUrl, TypeName, listing_app, number, require_terminal
from everwork.cli.output import Column, one_line, span, table, write, write_json, write_rich
from everwork.cli.session import use_admin
from everwork.codec.json import decode_policy
from everwork.core import checks, policy_fields
from everwork.core.breaker import BreakerState
from everwork.core.instants import utc_text
from everwork.core.policy import DEFAULT_TYPE_POLICY, RETRY_FIELDS, default_text
from everwork.core.states import State
from everwork.exceptions import InvalidInput
from everwork.service.admin import GroupView, PolicyView, TypeView
from everwork.service.policies import OFF, fields_from_texts, stored_fields
from everwork.service.reports import group_report, policy_report, type_report

COLUMNS = (
    Column("TYPE", width_min=20),
    Column("STATUS", whole=True),
    *(Column(state.name, whole=True, right=True) for state in State),
    Column("LAST POLLED", whole=True, right=True),
    Column("POLICY", one_line=True),
)

GROUP_COLUMNS = (
    Column("TYPE", width_min=20),
    Column("GROUP", width_min=20),
    *(Column(state.name, whole=True, right=True) for state in State),
    Column("TYPE LAST POLLED", whole=True, right=True),
)

app = listing_app()
groups_app = listing_app()


def _option(name: str) -> Any:
    """The option for a field that is a number."""
    field = policy_fields.named(name)
    about = f"{field.label}. {field.hint} {field.allowed}."
    metavar = field.unit.upper() or "NUMBER"
    return typer.Option(rich_help_panel=field.section, metavar=metavar, help=about, show_default=default_text(field))


@app.callback()
def types() -> None:
    """List, pause and resume job types; set their policies.

    Example:
        everwork types pause email-send
    """


@app.command()
def policy(  # noqa: PLR0913 - the fields of a policy
    type: TypeName,
    *,
    max_attempts: Annotated[str | None, _option("max_attempts")] = None,
    base: Annotated[str | None, _option("base")] = None,
    factor: Annotated[str | None, _option("factor")] = None,
    cap: Annotated[str | None, _option("cap")] = None,
    jitter: Annotated[str | None, _option("jitter")] = None,
    breaker_failures: Annotated[str | None, _option("breaker_failures")] = None,
    breaker_seconds: Annotated[str | None, _option("breaker_seconds")] = None,
    max_running: Annotated[str | None, _option("max_running")] = None,
    max_running_per_key: Annotated[str | None, _option("max_running_per_key")] = None,
    rate: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=policy_fields.LIMITS,
            metavar="JOBS/SECONDS",
            help="Rate limit: 100/60 starts at most 100 jobs per 60 seconds.",
            show_default="no limit",
        ),
    ] = None,
    failed_job_retry_hours: Annotated[str | None, _option("failed_job_retry_hours")] = None,
    failed_job_retry_rounds: Annotated[str | None, _option("failed_job_retry_rounds")] = None,
    keep_completed_hours: Annotated[str | None, _option("keep_completed_hours")] = None,
    keep_failed_hours: Annotated[str | None, _option("keep_failed_hours")] = None,
    strict: Annotated[
        bool | None,
        typer.Option(
            "--strict/--no-strict",
            rich_help_panel=policy_fields.ERRORS,
            help=policy_fields.named("strict").hint,
        ),
    ] = None,
    error: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel=policy_fields.ERRORS,
            metavar="RULE",
            help="Error rule: STRATEGY=text:PART or STRATEGY=exception:CLASS. STRATEGY is retryable, rate_limited, "
            "temporary or permanent. Repeatable; replaces all rules of the type.",
        ),
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Restore the default policy.")] = False,
    engine: EngineUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show or change the policy of a type.

    Options change single fields; the others stay as they are. The value off restores the default of a field.

    Examples:
        everwork types policy email-send
        everwork types policy email-send --max-attempts 10 --base 2 --rate 100/60
        everwork types policy email-send --error permanent=exception:ValueError
        everwork types policy email-send --max-running off
        everwork types policy email-send --clear
    """
    texts = {
        "max_attempts": max_attempts, "base": base, "factor": factor, "cap": cap, "jitter": jitter,
        "breaker_failures": breaker_failures, "breaker_seconds": breaker_seconds, "max_running": max_running,
        "max_running_per_key": max_running_per_key, "failed_job_retry_hours": failed_job_retry_hours,
        "failed_job_retry_rounds": failed_job_retry_rounds, "keep_completed_hours": keep_completed_hours,
        "keep_failed_hours": keep_failed_hours,
    }  # fmt: skip
    given: dict[str, Any] = {name: number(text) for name, text in texts.items() if text is not None}
    given |= _rate(rate) | _errors(error or ()) | ({} if strict is None else {"strict": strict})
    view = _apply_policy(engine, type, given, clear=clear)
    if as_json:
        write_json(policy_report(type, view))
    else:
        own = "" if view.is_own else " (default)"
        retry = {name: getattr(view.policy.retry, name) for name in RETRY_FIELDS}
        write(f"{one_line(type)}: {policy_text(retry | dict(view.fields))}{own}\n")


@app.command("list")
def list_types(engine: EngineUrl = None, as_json: AsJson = False) -> None:
    """List types with status, job counts and policy.

    Example:
        everwork types list
    """
    found = use_admin(engine, lambda admin: admin.types())
    if as_json:
        write_json({"types": [type_report(view) for view in found]})
    elif found:
        write_rich(table(COLUMNS, [_row(view) for view in found]))
    else:
        write("no types yet; create a job: everwork jobs create email-send\n")


@app.command()
def pause(type: TypeName, engine: EngineUrl = None, as_json: AsJson = False) -> None:
    """Stop starting jobs of a type; running jobs continue.

    Example:
        everwork types pause email-send
    """
    use_admin(engine, lambda admin: admin.pause(type))
    _write_done(type, {"paused": True}, "paused", as_json)


@app.command()
def resume(type: TypeName, engine: EngineUrl = None, as_json: AsJson = False) -> None:
    """Resume a paused type.

    Example:
        everwork types resume email-send
    """
    use_admin(engine, lambda admin: admin.resume(type))
    _write_done(type, {"paused": False}, "resumed", as_json)


@app.command("open-breaker")
def open_breaker(
    type: TypeName,
    seconds: Annotated[str, typer.Option(metavar="SECONDS", help="Time the breaker stays open, 1 to 86,400.")] = "60",
    engine: EngineUrl = None,
    as_json: AsJson = False,
) -> None:
    """Open the circuit breaker of a type.

    No job of the type starts while the breaker is open. Then one job runs as a probe: if it succeeds, the breaker
    closes.

    Example:
        everwork types open-breaker http-request --seconds 600
    """
    seconds_open = use_admin(engine, lambda admin: admin.open_breaker(type, number(seconds)))
    _write_done(type, {"seconds": seconds_open}, f"breaker open for {seconds_open:g} s", as_json)


@app.command("reset-breaker")
def reset_breaker(type: TypeName, engine: EngineUrl = None, as_json: AsJson = False) -> None:
    """Close the circuit breaker of a type.

    Its jobs can start immediately.

    Example:
        everwork types reset-breaker http-request
    """
    was_open = use_admin(engine, lambda admin: admin.reset_breaker(type))
    done = "breaker closed" if was_open else "breaker was not open; nothing to do"
    _write_done(type, {"was_open": was_open}, done, as_json)


@app.command()
def delete(
    type: TypeName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    engine: EngineUrl = None,
    as_json: AsJson = False,
) -> None:
    """Delete a type, with its finished jobs, policy and statistics.

    Refused while the type has unfinished jobs, a schedule or running workers, or is configured in the server's settings
    file. Unused types are deleted automatically, by default a day after their last poll. Asks for confirmation unless
    --yes is given.

    Example:
        everwork types delete email-send
    """
    if not yes:
        require_terminal()
        typer.confirm(f"Delete {one_line(type)} and its finished jobs permanently?", abort=True, err=True)
    deleted = use_admin(engine, lambda admin: admin.delete_type(type))
    _write_done(type, {"deleted": deleted}, f"deleted, with {deleted:,} finished job{'s' * (deleted != 1)}", as_json)


def _write_done(type: str, report: dict[str, Any], done: str, as_json: bool) -> None:
    if as_json:
        write_json({"type": type, **report})
    else:
        write(f"{one_line(type)}: {done}\n")


def _row(view: TypeView) -> tuple[str, ...]:
    info = view.info
    own = "" if info.policy is None else policy_text(stored_fields(info.policy))
    return one_line(info.type), _status(view), *_counts(view.counts), _last_asked(info.last_asked_ms), own


def _status(view: TypeView) -> str:
    """The first applicable reason that keeps the type's jobs from starting, or `active`."""
    info = view.info
    if info.paused:
        return "paused"
    match info.breaker:
        case BreakerState.OPEN:
            return f"breaker open until {_clock(info.breaker_open_until_ms)}"
        case BreakerState.HALF_OPEN if info.breaker_probe_key is not None:
            return f"breaker half-open, probe {info.breaker_probe_key}"
        case BreakerState.HALF_OPEN:
            return "breaker half-open"
        case BreakerState.CLOSED if info.rate_full_until_ms is not None:
            return f"rate limit reached until {_clock(info.rate_full_until_ms)}"
        case _:
            return "at its limit" if _is_full(view) else "active"


def _is_full(view: TypeView) -> bool:
    """Whether the type is at its limit. False for a type with groups, because each has its own limit."""
    most = decode_policy(view.info.policy).max_running
    return most is not None and not view.info.groups and view.counts[State.PROCESSING] >= most


def _clock(instant_ms: int | None) -> str:
    """A time of day, without the date, because breakers and rate windows end soon."""
    return "" if instant_ms is None else f"{utc_text(instant_ms)[11:19]} UTC"


# The policy -------------------------------------------------------------------------------------------


def policy_text(fields: Mapping[str, Any]) -> str:
    """The fields of a policy in one line."""
    parts = dict(fields)
    errors = parts.pop("errors", ())
    shown = [f"{name} {_value_text(value)}" for name, value in parts.items()]
    rules = [f"{rule.get('strategy')} {rule.get('exception') or repr(rule.get('text'))}" for rule in errors]
    return one_line(", ".join([*shown, *(["errors " + "; ".join(rules)] if rules else [])]))


def _value_text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _apply_policy(engine: str | None, type: str, given: dict[str, Any], *, clear: bool) -> PolicyView:
    """Apply the requested change, if any; return the effective policy."""
    if clear and given:
        raise InvalidInput("clear", f"cannot be combined with {', '.join(given)}")
    if clear:
        use_admin(engine, lambda admin: admin.clear_policy(type))
        return PolicyView(DEFAULT_TYPE_POLICY, {})
    if given:
        checks.name("type", type)
        fields = fields_from_texts(given)
        # The values were checked first: this can create the store, and a mistake must not do so.
        return use_admin(engine, lambda admin: admin.set_policy(type, fields, changes_only=True), creates=True)
    return use_admin(engine, lambda admin: admin.policy(type))


def _rate(text: str | None) -> dict[str, Any]:
    """The fields of a rate: `100/60` is 100 jobs in 60 seconds, and `100` is 100 jobs per minute."""
    if text is None:
        return {}
    if text == OFF:
        return {"rate_jobs": None, "rate_seconds": None}
    jobs, slash, seconds = text.partition("/")
    return {"rate_jobs": number(jobs), "rate_seconds": number(seconds) if slash else None}


def _errors(texts: Sequence[str]) -> dict[str, Any]:
    if not texts:
        return {}
    return {"errors": None if list(texts) == [OFF] else [_rule(text) for text in texts]}


def _rule(text: str) -> dict[str, str]:
    strategy, _, rest = text.partition("=")
    kind, colon, part = rest.partition(":")
    if kind not in ("text", "exception") or not colon:
        allowed = "STRATEGY=text:PART or STRATEGY=exception:CLASS, such as temporary=text:maintenance"
        raise InvalidInput("error", f"must be {allowed}, not {checks.shown(text)}")
    return {"strategy": strategy, kind: part}


# Groups -----------------------------------------------------------------------------------------------


@groups_app.callback()
def groups() -> None:
    """List and delete consumer groups.

    Each additional group of a type receives its own copy of every job.

    Example:
        everwork groups list
    """


@groups_app.command("list")
def list_groups(
    type: Annotated[str | None, typer.Argument(metavar="TYPE", help="Job type.", show_default=False)] = None,
    engine: EngineUrl = None,
    as_json: AsJson = False,
) -> None:
    """List groups with job counts.

    Example:
        everwork groups list email-send
    """
    found = [view for view in use_admin(engine, lambda admin: admin.groups()) if type in (None, view.type)]
    if as_json:
        write_json({"groups": [group_report(view) for view in found]})
    elif found:
        write_rich(table(GROUP_COLUMNS, [_group_row(view) for view in found]))
    else:
        write("no additional groups\n" if type is None else f"{one_line(type)}: no additional groups\n")


@groups_app.command()
def drop(
    type: Annotated[str, typer.Argument(metavar="TYPE", help="Job type.", show_default=False)],
    group: Annotated[str, typer.Argument(metavar="GROUP", help="Group of this type.", show_default=False)],
    engine: EngineUrl = None,
    as_json: AsJson = False,
) -> None:
    """Delete a group and cancel its pending jobs.

    Running jobs continue.

    Example:
        everwork groups drop order-placed reporting
    """
    cancelled = use_admin(engine, lambda admin: admin.drop_group(type, group))
    if as_json:
        write_json({"type": type, "group": group, "cancelled": cancelled})
    else:
        write(f"deleted group {one_line(group)} of {one_line(type)}; {cancelled:,} pending jobs cancelled\n")


def _group_row(view: GroupView) -> tuple[str, ...]:
    return one_line(view.type), one_line(view.group), *_counts(view.counts), _last_asked(view.last_asked_ms)


# Both -------------------------------------------------------------------------------------------------


def _counts(counts: Mapping[State, int]) -> tuple[str, ...]:
    return tuple(f"{counts[state]:,}" if counts[state] else "-" for state in State)


def _last_asked(instant_ms: int | None) -> str:
    return "never" if instant_ms is None else f"{span(host_clock_ms() - instant_ms)} ago"
