"""What users rely on, compared with the files in `tests/promises`: what somebody can notice is changed on purpose.

The promises are read from public surfaces and from all of `src`, wherever its modules stand. To change them on purpose
run `python -m tests.test_promises --write` and commit the files.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import enum
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from functools import cache
from hashlib import sha256
from http import HTTPStatus
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final, get_args, get_origin

import grpc
import httpx
import pytest
import typer
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from everwork.core import job
from everwork.proto import PROTO_PATH
from everwork.server.metrics import spool_text
from everwork.service.admin import Admin
from everwork.service.jobs import Jobs
from everwork.service.verb import rules_of
from everwork.spool.contents import SpoolStatus
from everwork.spool.file import SpoolCounts
from tests.source_texts import (
    SOURCE,
    Function,
    Sink,
    attributes_set_in,
    constant_texts,
    defined,
    functions,
    texts_reaching,
)

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = Path(__file__).parent / "promises"
PYPROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
KEY: Final = "the-key-of-the-tests"
SPECIAL: Final = (
    "call",
    "await",
    "enter",
    "exit",
    "aenter",
    "aexit",
    "iter",
    "next",
    "aiter",
    "anext",
    "len",
    "getitem",
)
RETURNED: Final = (
    "Count", "Created", "Explanation", "HistoryEntry", "JobPage", "Judged", "LeasedJob", "ProcessEntry", "Stats",
    "TickResult", "TriggerEntry", "TriggerView", "WorkerEntry", "WorkerHour", "WorkerView",
)  # fmt: skip
"""Classes that are exported nowhere, but whose objects users get."""
LEVELS: Final = ("debug", "info", "warning", "error", "exception", "critical")
LINE: Final = 120
VARYING: Final = ("type", "status", "version", "engine")
"""Labels whose values are not fixed."""

MARKED: Final = {name: get_args(one)[0].__name__ for name, one in vars(job).items() if get_origin(one) is Annotated}
"""Types with a note for `codec.fields`: a type checker sees the plain one."""

ADVICE: Final = "If that is meant, run: python -m tests.test_promises --write"

Lines = Iterator[str]


# Names of Python ---------------------------------------------------------------------------------------


def names() -> Lines:
    for module in map(import_module, ("everwork", "everwork.client", "everwork.testing", "everwork.exceptions")):
        public = getattr(module, "__all__", [name for name, value in vars(module).items() if inspect.isclass(value)])
        yield f"# {module.__name__}"
        for name in sorted(public):
            yield from map(_broken, _shown(name, getattr(module, name)))
    yield "# What public calls return"
    for name in RETURNED:
        yield from map(_broken, _shown(name, defined(name)))


def _broken(line: str) -> str:
    """A long line with one parameter in each, so that a difference is seen."""
    return line if len(line) <= LINE else re.sub(r", (?=[*/]|\w+(?:: |=))", f",\n{' ' * 8}", line)


def _shown(name: str, value: Any) -> Lines:
    if not inspect.isclass(value):
        yield f"{name}{_signature(value)}" if callable(value) else f"{name} = {_plain(value)}"
        return
    bases = [base for base in value.__mro__[1:] if issubclass(base, BaseException) and base is not BaseException]
    yield f"class {name}{_made(value)}" + (f" is {', '.join(base.__name__ for base in bases)}" if bases else "")
    own = [kind for kind in reversed(value.__mro__) if kind.__module__.partition(".")[0] == "everwork"]
    members = {attribute: attribute for kind in own for attribute in attributes_set_in(kind)}
    members |= {
        field: f"{field}: {_bare(said)}" for kind in own for field, said in inspect.get_annotations(kind).items()
    }
    members |= {member: _member(value, member) for kind in own for member in vars(kind) if member not in members}
    yield from (f"    {members[one]}" for one in sorted(members) if not one.startswith("_") or one[2:-2] in SPECIAL)


def _made(kind: type) -> str:
    """How an object of a class is made; Python's own classes tell it differently from version to version."""
    if issubclass(kind, enum.Enum):
        return ""
    makers = (inspect.getattr_static(kind, name) for name in ("__init__", "__new__"))
    is_ours = any(inspect.isfunction(maker) or isinstance(maker, staticmethod) for maker in makers)
    return _signature(kind, returns=False) if is_ours else "(*args)" if issubclass(kind, BaseException) else "()"


def _member(kind: type, name: str) -> str:
    match inspect.getattr_static(kind, name):
        case property(fget=read):
            return f"{name}: {_bare(inspect.signature(read).return_annotation)} (read)"  # type: ignore[arg-type]
        case enum.Enum() as value:
            return f"{name} = {value.value!r}"
        case staticmethod() | classmethod():
            return f"{name}{_signature(getattr(kind, name))} (of the class)"
        case value if inspect.isfunction(value):
            return f"{'async ' if inspect.iscoroutinefunction(value) else ''}{name}{_signature(value)}"
        case value:
            return (
                name
                if type(value).__name__ in ("member_descriptor", "cached_property")
                else f"{name} = {_plain(value)}"
            )


