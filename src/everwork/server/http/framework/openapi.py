"""The OpenAPI document, generated from the same operations that serve the API."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Final

from everwork.core.limits import TITLE_CHARS_MAX
from everwork.server.http.api.schemas import KEY_PATTERN, SCHEMAS, ref
from everwork.server.http.framework.fields import Schema
from everwork.server.http.framework.operations import Field, Operation, ResponseSpec, Shape
from everwork.server.http.framework.problems import PROBLEM_TYPE

ABOUT: Final = (
    "A durable job engine: jobs are never lost, and each is run by one worker at a time. {} "
    "Errors are problem documents (RFC 9457) with a stable `code`."
)
BY_KEY: Final = "Requests are authenticated by an API key, in the header `X-API-Key` or as a bearer token."
CHECKED: Final = "The application that serves this API authenticates requests."
SECTIONS: Final[Mapping[str, tuple[str, str]]] = {
    "Worker protocol": (
        r"/jobs/(activate|\{key\}/(complete|fail|throw-error|timeout))$",
        "Activate jobs and report their outcome, from a worker in any language.",
    ),
    "Dead letters": (r"/dead|/jobs/requeue$", "Find, requeue and delete the jobs that failed permanently."),
    "Jobs": (r"/jobs|/spool|/stats", "Create, find and change jobs."),
    "Types": (r"/types|/groups", "Pause types, set their policies, reset their circuit breakers."),
    "Workers": (r"/workers|/processes|/running", "See which workers are running, and enable, disable or restart them."),
    "Triggers": (r"/triggers", "Scheduled jobs: when they run next; enable, disable or fire them."),
    "API keys": (r"/keys|/audit", "Create and revoke API keys; read the audit log."),
    "Server": (r"", "Health checks, metrics and this reference."),
}
"""The sections of the reference: an operation belongs to the first whose pattern matches its path."""
_ORDER: Final = ("Jobs", *(name for name in SECTIONS if name != "Jobs"))
_TITLE: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": TITLE_CHARS_MAX, "format": "text"}
_PATH_FIELDS: Final[dict[str, Schema]] = {
    "key": {"type": "string", "pattern": KEY_PATTERN, "description": "The job's key.", "example": "17"},
    "worker": {**_TITLE, "description": "The worker's id or title."},
    "trigger": {**_TITLE, "description": "The trigger's id."},
}
_NAME: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": 255, "format": "printable"}
_RETRY_AFTER: Final = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 1}}}
_CHALLENGE: Final = {"WWW-Authenticate": {"schema": {"type": "string"}}}


def describe(operations: Sequence[Operation], *, has_keys: bool = True) -> dict[str, Any]:
    """Build the OpenAPI document; without keys, the surrounding application authenticates callers."""
    document = _document(operations)
    if has_keys:
        return document
    document["info"]["description"] = ABOUT.format(CHECKED)
    del document["components"]["securitySchemes"]
    for described in (one for path in document["paths"].values() for one in path.values()):
        described.pop("security", None)
    return document


def _document(operations: Sequence[Operation]) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    shapes: dict[str, Schema] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
        if operation.body is not None:
            shapes[operation.body.name] = _shape(operation.body)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Everwork", "version": version("everwork"), "description": ABOUT.format(BY_KEY)},
        "tags": [{"name": name, "description": SECTIONS[name][1]} for name in _ORDER],
        "paths": paths,
        "components": {
            "schemas": {**SCHEMAS, **shapes},
            "securitySchemes": {
                "ApiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
                "Bearer": {"type": "http", "scheme": "bearer"},
            },
        },
    }


def section_of(path: str) -> str:
    """The section of an operation."""
    return next(name for name, (pattern, _) in SECTIONS.items() if re.search(pattern, path))


def _operation(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.id,
        "summary": operation.summary,
        "tags": [section_of(operation.path)],
        "responses": {str(status): _response(spec) for status, spec in operation.responses.items()}
        | _problems(operation),
    }
    if operation.permissions:
        needed = " or ".join(f"`{permission.value}`" for permission in operation.permissions)
        described["description"] = f"Permission: {needed}{_UNBOUND if operation.is_unbound else ''}."
        described["security"] = [{"ApiKey": []}, {"Bearer": []}]
    if parameters := [*_path_parameters(operation.path), *(_parameter(field) for field in operation.query)]:
        described["parameters"] = parameters
    if operation.body is not None:
        described["requestBody"] = _body(operation, operation.body)
    return described


_UNBOUND: Final = "; the API key must not be bound to tenants"


def _problems(operation: Operation) -> dict[str, Any]:
    statuses = {*operation.problems, 422}
    if operation.permissions:
        statuses |= {401, 403, 429, 503}
    if operation.body is not None:
        statuses |= {400, 408, 413, 415}
    return {str(status): _problem(status) for status in sorted(statuses)}


def _problem(status: int) -> dict[str, Any]:
    described: dict[str, Any] = {
        "description": HTTPStatus(status).phrase,
        "content": {PROBLEM_TYPE: {"schema": ref("Problem")}},
    }
    headers = {429: _RETRY_AFTER, 401: _CHALLENGE}.get(status)
    return described if headers is None else described | {"headers": headers}


def _response(spec: ResponseSpec) -> dict[str, Any]:
    if spec.schema is None:
        return {"description": spec.description}
    return {"description": spec.description, "content": {spec.media_type: {"schema": spec.schema}}}


def _path_parameters(path: str) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    return [{"name": name, "in": "path", "required": True, "schema": _PATH_FIELDS.get(name, _NAME)} for name in names]


def _parameter(field: Field) -> dict[str, Any]:
    schema = dict(field.type.schema)
    if isinstance(field.default, int | str):
        schema["default"] = field.default
    return {
        "name": field.name,
        "in": "query",
        "required": field.is_required,
        "description": field.description,
        "schema": schema,
    }


def _body(operation: Operation, shape: Shape) -> dict[str, Any]:
    schema = ref(shape.name)
    if operation.is_bulk:
        schema = {"anyOf": [schema, {"type": "array", "items": schema, "minItems": 1, "maxItems": 10_000}]}
    content: dict[str, Any] = {"schema": schema}
    if shape.example:
        content["example"] = dict(shape.example)
    return {"required": shape.is_required, "content": {"application/json": content}}


def _shape(shape: Shape) -> Schema:
    described: Schema = {
        "type": "object",
        "properties": {field.name: _property(field) for field in shape.fields},
        "additionalProperties": False,
    }
    required = [field.name for field in shape.fields if field.is_required]
    return described | {"required": required} if required else described


def _property(field: Field) -> Schema:
    schema = {**field.type.schema, "description": field.description}
    if field.is_required:
        return schema
    if isinstance(field.default, int | float | str):
        schema["default"] = field.default
    return schema | {"type": [schema["type"], "null"]} if "enum" not in schema else schema
