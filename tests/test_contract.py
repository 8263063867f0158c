"""The .proto files follow the rules, and the committed code is generated from them.

The rules are those of buf's category STANDARD, with the exception and the option in
protos/buf.yaml. The tests check the rules on the descriptors that protoc writes, because buf cannot
be installed as a Python package.
"""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2 as pb
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from divgrpc_protos.v1 import diverse_index_pb2_grpc, query_pb2

ROOT = Path(__file__).parent.parent
PROTOS = ROOT / "protos"
THIRD_PARTY = PROTOS / "third_party"
PASCAL = re.compile(r"([A-Z][a-z0-9]*)+")
LOWER_SNAKE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
UPPER_SNAKE = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*")


def _make_proto(out: Path) -> str:
    """Run the Makefile's recipe with this interpreter, and return its output."""
    command = ["make", "--silent", "--assume-old=.venv/ready", "proto"]
    command += [f"OUT={out}", f"BIN={Path(sys.executable).parent}"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout + ran.stderr


@pytest.fixture(scope="module")
def files() -> list[pb.FileDescriptorProto]:
    """Compile the project's own .proto files, with comments."""
    sources = sorted(PROTOS.glob("divgrpc_protos/v1/*.proto"))
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTOS}", f"-I{THIRD_PARTY}"]
    command += ["--include_source_info", "--descriptor_set_out=/dev/stdout", *map(str, sources)]
    ran = subprocess.run(command, capture_output=True, check=True)
    return list(pb.FileDescriptorSet.FromString(ran.stdout).file)


def _site_packages() -> Path:
    from google.rpc import status_pb2

    return Path(status_pb2.__file__).parent.parent.parent


def _messages(file: pb.FileDescriptorProto) -> Iterator[pb.DescriptorProto]:
    waiting = list(file.message_type)
    while waiting:
        message = waiting.pop()
        if not message.options.map_entry:
            yield message
        waiting.extend(message.nested_type)


def _enums(file: pb.FileDescriptorProto) -> Iterator[pb.EnumDescriptorProto]:
    yield from file.enum_type
    for message in _messages(file):
        yield from message.enum_type


def _things(file: pb.FileDescriptorProto) -> list[pb.DescriptorProto | pb.EnumDescriptorProto]:
    return [*file.message_type, *file.enum_type]


def _upper_snake(name: str) -> str:
    """Convert a name as buf does: ``HashFamily`` to HASH_FAMILY, and ``DType`` to D_TYPE."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).upper()


def test_generated_code_is_fresh(tmp_path: Path) -> None:
    output = _make_proto(tmp_path)
    new_files = {path.name: path.read_bytes() for path in tmp_path.glob("divgrpc_protos/v1/*_pb2*")}
    repository_files = {
        path.name: path.read_bytes()
        for path in PROTOS.glob("divgrpc_protos/v1/*_pb2*")
        if path.is_file()
    }
    assert sorted(new_files) == sorted(repository_files)
    stale = [name for name in new_files if new_files[name] != repository_files[name]]
    assert not stale, f"run make proto: {stale}"
    assert output == ""


def test_generator_is_the_lowest_supported_toolchain() -> None:
    """Generated code refuses older runtimes, so version ranges begin at the generator's version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    base = {(r := Requirement(text)).name: r.specifier for text in project["dependencies"]}
    dev = {
        (r := Requirement(text)).name: r.specifier
        for text in project["optional-dependencies"]["dev"]
    }
    (pin,) = dev["grpcio-tools"]
    assert pin.operator == "=="
    assert version("grpcio-tools") == pin.version
    assert pin.version == diverse_index_pb2_grpc.GRPC_GENERATED_VERSION
    assert _lowest(base["grpcio"]) == Version(pin.version)
    stamp = re.search(r"Protobuf Python Version: (\S+)", Path(query_pb2.__file__).read_text())
    assert stamp is not None
    assert _lowest(base["protobuf"]) == Version(stamp[1])


def _lowest(range_: SpecifierSet) -> Version:
    (lowest,) = (Version(part.version) for part in range_ if part.operator == ">=")
    return lowest


def test_files_and_packages_follow_the_rules(files: list[pb.FileDescriptorProto]) -> None:
    assert len(files) == len(list(PROTOS.glob("divgrpc_protos/v1/*.proto")))
    for file in files:
        assert file.package == "divgrpc.v1"
        assert file.syntax == "proto3"
        assert LOWER_SNAKE.fullmatch(Path(file.name).stem), file.name
        assert Path(file.name).parent == Path("divgrpc_protos/v1"), "one folder for one package"
        assert not file.public_dependency
        assert not file.weak_dependency