class _Text:
    """Shows as it is where `inspect` asks for a representation."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _signature(value: Any, *, returns: bool = True) -> str:
    """How it is called. The fields of a model of pydantic, which tells its types in its own words, stand below it."""
    signature, nothing, is_model = inspect.signature(value), inspect.Parameter.empty, hasattr(value, "model_fields")
    parameters = [
        one.replace(
            annotation=nothing if one.annotation is nothing or is_model else _Text(_bare(one.annotation)),
            default=one.default if one.default is nothing else _Text(_plain(one.default)),
        )
        for one in signature.parameters.values()
    ]
    said = signature.return_annotation
    answer = _Text(_bare(said)) if returns and said is not nothing else nothing
    return str(signature.replace(parameters=parameters, return_annotation=answer))


def _bare(annotation: Any) -> str:
    """An annotation without the modules that its names come from."""
    said = getattr(annotation, "__forward_arg__", annotation)
    text = said if isinstance(said, str) else inspect.formatannotation(said)
    text = re.sub(r"\w+", lambda word: MARKED.get(word[0], word[0]), text)
    return re.sub(r"\b(?:[A-Za-z_]\w*\.)+(?=\w)", "", text).replace("NoneType", "None").strip("'")


def _plain(value: Any) -> str:
    """A value without addresses and modules."""
    text = value.__name__ if inspect.isfunction(value) or inspect.isclass(value) else repr(value)
    return re.sub(r" at 0x[0-9a-f]+|(?<=<class ')(?:\w+\.)+|(?<=<function )(?:\w+\.)+", "", text)


# The command line and the settings ------------------------------------------------------------------------


def _app() -> Any:
    return import_module(PYPROJECT["project"]["scripts"]["everwork"].partition(":")[0]).app


def _commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name in command.list_commands(None) if hasattr(command, "list_commands") else ():
        yield from _commands(command.get_command(None, name), (*path, name))


def commands() -> Lines:
    for path, _ in _commands(typer.main.get_command(_app())):
        asked = [*path, "--help"]
        answer = CliRunner().invoke(_app(), asked, prog_name="everwork", env={"COLUMNS": "100"}, terminal_width=100)
        yield f"$ everwork {' '.join(asked)}"
        yield from (line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", answer.output).strip("\n").splitlines())


def settings() -> Lines:
    found = (
        one
        for path, command in _commands(typer.main.get_command(_app()))
        if path == ("serve",)
        for one in command.params
    )
    flags = {option.name.removeprefix("no_"): ", ".join(option.opts) for option in found}
    for field in dataclasses.fields(defined("Settings")):
        default = field.default.as_posix() if isinstance(field.default, Path) else _plain(field.default)
        yield f"{field.name}: {_bare(field.type)} = {default}"
        yield f"    EVERWORK_{field.name.upper()}"
        yield f"    {flags.get(field.name, 'no flag')}"
        text = defined("REFERENCE")[field.name]
        yield from (f"    {one}" for one in (text.allowed, text.meaning))
    yield "# All variables that the program names"
    yield from sorted({name for text in constant_texts() for name in re.findall(r"\bEVERWORK_[A-Z_]*[A-Z]\b", text)})


# What is served -------------------------------------------------------------------------------------------


SHOWN = ('class="thrown"', "everwork_jobs{", 'outcome="completed"', "everwork_wait_seconds_bucket{")
"""What a scrape has once all work was sampled."""


@contextmanager
def _server(folder: str) -> Iterator[dict[str, Any]]:
    asked = ["serve", "--engine", "sqlite:///jobs.db", "--grpc-port", "0", "--http-port", "0", "--json"]
    environment = {name: text for name, text in os.environ.items() if not name.startswith("EVERWORK_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "everwork", *asked],
        cwd=folder,
        env=environment | {"EVERWORK_API_KEY": KEY},
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
    finally:
        process.terminate()
        process.communicate()


@cache
def _served() -> tuple[dict[str, Any], str]:
    """The OpenAPI document, and the figures after every call was made once without a key, and some work was done."""
    with tempfile.TemporaryDirectory() as folder, _server(folder) as told:
        with grpc.insecure_channel(f"127.0.0.1:{told['grpc_port']}") as channel:
            for path in _rpcs():
                with suppress(grpc.RpcError):
                    list(channel.stream_stream(path, None, None)(iter([b""])))
        with httpx.Client(base_url=f"http://127.0.0.1:{told['http_port']}", timeout=60) as client:
            document = client.get("/openapi.json").raise_for_status().json()
            for path, operations in document["paths"].items():
                for method in operations:
                    client.request(method, re.sub(r"\{\w+\}", "1", path))
            client.headers["X-API-Key"] = KEY
            _work(client)
            return document, _figures(client)


def _work(client: httpx.Client) -> None:
    """Jobs that end in every way."""
    asked = {"type": "t", "worker": "w", "max_jobs": 3, "timeout_ms": 60_000, "wait": 0}
    client.post("/api/v1/jobs/activate", json=asked).raise_for_status()
    client.post("/api/v1/jobs", json=[{"type": "t"}] * 3).raise_for_status()
    one, two, three = client.post("/api/v1/jobs/activate", json=asked).raise_for_status().json()["jobs"]
    client.put(f"/api/v1/jobs/{one['key']}/complete", json={}).raise_for_status()
    client.put(f"/api/v1/jobs/{two['key']}/fail", json={"retries": 0, "attempt": 1}).raise_for_status()
    client.post(f"/api/v1/jobs/{three['key']}/throw-error", json={"error_code": "NO"}).raise_for_status()


def _figures(client: httpx.Client) -> str:
    """The metrics once they show everything that was done: a slow server answers with a sample of a moment ago."""
    ends = time.monotonic() + 60
    while True:
        text = client.get("/metrics").raise_for_status().text
        if all(shown in text for shown in SHOWN):
            return text
        assert time.monotonic() < ends, "the metrics never show what was done"


def openapi() -> Lines:
    document = deepcopy(_served()[0])
    document["info"]["version"] = "any"
    for operation in (one for operations in document["paths"].values() for one in operations.values()):
        for status, answer in operation["responses"].items():
            if answer["description"] == HTTPStatus(int(status)).phrase:
                answer["description"] = "as Python calls the status"  # It does so differently from version to version.
    yield from json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False).splitlines()


def metrics() -> Lines:
    text = _served()[1] + spool_text(SpoolStatus("", "", SpoolCounts(), 0, 0))
    for family in sorted(text_string_to_metric_families(text), key=lambda family: family.name):
        if not family.name.startswith("everwork"):
            continue
        values: dict[str, dict[str, dict[str, None]]] = {}
        for sample in family.samples:
            labels = values.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, {})[value] = None
        yield f"{family.type} {family.name}: {family.documentation}"
        for name, labels in values.items():
            yield f"    {name}{{{', '.join(sorted(labels))}}}"
            fixed = (label for label in sorted(labels) if label not in VARYING)
            yield from (_values(label, labels[label]) for label in fixed)


def _values(label: str, values: Iterable[str]) -> str:
    told = ", ".join(sorted(values, key=float if label == "le" else None))
    return (
        f"        {label}: {told}" if len(told) <= LINE else f"        {label}: {told.replace(', ', f'{chr(10):<13}')}"
    )


def errors() -> Lines:
    table = defined("TABLE").items()
    yield from sorted(f"{kind.__name__}: {wire.grpc.name}, {wire.http}, {wire.code}" for kind, wire in table)


# Protocols ------------------------------------------------------------------------------------------------


@cache
def _protos() -> list[FileDescriptorProto]:
    found = []
    for path in sorted(PROTO_PATH.glob("*.proto")):
        found.append(FileDescriptorProto())
        import_module(f"everwork.proto.{path.stem}_pb2").DESCRIPTOR.CopyToProto(found[-1])
    return found


def _rpcs() -> list[str]:
    return [
        f"/{file.package}.{one.name}/{rpc.name}" for file in _protos() for one in file.service for rpc in one.method
    ]


def protocols() -> Lines:
    for file in _protos():
        yield f"# {file.name}, package {file.package}, go_package {file.options.go_package or 'none'}"
        for service in file.service:
            yield f"service {service.name}"
            for rpc in service.method:
                asked, told = "stream " * rpc.client_streaming, "stream " * rpc.server_streaming
                yield f"    {rpc.name}({asked}{rpc.input_type}) returns ({told}{rpc.output_type})"
        for enumeration in file.enum_type:
            yield f"enum {enumeration.name}: {', '.join(f'{one.name}={one.number}' for one in enumeration.value)}"
        for message in file.message_type:
            yield from _message(message, "")


def _message(message: DescriptorProto, inside: str) -> Lines:
    name = f"{inside}{message.name}"
    yield f"message {name}"
    for field in message.field:
        label = FieldDescriptorProto.Label.Name(field.label).removeprefix("LABEL_").lower()
        kind = field.type_name or FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
        choice = f" of {message.oneof_decl[field.oneof_index].name}" if field.HasField("oneof_index") else ""
        yield f"    {field.number} {field.name}: {label} {kind}{choice}"
    yield from (f"    reserved {one.start} to {one.end - 1}" for one in message.reserved_range)
    for enumeration in message.enum_type:
        yield f"    enum {enumeration.name}: {', '.join(f'{one.name}={one.number}' for one in enumeration.value)}"
    for inner in message.nested_type:
        yield from _message(inner, f"{name}.")


# What stores keep and logs say ----------------------------------------------------------------------------


def schema() -> Lines:
    migrations = sorted(SOURCE.rglob("migrations/*.sql"), key=lambda path: path.parts[-3:])
    for path in migrations:
        yield f"{path.parts[-3]} {path.name} {sha256(path.read_bytes()).hexdigest()}"
    for engine in sorted({path.parts[-3] for path in migrations}):
        yield f"{engine} version {max(int(path.name[:4]) for path in migrations if path.parts[-3] == engine)}"
    yield f"redis version {defined('SCHEMA_VERSION')}"


def stored_words() -> Lines:
    yield "# Actions of the audit log"
    declared = {action for one in (Jobs, Admin) for rule in rules_of(one).values() for action in rule.audit}
    yield from sorted(texts_reaching([Sink("record", 1, "action")]) | declared)
    calls = ("register", "unregister", "registered", "last_registered")
    files = (path.read_text("utf-8") for path in SOURCE.rglob("*") if path.suffix in (".py", ".sql", ".lua"))
    hidden = {kind for text in files for kind in re.findall(r"""['"](#[a-z]{4,})['"]""", text)}
    yield "# Kinds in the registry"
    yield from sorted(texts_reaching([Sink(call, 0, "kind") for call in calls]) | hidden)


