"""The reference of error codes, from the table that the server uses for its responses."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Final

import everwork.server
from everwork.server.errors import TABLE

_SOURCES: Final = Path(everwork.server.__file__).parent


def table() -> str:
    """Every code: those of error classes, and those of requests refused before they reach a job."""
    rows = [
        f"| `{wire.code}` | {wire.http} | `{wire.grpc.name}` | "
        f"[`{error.__name__}`](api/exceptions.md#{error.__name__.lower()}) |\n"
        for error, wire in TABLE.items()
    ]
    refused = [
        f"| `{code}` | {status} {HTTPStatus(status).phrase} |\n"
        for status, code in refusals()
        if code not in {wire.code for wire in TABLE.values()}
    ]
    return "".join([
        "| code | HTTP | gRPC | exception in Python |\n|---|---|---|---|\n",
        *rows,
        "\nREST only, for requests that are refused before they reach a job:\n\n| code | HTTP |\n|---|---|\n",
        *refused,
    ])  # fmt: skip


def codes() -> list[str]:
    """Every code."""
    return sorted({wire.code for wire in TABLE.values()} | {code for _, code in refusals()})


@cache
def refusals() -> list[tuple[int, str]]:
    """The statuses and codes that the server's code gives to `Refusal`, `problem` and `refusal`."""
    return sorted({found for path in _SOURCES.rglob("*.py") for found in _literals(ast.parse(path.read_text("utf-8")))})


def _literals(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        values = [one.value if isinstance(one, ast.Constant) else None for one in call.args[:2]]
        match getattr(call.func, "id", ""), values:
            case (("Refusal" | "problem" | "refusal"), [int(status), str(code)]):
                yield status, code
            case "Unready", [str(code), *_]:
                yield HTTPStatus.SERVICE_UNAVAILABLE.value, code
            case _:
                pass