def test_every_language_has_its_package(files: list[pb.FileDescriptorProto]) -> None:
    for file in files:
        options = file.options
        assert options.csharp_namespace == "Divgrpc.V1"
        assert options.go_package == "divgrpc/v1;divgrpcv1"
        assert options.java_multiple_files
        assert options.java_package == "divgrpc.v1"
        assert options.php_namespace == "Divgrpc\\V1"
        assert options.ruby_package == "Divgrpc::V1"


def test_imported_proto_files_are_unchanged_copies(files: list[pb.FileDescriptorProto]) -> None:
    """The files are those of the package googleapis-common-protos."""
    imports = {name for file in files for name in file.dependency} - {file.name for file in files}
    copies = {str(path.relative_to(THIRD_PARTY)) for path in THIRD_PARTY.rglob("*.proto")}
    assert imports == copies
    for name in copies:
        assert (THIRD_PARTY / name).read_bytes() == (_site_packages() / name).read_bytes()


def test_every_import_is_used(files: list[pb.FileDescriptorProto]) -> None:
    home = {f".{file.package}.{thing.name}": file.name for file in files for thing in _things(file)}
    home[".google.rpc.Status"] = "google/rpc/status.proto"
    for file in files:
        type_names = {
            field.type_name for m in _messages(file) for field in m.field if field.type_name
        }
        for message in _messages(file):
            type_names |= {f.type_name for n in message.nested_type for f in n.field if f.type_name}
        for service in file.service:
            type_names |= {t for rpc in service.method for t in (rpc.input_type, rpc.output_type)}
        expected = {home[name] for name in type_names if name in home} - {file.name}
        assert set(file.dependency) == expected, file.name


def test_names_follow_the_rules(files: list[pb.FileDescriptorProto]) -> None:
    for file in files:
        for message in _messages(file):
            assert PASCAL.fullmatch(message.name), message.name
            # For every `optional` field, protoc adds a oneof whose name begins with an underscore.
            # The rest of the name must follow the rule too.
            names = [f.name for f in message.field]
            names += [o.name.removeprefix("_") for o in message.oneof_decl]
            for name in names:
                assert LOWER_SNAKE.fullmatch(name), name
        for service in file.service:
            assert PASCAL.fullmatch(service.name), service.name
            for rpc in service.method:
                assert PASCAL.fullmatch(rpc.name), rpc.name


def test_enums_follow_the_rules(files: list[pb.FileDescriptorProto]) -> None:
    for file in files:
        for enum in _enums(file):
            prefix = _upper_snake(enum.name) + "_"
            assert PASCAL.fullmatch(enum.name), enum.name
            assert not enum.options.allow_alias
            assert (enum.value[0].name, enum.value[0].number) == (f"{prefix}UNSPECIFIED", 0)
            for value in enum.value:
                assert value.name.startswith(prefix), f"{value.name} must begin with {prefix}"
                assert UPPER_SNAKE.fullmatch(value.name), value.name


def test_rpcs_follow_the_rules(files: list[pb.FileDescriptorProto]) -> None:
    message_types: list[str] = []
    for file in files:
        for service in file.service:
            assert service.name.endswith("Index"), service.name
            for rpc in service.method:
                assert rpc.input_type == f".divgrpc.v1.{rpc.name}Request"
                assert rpc.output_type == f".divgrpc.v1.{rpc.name}Response"
                message_types += [rpc.input_type, rpc.output_type]
    assert message_types
    assert len(message_types) == len(set(message_types))


def test_everything_is_commented(files: list[pb.FileDescriptorProto]) -> None:
    bare = []
    for file in files:
        comment_paths = {
            tuple(place.path)
            for place in file.source_code_info.location
            if place.leading_comments.strip()
        }
        things: dict[tuple[int, ...], str]
        things = {(4, i): m.name for i, m in enumerate(file.message_type)}
        things |= {(5, i): e.name for i, e in enumerate(file.enum_type)}
        for i, service in enumerate(file.service):
            things[6, i] = service.name
            things |= {(6, i, 2, j): rpc.name for j, rpc in enumerate(service.method)}
        bare += [name for path, name in things.items() if path not in comment_paths]
    assert not bare