def log_words() -> Lines:
    yield "# Loggers"
    yield from sorted(texts_reaching([Sink("get_logger", 0, "name"), Sink("getLogger", 0, "name")]))
    yield "# Events"
    for level in LEVELS:
        yield from (f"{level}: {event}" for event in sorted(texts_reaching([Sink(level, 0, "event")], _is_of_log)))
    named = [Sink("Thread", None, "name"), Sink("Process", None, "name")]
    yield "# Threads and processes"
    yield from sorted(texts_reaching([*named, Sink("ThreadPoolExecutor", None, "thread_name_prefix")]))


def _is_of_log(call: ast.Call) -> bool:
    whose = getattr(call.func, "value", None)
    return str(getattr(whose, "attr", getattr(whose, "id", ""))).lstrip("_") in ("log", "logger")


def packaging() -> Lines:
    project = PYPROJECT["project"]
    points = {"scripts": project["scripts"], **project["entry-points"]}
    for group, targets in points.items():
        for name, target in targets.items():
            module, _, function = target.partition(":")
            assert hasattr(import_module(module), function or "__name__"), target
            yield f"{group}: {name}"
    yield from sorted(f"extra: {name}" for name in project["optional-dependencies"])
    yield from sorted(f"fixture: {one.name}({', '.join(_asked(one))})" for one in functions() if _is_fixture(one))
    yield from sorted(f"proto: {path.name}" for path in PROTO_PATH.glob("*.proto"))


