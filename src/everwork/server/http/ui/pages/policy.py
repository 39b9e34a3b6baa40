"""The policy of a type: a form with a field for each of its parts, and the JSON behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby, zip_longest
from typing import Any, Final, NamedTuple

from everwork.codec.json import decode_policy, decode_typed_object
from everwork.core import checks
from everwork.core.classify import Strategy
from everwork.core.limits import COMPLETED_KEEP_MS, FAILED_KEEP_MS, PAYLOAD_BYTES_MAX
from everwork.core.policy import TypePolicy, default_text, fields_of, policy_from
from everwork.core.policy_fields import FIELDS, PolicyField
from everwork.exceptions import InvalidInput
from everwork.server.http.ui.address import type_url
from everwork.server.http.ui.page import Action, Done, View
from everwork.server.http.ui.pages.types import limits_of
from everwork.server.http.ui.redaction import pretty
from everwork.server.http.ui.render import duration
from everwork.server.http.ui.visit import Visit
from everwork.service.admin import Admin
from everwork.service.policies import stored_fields

RULES: Final = "errors"
RULE_PARTS: Final = ("rule_match", "rule_value", "rule_strategy")
"""The repeated fields of the form that make up one error rule."""
MATCHES: Final = {"exception": "Exception class", "text": "Text in the error"}
STRATEGIES: Final = {
    Strategy.RETRYABLE.value: "Retry with backoff",
    Strategy.TEMPORARY.value: "Retry after 10 s",
    Strategy.RATE_LIMITED.value: "Retry after 1 min",
    Strategy.PERMANENT.value: "Do not retry",
}
NOT_SAVED: Final = "The policy was not saved. Correct the marked fields and try again."
FLAGS: Final = {"": "Default", "yes": "Yes", "no": "No"}
_KEPT_MS: Final = {"keep_completed_hours": COMPLETED_KEEP_MS, "keep_failed_hours": FAILED_KEEP_MS}


class Shown(NamedTuple):
    """A field of a policy: its effective value in words, and whether it was set for this type."""

    name: str
    value: str
    is_set: bool


class Rule(NamedTuple):
    """A row of the error rules, as typed. Two empty rows are added for further rules."""

    match: str
    value: str = ""
    strategy: str = Strategy.RETRYABLE.value


class FormField(NamedTuple):
    """A field of the form: its definition, the typed text, the problem with it, and the value used if it is empty."""

    about: PolicyField
    typed: str
    problem: str
    default: str
    allowed: str


# The card ------------------------------------------------------------------------------------------------


def policy_card(type: str, stored: str | None) -> dict[str, Any]:
    """The content of the card that shows a stored policy."""
    given = stored_fields(stored)
    typed = {one.name: _text(one, given.get(one.name)) for one in FIELDS}
    listed = given.get(RULES)
    rules = [_rule_row(rule) for rule in listed if isinstance(rule, Mapping)] if isinstance(listed, list) else []
    return {**_card(type, stored), **_form(typed, rules, {}), "typed": pretty(given), "error": None}


def _card(type: str, stored: str | None) -> dict[str, Any]:
    policy, given = decode_policy(stored), stored_fields(stored)
    return {
        "type": type,
        "policy": policy,
        "is_own": bool(given),
        "fields": fields_shown(policy, given),
        "limits": limits_of(policy),
    }


def _form(typed: Mapping[str, str], rules: Sequence[Rule], problems: Mapping[str, str]) -> dict[str, Any]:
    """The fields of the form by section, and the rows of error rules."""
    shown = [
        FormField(one, typed.get(one.name, ""), problems.get(one.name, ""), _default(one), one.allowed)
        for one in FIELDS
    ]
    return {
        "sections": [(name, list(some)) for name, some in groupby(shown, lambda field: field.about.section)],
        "rules": [*rules, Rule("exception"), Rule("text")],
        "matches": MATCHES,
        "strategies": STRATEGIES,
        "flags": FLAGS,
        "problems": problems,
    }


def fields_shown(policy: TypePolicy, given: Mapping[str, Any]) -> list[Shown]:
    """All fields of a policy; fields set for the type come first."""
    shown = [Shown(name, _with_unit(name, value), name in given) for name, value in fields_of(policy).items()]
    return sorted(shown, key=lambda one: not one.is_set)


def _default(field: PolicyField) -> str:
    return FLAGS["no"].lower() if field.kind == "flag" else default_text(field)


def _text(field: PolicyField, value: Any) -> str:
    """A value as a user would type it. A policy that was edited by hand can hold anything."""
    if value is None or field.kind == "rules":
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _rule_row(rule: Mapping[str, str]) -> Rule:
    match = "exception" if rule.get("exception") is not None else "text"
    return Rule(match, str(rule.get(match, "")), str(rule.get("strategy", "")))


def _with_unit(name: str, value: Any) -> str:
    """The value of a field in words, with its unit."""
    if value is None or value == []:
        return duration(_KEPT_MS[name]) if name in _KEPT_MS else "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name in ("base", "cap") or name.endswith("_seconds"):
        return duration(value * 1000)
    if name.endswith("_hours"):
        return duration(value * 3_600_000)
    if name == RULES:
        return "; ".join(f"{one.get('exception') or one.get('text')}: {one['strategy']}" for one in value)
    return f"{100 * value:g} %" if name == "jitter" else f"{value:,g}"


# Actions -------------------------------------------------------------------------------------------------


async def set_by_form(visit: Visit) -> Done | View:
    """Set the policy of a type from the fields of the form; empty fields use the default."""
    type = visit.required("type")
    typed = {one.name: (visit.optional(one.name) or "").strip() for one in FIELDS}
    rules = _sent_rules(visit)
    given, problems = _read(typed, rules)
    if not problems:
        try:
            await visit.admin.set_policy(type, given)
            return _saved(type)
        except InvalidInput as error:
            problems = {error.field.partition(".")[0]: error.problem}
    card = {**await _stored_card(visit, type), **_form(typed, rules, problems)}
    return View("type_policy.html", {**card, "error": NOT_SAVED, "here": type_url(type)}, 422)


async def set_by_json(visit: Visit) -> Done | View:
    """Set the policy of a type from the typed JSON."""
    type, typed = visit.required("type"), visit.optional("policy") or "{}"
    try:
        await visit.admin.set_policy(type, decode_typed_object("policy", typed, PAYLOAD_BYTES_MAX))
    except InvalidInput as error:
        card = await _stored_card(visit, type)
        context = {**card, "typed": typed, "error": str(error), "is_json": True, "here": type_url(type)}
        return View("type_policy.html", context, 422)
    return _saved(type)


async def clear(visit: Visit) -> Done:
    """Restore the default policy."""
    type = visit.required("type")
    await visit.admin.clear_policy(type)
    return Done(f"{type} uses the default policy now.", type_url(type))


def _saved(type: str) -> Done:
    return Done(f"The policy of {type} was saved. It applies to the next attempt.", type_url(type))


async def _stored_card(visit: Visit, type: str) -> dict[str, Any]:
    stored = [one.info.policy for one in await visit.admin.types() if one.info.type == type]
    return policy_card(type, stored[0] if stored else None)


# Typed values --------------------------------------------------------------------------------------------


def _read(typed: Mapping[str, str], rules: Sequence[Rule]) -> tuple[dict[str, Any], dict[str, str]]:
    """The fields that are set, and problems by field."""
    given: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for one in FIELDS:
        try:
            value = _rules(rules) if one.kind == "rules" else _value(one, typed[one.name])
            if value is not None:
                given[one.name] = one.check(value)
        except InvalidInput as error:
            problems[one.name] = error.problem
    return given, problems


def _value(field: PolicyField, text: str) -> Any:
    if not text:
        return None
    return {"yes": True, "no": False}.get(text, text) if field.kind == "flag" else checks.typed(text)


def _rules(rows: Sequence[Rule]) -> list[dict[str, str]] | None:
    """The rules that are filled in; each is checked, and errors give its number."""
    rules = []
    for at, row in enumerate(rows, 1):
        rule = {row.match: row.value, "strategy": row.strategy}
        try:
            policy_from({RULES: [rule]})
        except InvalidInput as error:
            raise InvalidInput(RULES, f"rule {at}: {error.problem}") from None
        rules.append(rule)
    return rules or None


def _sent_rules(visit: Visit) -> list[Rule]:
    """The rows of error rules that have a value, in order."""
    sent = zip_longest(*(visit.values(part) for part in RULE_PARTS), fillvalue="")
    return [Rule(match, value.strip(), strategy) for match, value, strategy in sent if value.strip()]


PAGES = ()
ACTIONS = (
    Action("/type/policy-form", set_by_form, Admin.set_policy),
    Action("/type/policy", set_by_json, Admin.set_policy),
    Action("/type/policy-clear", clear, Admin.clear_policy, confirms=True),
)
