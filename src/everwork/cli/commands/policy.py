"""everwork types policy: what a type's policy says, shown and changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from everwork.cli.options import AsJson, EngineUrl, TypeName, number
from everwork.cli.output import one_line, write, write_json
from everwork.cli.session import administer
from everwork.core import checks
from everwork.core.policy import DEFAULT_TYPE_POLICY, RETRY_FIELDS
from everwork.exceptions import InvalidInput
from everwork.service.admin import PolicyView
from everwork.service.policies import OFF, fields_from_texts
from everwork.service.reports import policy_report


def policy(  # noqa: PLR0913 - what a policy may say
    type: TypeName,
    *,
    max_attempts: Annotated[str | None, typer.Option(metavar="NUMBER", help="1 to 100.")] = None,
    base: Annotated[str | None, typer.Option(metavar="SECONDS", help="The first delay.")] = None,
    factor: Annotated[str | None, typer.Option(metavar="NUMBER", help="How much longer each delay is.")] = None,
    cap: Annotated[str | None, typer.Option(metavar="SECONDS", help="The longest delay.")] = None,
    jitter: Annotated[str | None, typer.Option(metavar="SHARE", help="0 to 1.")] = None,
    breaker_failures: Annotated[
        str | None, typer.Option(metavar="NUMBER", help="So many failures in a row open the breaker.")
    ] = None,
    breaker_seconds: Annotated[str | None, typer.Option(metavar="SECONDS", help="So long it stays open.")] = None,
    max_running: Annotated[str | None, typer.Option(metavar="NUMBER", help="Jobs at once, over all workers.")] = None,
    max_running_per_key: Annotated[str | None, typer.Option(metavar="NUMBER", help="Of each limit key.")] = None,
    rate: Annotated[
        str | None, typer.Option(metavar="JOBS/SECONDS", help="So many jobs may start in so many seconds.")
    ] = None,
    failed_job_retry_hours: Annotated[
        str | None, typer.Option(metavar="HOURS", help="When dead letters come back by themselves.")
    ] = None,
    failed_job_retry_rounds: Annotated[str | None, typer.Option(metavar="NUMBER", help="How often they do.")] = None,
    keep_completed_hours: Annotated[
        str | None, typer.Option(metavar="HOURS", help="How long completed and cancelled jobs are kept.")
    ] = None,
    keep_failed_hours: Annotated[str | None, typer.Option(metavar="HOURS", help="The same of dead letters.")] = None,
    strict: Annotated[
        bool | None, typer.Option("--strict/--no-strict", help="Errors that no rule knows are permanent.")
    ] = None,
    error: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RULE",
            help="STRATEGY=text:PART or STRATEGY=exception:CLASS; strategies are retryable, rate_limited, temporary, "
            "permanent. Repeatable; takes the place of the rules that there were.",
        ),
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Go back to the default policy.")] = False,
    engine: EngineUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show a type's policy, or change what is given of it; a value of off takes it back.

    [bold]Examples:[/bold]
    everwork types policy email-send
    everwork types policy email-send --max-attempts 10 --base 2 --breaker-failures 3 --rate 100/60
    everwork types policy email-send --error 'temporary=text:maintenance' --error 'permanent=exception:ValueError'
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
    view = _policy(engine, type, given, clear=clear)
    if as_json:
        write_json(policy_report(type, view))
    else:
        own = "" if view.is_own else " (the default)"
        retry = {name: getattr(view.policy.retry, name) for name in RETRY_FIELDS}
        write(f"{one_line(type)}: {told(retry | dict(view.fields))}{own}\n")


def told(said: Mapping[str, Any]) -> str:
    """What is said of a policy, in one line."""
    parts = dict(said)
    errors = parts.pop("errors", ())
    shown = [f"{name} {_value(value)}" for name, value in parts.items()]
    rules = [f"{rule.get('strategy')} {rule.get('exception') or repr(rule.get('text'))}" for rule in errors]
    return one_line(", ".join([*shown, *(["errors " + "; ".join(rules)] if rules else [])]))


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _policy(engine: str | None, type: str, given: dict[str, Any], *, clear: bool) -> PolicyView:
    """The policy in force, after what was asked for."""
    if clear and given:
        raise InvalidInput("clear", f"must not be given together with {', '.join(given)}")
    if clear:
        administer(engine, lambda desk: desk.clear_policy(type))
        return PolicyView(DEFAULT_TYPE_POLICY, {})
    if given:
        checks.name("type", type)
        said = fields_from_texts(given)
        # A policy may be there before the first job, and so may the store; a slip must not bring it into being.
        return administer(engine, lambda desk: desk.set_policy(type, said, changes_only=True), creates=True)
    return administer(engine, lambda desk: desk.policy(type))


def _rate(text: str | None) -> dict[str, Any]:
    """`100/60`: so many jobs in so many seconds; `100` alone in a minute."""
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
