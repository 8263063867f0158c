"""Generates the page of the gRPC API from the comments of the .proto files.

The generated modules have no comments. protoc keeps comments only in a descriptor set that is made
with `--include_source_info`. For each comment, the source info of this set gives the path of the
element to which the comment belongs.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc_tools
from comments import from_comment, table
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)
from grpc_tools import protoc

ROOT = Path(__file__).parent.parent
PROTOS = ROOT / "protos"
_WELL_KNOWN = Path(grpc_tools.__file__).parent / "_proto"  # has google/protobuf/any.proto
FILES = (
    "diverse_index",
    "vectors",
    "index",
    "points",
    "attributes",
    "filters",
    "quotas",
    "writes",
    "query",
    "explanations",
    "diversify",
    "labels",
    "predict",
    "evaluate",
    "evaluate_labels",
    "diagnose",
    "shard_index",
)
PACKAGE = ".divgrpc.v1."
# Field numbers of descriptor.proto. A path in the source info consists of such field numbers and of
# positions in repeated fields.
FILE_MESSAGE, FILE_ENUM, FILE_SERVICE, FILE_SYNTAX = 4, 5, 6, 12
MESSAGE_FIELD, MESSAGE_NESTED, MESSAGE_ENUM, SERVICE_METHOD, ENUM_VALUE = 2, 3, 4, 2, 2
_INTRODUCTION = """\
# gRPC API

The service is `divgrpc.v1.DiverseIndex`. The `.proto` files are in `protos/divgrpc_protos/v1`; this
page is generated from their comments. [Other languages](../guide/other-languages.md) shows how to
generate code from them, and [Errors and warnings](../guide/errors.md) lists the statuses.

A field marked *optional* takes its default when it is unset. Enum values whose name ends in
`_UNSPECIFIED` mean that the field is unset.
"""

Comments = dict[tuple[int, ...], str]
NodePath = tuple[int, ...]


def compile_protos() -> FileDescriptorSet:
    """Compile the .proto files and return their descriptors, including comments."""
    sources = sorted(PROTOS.glob("divgrpc_protos/v1/*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "descriptors"
        includes = [f"-I{folder}" for folder in (PROTOS, PROTOS / "third_party", _WELL_KNOWN)]
        options = ["--include_source_info", f"--descriptor_set_out={output}"]
        command = ["protoc", *includes, *options, *sources]
        if protoc.main([str(argument) for argument in command]) != 0:
            raise RuntimeError("protoc refused the .proto files; it has said why")
        return FileDescriptorSet.FromString(output.read_bytes())


def page(files: FileDescriptorSet | None = None) -> str:
    """Return the page as Markdown: file by file, the service, the enums and the messages."""
    descriptors = (files or compile_protos()).file
    sorted_files = sorted(descriptors, key=lambda file: FILES.index(Path(file.name).stem))
    return "\n".join([_INTRODUCTION, *(line for file in sorted_files for line in _file(file))])


def _file(file: FileDescriptorProto) -> Iterator[str]:
    places = {tuple(place.path): place for place in file.source_code_info.location}
    comments = {path: from_comment(place.leading_comments) for path, place in places.items()}
    # The opening comment of a file is detached: an empty line separates it from the syntax line.
    opening = from_comment("\n\n".join(places[(FILE_SYNTAX,)].leading_detached_comments))
    yield f"## {Path(file.name).name}\n\n{opening}\n"
    for number, service in enumerate(file.service):
        yield from _service(service, (FILE_SERVICE, number), comments)
    for number, enum in enumerate(file.enum_type):
        yield from _enum(enum, (FILE_ENUM, number), comments, "")
    for number, message in enumerate(file.message_type):
        yield from _message(message, (FILE_MESSAGE, number), comments, "")


def _service(service: ServiceDescriptorProto, path: NodePath, comments: Comments) -> Iterator[str]:
    yield f"### {service.name}\n\n{comments.get(path, '')}\n"
    for number, method in enumerate(service.method):
        request, response = (_link(kind) for kind in (method.input_type, method.output_type))
        asks = "stream of " if method.client_streaming else ""
        answers = "stream of " if method.server_streaming else ""
        yield f"#### {method.name}\n\n{asks}{request} → {answers}{response}\n"
        yield comments.get((*path, SERVICE_METHOD, number), "") + "\n"


def _enum(
    enum: EnumDescriptorProto, path: NodePath, comments: Comments, scope: str
) -> Iterator[str]:
    yield f"{_heading(scope + enum.name)}\n\n{comments.get(path, '')}\n"
    rows = (
        (f"`{value.name}`", str(value.number), comments.get((*path, ENUM_VALUE, number), ""))
        for number, value in enumerate(enum.value)
    )
    yield table(("value", "number", "meaning"), rows) + "\n"


def _message(
    message: DescriptorProto, path: NodePath, comments: Comments, scope: str
) -> Iterator[str]:
    if message.options.map_entry:
        return
    name = scope + message.name
    yield f"{_heading(name)}\n\n{comments.get(path, '')}\n"
    maps = {f"{PACKAGE}{name}.{n.name}": n for n in message.nested_type if n.options.map_entry}
    rows = []
    for number, field in enumerate(message.field):
        text = comments.get((*path, MESSAGE_FIELD, number), "")
        if field.HasField("oneof_index") and not field.proto3_optional:
            choice = message.oneof_decl[field.oneof_index].name
            text = f"One of `{choice}`. {text}".strip()
        rows.append((f"`{field.name}`", str(field.number), _type(field, maps), text))
    if rows:
        yield table(("field", "number", "type", "meaning"), rows) + "\n"
    for number, child in enumerate(message.nested_type):
        yield from _message(child, (*path, MESSAGE_NESTED, number), comments, f"{name}.")
    for number, enum in enumerate(message.enum_type):
        yield from _enum(enum, (*path, MESSAGE_ENUM, number), comments, f"{name}.")


def _heading(name: str) -> str:
    # The full name, in lower case, is the anchor for links. It is unique on this page.
    return f"### {name} {{ #{name.lower()} }}"


def _type(field: FieldDescriptorProto, maps: dict[str, DescriptorProto]) -> str:
    """Return the type of a field in .proto syntax, with a link if the page describes the type."""
    entry = maps.get(field.type_name)
    if entry is not None:
        key, value = (_type(part, {}) for part in entry.field)
        return f"map of {key} to {value}"
    if field.type_name:
        name = _link(field.type_name)
    else:
        name = descriptor_pb2.FieldDescriptorProto.Type.Name(field.type)
        name = f"`{name.removeprefix('TYPE_').lower()}`"
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"repeated {name}"
    return f"optional {name}" if field.proto3_optional else name


def _link(type_name: str) -> str:
    name = type_name.removeprefix(PACKAGE)
    if name == type_name:
        return f"`{type_name.removeprefix('.')}`"
    return f"[`{name}`](#{name.lower()})"
