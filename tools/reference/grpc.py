"""The gRPC reference, from the .proto files and their comments."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    MethodDescriptorProto,
    ServiceDescriptorProto,
)
from grpc_tools import protoc  # type: ignore[import-untyped]

PROTOS: Final = Path(__file__).parents[2] / "proto"
SOURCES: Final = {"jobs": "atom/jobs/v1/jobs.proto", "work": "everwork/v1/work.proto", "zeebe": "zeebe/gateway.proto"}

# Field numbers of descriptor.proto; paths made of these locate comments.
_MESSAGES, _ENUMS, _SERVICES, _MEMBERS, _NESTED, _NESTED_ENUMS = 4, 5, 6, 2, 3, 4
_F = FieldDescriptorProto
_SCALARS: Final = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in _F.Type.items()
    if name not in ("TYPE_MESSAGE", "TYPE_ENUM", "TYPE_GROUP")
}
Place = tuple[int, ...]


class Described(NamedTuple):
    """A .proto file, and its comments by location."""

    file: FileDescriptorProto
    comments: dict[Place, str]

    def comment(self, *place: int) -> str:
        """The comment of an entry on one line; empty if there is none."""
        return " ".join(self.comments.get(place, "").split())


def services(source: str) -> str:
    """The services, messages and enums of a source, as Markdown."""
    described = _described(SOURCES[source])
    file = described.file
    parts = [_service(described, at, one) for at, one in enumerate(file.service)]
    parts += ["## Messages\n\n"]
    parts += [_message(described, (_MESSAGES, at), one, one.name) for at, one in enumerate(file.message_type)]
    parts += [_enum(described, (_ENUMS, at), one, one.name) for at, one in enumerate(file.enum_type)]
    return "".join(parts)


@cache
def _described(source: str) -> Described:
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch, "set")
        options = [f"-I{PROTOS}", f"--descriptor_set_out={out}", "--include_source_info"]
        if protoc.main(["protoc", *options, source]):
            raise ValueError(f"protoc refuses {source}")
        [file] = FileDescriptorSet.FromString(out.read_bytes()).file
    comments = {
        tuple(one.path): one.leading_comments or one.trailing_comments for one in file.source_code_info.location
    }
    return Described(file, comments)


def _service(described: Described, at: int, service: ServiceDescriptorProto) -> str:
    about = described.comment(_SERVICES, at)
    head = f"## {service.name}\n\n`{described.file.package}.{service.name}`{f': {about}' if about else ''}\n\n"
    methods = [
        _method(one, described.comment(_SERVICES, at, _MEMBERS, number)) for number, one in enumerate(service.method)
    ]
    return "".join([head, "| method | request | response | description |\n|---|---|---|---|\n", *methods, "\n"])


def _method(method: MethodDescriptorProto, comment: str) -> str:
    request, response = _link(method.input_type), _link(method.output_type)
    asked = f"stream of {request}" if method.client_streaming else request
    answered = f"stream of {response}" if method.server_streaming else response
    return f"| `{method.name}` | {asked} | {answered} | {comment} |\n"


def _message(described: Described, place: Place, message: DescriptorProto, name: str) -> str:
    comment = described.comment(*place)
    head = f"### {name}\n\n" + (f"{comment}\n\n" if comment else "")
    rows = list(_fields(described, place, message))
    table = (
        ["| field | type | number | description |\n|---|---|---|---|\n", *rows, "\n"] if rows else ["No fields.\n\n"]
    )
    nested = [
        _message(described, (*place, _NESTED, at), one, f"{name}.{one.name}")
        for at, one in enumerate(message.nested_type)
        if not one.options.map_entry
    ]
    enums = [
        _enum(described, (*place, _NESTED_ENUMS, at), one, f"{name}.{one.name}")
        for at, one in enumerate(message.enum_type)
    ]
    return "".join([head, *table, *nested, *enums])


def _fields(described: Described, place: Place, message: DescriptorProto) -> Iterator[str]:
    maps = {one.name: one for one in message.nested_type if one.options.map_entry}
    for at, one in enumerate(message.field):
        notes = [described.comment(*place, _MEMBERS, at)]
        if one.HasField("oneof_index") and not one.proto3_optional:
            notes.append(f"One of `{message.oneof_decl[one.oneof_index].name}`.")
        text = " ".join(note for note in notes if note)
        yield f"| `{one.name}` | {_type(one, maps)} | {one.number} | {text} |\n"


def _type(field: FieldDescriptorProto, maps: dict[str, DescriptorProto]) -> str:
    entry = maps.get(field.type_name.rpartition(".")[2])
    if entry is not None:
        key, value = entry.field
        return f"map of {_plain(key)} to {_plain(value)}"
    if field.label == _F.LABEL_REPEATED:
        return f"repeated {_plain(field)}"
    return f"optional {_plain(field)}" if field.proto3_optional else _plain(field)


def _plain(field: FieldDescriptorProto) -> str:
    return _SCALARS.get(field.type) or _link(field.type_name)


def _link(type_name: str) -> str:
    name = _short(type_name)
    return f"[{name}](#{name.lower().replace('.', '')})"


def _short(type_name: str) -> str:
    """The name without its package, which is in lower case."""
    parts: Sequence[str] = type_name.lstrip(".").split(".")
    return ".".join(part for part in parts if part[:1].isupper())


def _enum(described: Described, place: Place, enum: EnumDescriptorProto, name: str) -> str:
    rows = [
        f"| `{one.name}` | {one.number} | {described.comment(*place, _MEMBERS, at)} |\n"
        for at, one in enumerate(enum.value)
    ]
    comment = described.comment(*place)
    head = f"### {name}\n\n" + (f"{comment}\n\n" if comment else "")
    return "".join([head, "| value | number | description |\n|---|---|---|\n", *rows, "\n"])
