"""The REST reference, from the OpenAPI document that a server serves."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final

from everwork.server.http.app import DOCUMENT
from tools.reference.anchors import slug

SERVER: Final = "http://127.0.0.1:27555"
_SCHEMAS: Final[Mapping[str, Any]] = DOCUMENT["components"]["schemas"]
_EXAMPLES: Final = {
    "key": "1",
    "type": "email-send",
    "worker": "mailer",
    "trigger": "digest",
    "process": "web-1",
    "group": "audit",
    "id": "3",
    "spool_id": "9f0c2a7d41b86e35-12",
}
"""The placeholders in the paths of examples."""
_REFUSED: Final = 400


def operations() -> str:
    """Every operation by section: parameters, body, responses and an example."""
    return "".join(f"## {tag['name']}\n\n{tag['description']}\n\n{_section(tag['name'])}" for tag in DOCUMENT["tags"])


def _section(name: str) -> str:
    return "".join(
        _operation(method, path, described)
        for path, methods in DOCUMENT["paths"].items()
        for method, described in methods.items()
        if name in described["tags"]
    )


def _operation(method: str, path: str, described: Mapping[str, Any]) -> str:
    lines = [
        f"### {described['summary']}\n\n",
        f"`{method.upper()} {path}` (`{described['operationId']}`)\n\n",
        f"{described.get('description', 'No API key needed.')}\n\n",
        _example(method, path, described),
        _parameters(described.get("parameters", [])),
        _body(described.get("requestBody")),
        _responses(described["responses"]),
    ]
    return "".join(lines)


def _example(method: str, path: str, described: Mapping[str, Any]) -> str:
    """A request as a user would type it."""
    for name, value in _EXAMPLES.items():
        path = path.replace(f"{{{name}}}", value)
    verb = "" if method == "get" else f"-X {method.upper()} "
    words = [f"curl {verb}{SERVER}{path}"]
    if "security" in described:
        words.append('-H "X-API-Key: $KEY"')
    body = described.get("requestBody")
    if body is not None and _body_schema(body).get("properties"):
        sent = body["content"]["application/json"].get("example", {})
        words += ["-H 'Content-Type: application/json'", f"-d {shlex.quote(json.dumps(sent))}"]
    return "```sh\n{}\n```\n\n".format(" \\\n  ".join(words))


def _parameters(parameters: list[Mapping[str, Any]]) -> str:
    if not parameters:
        return ""
    rows = [
        f"| `{one['name']}` | {one['in']} | {_type(one['schema'])} | "
        f"{_text(one.get('description') or one['schema'].get('description'), one['schema'], one['required'])} |\n"
        for one in parameters
    ]
    return "".join(["| parameter | in | type | description |\n|---|---|---|---|\n", *rows, "\n"])


def _body(body: Mapping[str, Any] | None) -> str:
    if body is None or not _body_schema(body).get("properties"):
        return ""
    is_list = "anyOf" in body["content"]["application/json"]["schema"]
    kind = "a JSON object, or a list of up to 10,000 of them" if is_list else "a JSON object"
    head = f"Request body: {kind}{'' if body['required'] else ', optional'}.\n\n"
    return head + _fields(_body_schema(body))


def _body_schema(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of a body; a list has them for each of its items."""
    [name, *_] = _refs(body["content"]["application/json"]["schema"])
    found: Mapping[str, Any] = _SCHEMAS[name]
    return found


def _fields(schema: Mapping[str, Any]) -> str:
    if not schema.get("properties"):
        return ""
    required = schema.get("required", ())
    rows = [
        f"| `{name}` | {_type(one)} | {_text(one.get('description'), one, name in required)} |\n"
        for name, one in schema["properties"].items()
    ]
    return "".join(["| field | type | description |\n|---|---|---|\n", *rows, "\n"])


def _responses(responses: Mapping[str, Any]) -> str:
    rows = [_response(status, one) for status, one in responses.items() if int(status) < _REFUSED]
    failing = [status for status in responses if int(status) >= _REFUSED]
    refused = ", ".join(f"{status} {HTTPStatus(int(status)).phrase}" for status in failing)
    return "".join([
        "| status | response |\n|---|---|\n",
        *rows,
        f"\n[Errors](errors.md): {refused}.\n\n" if refused else "\n",
    ])  # fmt: skip


def _response(status: str, response: Mapping[str, Any]) -> str:
    schemas = [one["schema"] for one in response.get("content", {}).values()]
    names = dict.fromkeys(name for schema in schemas for name in _refs(schema))
    links = ", ".join(f"[{name}](rest-schemas.md#{slug(name)})" for name in names)
    return f"| {status} | {response['description']}{f' {links}' if links else ''} |\n"


def schemas() -> str:
    """Every object that responses contain."""
    answered = [name for name in _SCHEMAS if name not in _bodies()]
    return "".join(f"## {name}\n\n{_schema(_SCHEMAS[name])}" for name in answered)


def _schema(schema: Mapping[str, Any]) -> str:
    text = f"{schema['description']}\n\n" if "description" in schema else ""
    return text + (_fields(schema) or f"{_type(schema)}\n\n")


def _bodies() -> set[str]:
    bodies = [
        one["requestBody"] for path in DOCUMENT["paths"].values() for one in path.values() if "requestBody" in one
    ]
    return {name for body in bodies for name in _refs(body["content"]["application/json"]["schema"])}


def _refs(schema: Any) -> Iterator[str]:
    """The names of the schemas that a schema refers to."""
    match schema:
        case {"$ref": str(ref)}:
            yield ref.rpartition("/")[2]
        case dict():
            yield from (name for one in schema.values() for name in _refs(one))
        case list():
            yield from (name for one in schema for name in _refs(one))
        case _:
            pass


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        [name] = _refs(schema)
        return name if name in _bodies() else f"[{name}](rest-schemas.md#{slug(name)})"
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(map(_type, options)))
    named = schema.get("type", "any JSON value")
    names = [named] if isinstance(named, str) else [one for one in named if one != "null"]
    shown = " or ".join(_named(name, schema) for name in names)
    return f"{shown} or null" if isinstance(named, list) and "null" in named else shown


def _named(name: str, schema: Mapping[str, Any]) -> str:
    if name == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return "date-time" if schema.get("format") == "date-time" else name


def _text(description: str | None, schema: Mapping[str, Any], is_required: bool) -> str:
    """The meaning of a value, what is allowed, and its default."""
    allowed = schema.get("enum") or schema.get("items", {}).get("enum") or ()
    values = [one for one in allowed if not (isinstance(one, str) and one.isupper())]
    notes = [
        "**Required.**" if is_required else "",
        (description or "").rstrip("."),
        "one of " + ", ".join(f"`{one}`" for one in values) if values else "",
        _bounds(schema),
        f"default `{schema['default']}`" if "default" in schema else "",
    ]
    required, *rest = notes
    text = "; ".join(note for note in rest if note)
    return " ".join(part for part in (required, f"{text[:1].upper()}{text[1:]}." if text else "") if part)


def _bounds(schema: Mapping[str, Any]) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f"{low:,} to {high:,}"
    if high is None and low is None:
        longest = schema.get("maxLength")
        return f"at most {longest:,} characters" if longest else ""
    return f"at least {low:,}" if high is None else f"at most {high:,}"