def _is_fixture(function: Function) -> bool:
    return any(ast.unparse(one).startswith("pytest.fixture") for one in function.decorator_list)


def _asked(function: Function) -> list[str]:
    return [one.arg for one in function.args.args]


# The comparison -------------------------------------------------------------------------------------------

PROMISES: Final[dict[str, Callable[[], Lines]]] = {
    "audit_and_registry.txt": stored_words,
    "commands.txt": commands,
    "errors.txt": errors,
    "logs_and_threads.txt": log_words,
    "metrics.txt": metrics,
    "openapi.json": openapi,
    "packaging.txt": packaging,
    "protocols.txt": protocols,
    "python_names.txt": names,
    "schema.txt": schema,
    "settings.txt": settings,
}


def _found(file: str) -> str:
    return "".join(f"{line}\n" for line in PROMISES[file]())


@pytest.mark.parametrize("file", PROMISES)
def test_what_users_rely_on_is_what_was_promised(file: str) -> None:
    promised, found = (FOLDER / file).read_text("utf-8"), _found(file)
    diff = difflib.unified_diff(promised.splitlines(), found.splitlines(), "promised", "found", lineterm="", n=2)
    if promised != found:
        pytest.fail("\n".join([f"tests/promises/{file} promises something else.", ADVICE, *diff]), pytrace=False)


def test_every_file_of_promises_is_compared() -> None:
    assert {path.name for path in FOLDER.iterdir()} == PROMISES.keys()


def write() -> None:
    """Promise what there is now."""
    FOLDER.mkdir(exist_ok=True)
    for file in PROMISES:
        (FOLDER / file).write_text(_found(file), "utf-8")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(ADVICE)
    write()
