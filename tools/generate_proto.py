"""Generates `everwork/proto` from the files in `proto/`: run it after every change to them.

protoc's own Python output is not used: it registers everything in the default pool of the process, where it would
collide with a user's own generated code of the same messages, and it refuses to run with an older protobuf.

    python -m tools.generate_proto [FOLDER]
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

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

ROOT: Final = Path(__file__).parents[1]
SOURCES: Final = ("atom/jobs/v1/jobs.proto", "zeebe/gateway.proto", "everwork/v1/work.proto")

_F = FieldDescriptorProto
_SCALARS: Final = {
    _F.TYPE_BOOL: "bool",
    _F.TYPE_BYTES: "bytes",
    _F.TYPE_DOUBLE: "float",
    _F.TYPE_FLOAT: "float",
    _F.TYPE_STRING: "str",
}


def main(folder: Path) -> None:
    """Write every generated file into a folder."""
    for source in SOURCES:
        stem = Path(source).stem
        file = _described(source)
        shutil.copyfile(ROOT / "proto" / source, folder / f"{stem}.proto")
        for name, lines in (
            (f"{stem}_pb2.py", _messages(source, file)),
            (f"{stem}_pb2.pyi", _message_types(source, file)),
            (f"{stem}_pb2_grpc.py", _services(source, stem, file)),
            (f"{stem}_pb2_grpc.pyi", _service_types(source, stem, file)),
        ):
            (folder / name).write_text("\n".join(lines) + "\n")


def _described(source: str) -> FileDescriptorProto:
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch, "set")
        if protoc.main(["protoc", f"-I{ROOT / 'proto'}", f"--descriptor_set_out={out}", source]):
            raise SystemExit(f"protoc refuses {source}")
        file = FileDescriptorSet.FromString(out.read_bytes()).file[0]
    for message in _all(file.message_type):
        for field in message.field:
            field.ClearField("json_name")
    return file


def _all(messages: Sequence[DescriptorProto]) -> Iterator[DescriptorProto]:
    for message in messages:
        yield message
        yield from _all(message.nested_type)


# Messages -------------------------------------------------------------------------------------------


def _messages(source: str, file: FileDescriptorProto) -> Iterator[str]:
    yield from _head(source)
    yield "from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper"
    yield "from google.protobuf.message_factory import GetMessageClass"
    yield ""
    yield "from everwork.proto.pool import add_file"
    yield ""
    yield "DESCRIPTOR = add_file("
    yield f"    {file.name!r},"
    serialized = file.SerializeToString(deterministic=True)
    yield from (f"    {serialized[at : at + 80]!r}" for at in range(0, len(serialized), 80))
    yield ")"
    yield "_messages = DESCRIPTOR.message_types_by_name"
    for message in file.message_type:
        yield f"{message.name} = GetMessageClass(_messages[{message.name!r}])"
    for enum in file.enum_type:
        yield f"{enum.name} = EnumTypeWrapper(DESCRIPTOR.enum_types_by_name[{enum.name!r}])"
        yield from (f"{value.name} = {value.number}" for value in enum.value)


def _message_types(source: str, file: FileDescriptorProto) -> Iterator[str]:
    yield from _head(source)
    yield "from collections.abc import Iterable, Mapping, MutableMapping"
    yield "from typing import ClassVar"
    yield ""
    yield "from google.protobuf.descriptor import FileDescriptor"
    yield "from google.protobuf.internal import containers"
    yield "from google.protobuf.internal.enum_type_wrapper import _EnumTypeWrapper"
    yield "from google.protobuf.message import Message"
    yield ""
    yield "DESCRIPTOR: FileDescriptor"
    for enum in file.enum_type:
        yield from _enum_types(enum, "")
    for message in file.message_type:
        yield ""
        yield from _class(file, message)


def _class(file: FileDescriptorProto, message: DescriptorProto) -> Iterator[str]:
    yield f"class {message.name}(Message):"
    for enum in message.enum_type:
        yield from _enum_types(enum, "    ")
    for field in message.field:
        yield f"    {field.name}: {_read(file, message, field)}"
    parameters = [f"{field.name}: {_given(file, message, field)} = ..." for field in message.field]
    yield f"    def __init__(self{', *, ' if parameters else ''}{', '.join(parameters)}) -> None: ..."


def _enum_types(enum: EnumDescriptorProto, indent: str) -> Iterator[str]:
    class_var = "ClassVar[{}]" if indent else "{}"
    yield f"{indent}{enum.name}: {class_var.format('_EnumTypeWrapper[int]')}"
    yield from (f"{indent}{value.name}: {class_var.format('int')}" for value in enum.value)


def _read(file: FileDescriptorProto, message: DescriptorProto, field: FieldDescriptorProto) -> str:
    if entry := _entry(message, field):
        return f"MutableMapping[{_kind(file, entry.field[0])}, {_kind(file, entry.field[1])}]"
    kind = _kind(file, field)
    if field.label != _F.LABEL_REPEATED:
        return kind
    container = "Composite" if field.type == _F.TYPE_MESSAGE else "Scalar"
    return f"containers.Repeated{container}FieldContainer[{kind}]"


def _given(file: FileDescriptorProto, message: DescriptorProto, field: FieldDescriptorProto) -> str:
    if entry := _entry(message, field):
        return f"Mapping[{_kind(file, entry.field[0])}, {_kind(file, entry.field[1])}] | None"
    kind = _kind(file, field)
    return f"{f'Iterable[{kind}]' if field.label == _F.LABEL_REPEATED else kind} | None"


def _entry(message: DescriptorProto, field: FieldDescriptorProto) -> DescriptorProto | None:
    """The entry message of a map field; None if the field is not a map."""
    name = field.type_name.rpartition(".")[2]
    return next((n for n in message.nested_type if n.options.map_entry and n.name == name), None)


def _kind(file: FileDescriptorProto, field: FieldDescriptorProto) -> str:
    if field.type == _F.TYPE_MESSAGE:
        return field.type_name.removeprefix(f".{file.package}.")
    return _SCALARS.get(field.type, "int")


# Services -------------------------------------------------------------------------------------------


def _services(source: str, stem: str, file: FileDescriptorProto) -> Iterator[str]:
    yield from _head(source)
    yield "import grpc"
    yield ""
    yield f"from everwork.proto import {stem}_pb2"
    for service in file.service:
        yield from _stub(stem, file, service)
        yield from _servicer(service)
        yield from _adder(stem, file, service)


def _stub(stem: str, file: FileDescriptorProto, service: ServiceDescriptorProto) -> Iterator[str]:
    yield ""
    yield ""
    yield f"class {service.name}Stub:"
    yield "    def __init__(self, channel):"
    for method in service.method:
        asked, answered = _type(method.input_type), _type(method.output_type)
        yield f"        self.{method.name} = channel.{_shape(method)}("
        yield f"            '/{file.package}.{service.name}/{method.name}',"
        yield f"            request_serializer={stem}_pb2.{asked}.SerializeToString,"
        yield f"            response_deserializer={stem}_pb2.{answered}.FromString,"
        yield "        )"
    yield ""
    yield ""
    yield f"{service.name}AsyncStub = {service.name}Stub"


def _servicer(service: ServiceDescriptorProto) -> Iterator[str]:
    yield ""
    yield ""
    yield f"class {service.name}Servicer:"
    for method in service.method:
        argument = "request_iterator" if method.client_streaming else "request"
        yield f"    def {method.name}(self, {argument}, context):"
        yield "        context.set_code(grpc.StatusCode.UNIMPLEMENTED)"
        yield "        raise NotImplementedError('Method not implemented!')"
        yield ""


def _adder(stem: str, file: FileDescriptorProto, service: ServiceDescriptorProto) -> Iterator[str]:
    name = f"{file.package}.{service.name}"
    yield ""
    yield f"def add_{service.name}Servicer_to_server(servicer, server):"
    yield "    handlers = {"
    for method in service.method:
        asked, answered = _type(method.input_type), _type(method.output_type)
        yield f"        '{method.name}': grpc.{_shape(method)}_rpc_method_handler("
        yield f"            servicer.{method.name},"
        yield f"            request_deserializer={stem}_pb2.{asked}.FromString,"
        yield f"            response_serializer={stem}_pb2.{answered}.SerializeToString,"
        yield "        ),"
    yield "    }"
    yield f"    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler('{name}', handlers),))"


def _service_types(source: str, stem: str, file: FileDescriptorProto) -> Iterator[str]:
    yield from _head(source)
    yield "# ruff: noqa: N802"
    yield "# fmt: off"
    yield ""
    yield "from typing import Any"
    yield ""
    yield "import grpc"
    yield "import grpc.aio"
    yield ""
    yield f"from everwork.proto import {stem}_pb2"
    for service in file.service:
        for kind, module in (("", "grpc"), ("Async", "grpc.aio")):
            yield ""
            yield f"class {service.name}{kind}Stub:"
            yield f"    def __init__(self, channel: {module}.Channel) -> None: ..."
            for method in service.method:
                shape = "".join(part.capitalize() for part in _shape(method).split("_"))
                yield f"    {method.name}: {module}.{shape}MultiCallable["
                yield f"        {stem}_pb2.{_type(method.input_type)}, {stem}_pb2.{_type(method.output_type)}"
                yield "    ]"
        yield ""
        yield f"class {service.name}Servicer:"
        for method in service.method:
            argument = "request_iterator" if method.client_streaming else "request"
            yield f"    def {method.name}(self, {argument}: Any, context: Any) -> Any: ..."
        yield ""
        yield f"def add_{service.name}Servicer_to_server(servicer: {service.name}Servicer, server: Any) -> None: ..."


def _shape(method: MethodDescriptorProto) -> str:
    return "_".join("stream" if streams else "unary" for streams in (method.client_streaming, method.server_streaming))


def _type(name: str) -> str:
    return name.rpartition(".")[2]


def _head(source: str) -> Iterator[str]:
    yield f'"""Generated from proto/{source} by tools/generate_proto.py. Do not edit."""'
    yield ""


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "src" / "everwork" / "proto")
