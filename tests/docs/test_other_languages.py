"""Clients in other languages, generated and run by the commands that the documentation prints."""

import os
import re
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import grpc
import numpy as np
import pytest
from google.protobuf import json_format
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from divgrpc_client import Client
from divgrpc_protos.v1 import diverse_index_pb2
from support.checks.documentation import PAGES, ROOT, SHELLS, blocks, commands, program
from support.processes import toolchains
from support.processes.running_server import RunningServer

ADDRESS = "127.0.0.1:50051"
LANGUAGES = "guide/other-languages.md"
LOAD_TESTING = "guide/load-testing.md"
NODE_MODULES = ROOT / ".venv" / "node" / "node_modules"
DEBIAN_PACKAGES = Path("/usr/share/doc")
PROTOC_OUTPUTS = {
    "java": "divgrpc/v1/QueryRequest.java",
    "csharp": "Query.cs",
    "php": "Divgrpc/V1/QueryRequest.php",
    "ruby": "divgrpc_protos/v1/query_pb.rb",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder that holds only a link `divgrpc` to the repository, in place of a clone."""
    (tmp_path / "divgrpc").symlink_to(ROOT)
    return tmp_path


def run(command: str, folder: Path, **environment: str) -> str:
    """Run a command in a shell, as a reader would, and return its output."""
    # `python` must be this interpreter, but without the paths that make divgrpc's own code
    # importable.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": path, **environment},
    )
    assert ran.returncode == 0, f"{command}\n{ran.stderr}"
    return ran.stdout


def near_copies() -> list[list[float]]:
    """Return the rows from which every example builds its index."""
    corners = [(x, y, z) for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)]
    return [
        [side + 0.01 * copy * axis for axis, side in enumerate(corner)]
        for corner in corners
        for copy in range(3)
    ]


def expected(client: Client, name: str) -> list[str]:
    """Return the lines that an example must print, from the results of the Python client."""
    points = np.array(near_copies(), np.float32)
    client.build("cube-expected", points, replace=True)
    result = client.query("cube-expected", np.array([1, 0.9, 0.8], np.float32), k=3, diversity=0.3)
    hits = zip(result.ids[0], result.scores[0], strict=True)
    return [
        f"built {name}: 24 rows, 3 dimensions",
        *(f"id {row} score {score:.4f}" for row, score in hits),
    ]


def printed(page: str, *words: str) -> list[str]:
    """Return the shell commands of a page that begin with `words`."""
    shells = [b for b in blocks(page, (PAGES / page).read_text()) if b.language in SHELLS]
    texts = [text for block in shells for text in commands(block)]
    return [text for text in texts if _words(text)[: len(words)] == list(words)]


def only(*words: str, page: str = LANGUAGES) -> str:
    """Return the only command that begins with `words`."""
    (command,) = printed(page, *words)
    return command


def _words(command: str) -> list[str]:
    words = shlex.split(command.replace("\\\n", " "))
    return words[words.index(program(command)) :]


def test_python_example_runs(folder: Path, server: RunningServer, client: Client) -> None:
    """In an empty folder, the printed command generates the code that the example needs."""
    assert _words(only("python", "-m", "pip"))[-2:] == ["install", "grpcio-tools"]
    run(only("python", "-m", "grpc_tools.protoc"), folder)
    # -S skips the .pth file that makes this project's own packages importable.
    call = only("python", "divgrpc/docs/examples/python/build_and_query.py")
    call = call.replace(ADDRESS, server.target)
    call = call.replace("PYTHONPATH=. python", f"PYTHONPATH=.:{_site_packages()} python -S")
    where = "import divgrpc_protos.v1.query_pb2 as m; print(m.__file__)"
    code = f'PYTHONPATH=.:{_site_packages()} python -S -c "{where}"'
    assert run(code, folder).strip() == str(folder / "divgrpc_protos/v1/query_pb2.py")
    assert run(call, folder).splitlines() == expected(client, "cube-python")


def _site_packages() -> str:
    return sysconfig.get_path("purelib")


def test_node_example_runs(tmp_path: Path, server: RunningServer, client: Client) -> None:
    """The example needs no generated code, because Node loads the .proto files at run time."""
    toolchains.require("node", "npm")
    if not NODE_MODULES.is_dir():
        toolchains.skip("node-modules", "make .venv/node/ready")
    assert only("npm") == "npm ci"
    call = only("node").replace(ADDRESS, server.target)
    # Node looks for modules next to the file that it runs.
    example = tmp_path / "divgrpc/docs/examples/node"
    example.mkdir(parents=True)
    (example / "build_and_query.js").write_bytes(
        (ROOT / "docs/examples/node/build_and_query.js").read_bytes()
    )
    (example / "node_modules").symlink_to(NODE_MODULES)
    (tmp_path / "divgrpc/protos").symlink_to(ROOT / "protos")
    assert only("cd").split()[1] == str(example.relative_to(tmp_path))
    assert run(call, example).splitlines() == expected(client, "cube-node")


def test_go_example_runs(folder: Path, server: RunningServer, client: Client) -> None:
    toolchains.require("go", "protoc", "protoc-gen-go", "protoc-gen-go-grpc")
    for package in _words(only("sudo", "apt-get", "install"))[3:]:
        if not (DEBIAN_PACKAGES / package).exists():
            toolchains.skip(package)
    run(only("mkdir") + "\n" + only("protoc"), folder)
    call = only("go").replace(ADDRESS, server.target)
    assert run(call, folder, GOFLAGS="").splitlines() == expected(client, "cube-go")


@pytest.mark.parametrize("language", PROTOC_OUTPUTS)
def test_protoc_generates_for_other_languages(folder: Path, language: str) -> None:
    """The generators that come with protoc need only the two include folders on the page."""
    toolchains.require("protoc")
    include = "-I divgrpc/protos/third_party -I divgrpc/protos"
    sources = "divgrpc/protos/divgrpc_protos/v1/*.proto"
    run(f"mkdir made && protoc {include} --{language}_out=made {sources}", folder)
    assert (folder / "made" / PROTOC_OUTPUTS[language]).is_file()


def _method(name: str) -> MethodDescriptor:
    """Return the descriptor of a method by its name, `package.Service/Method`."""
    service, method = name.split("/")
    descriptor = diverse_index_pb2.DESCRIPTOR.services_by_name["DiverseIndex"]
    assert service == descriptor.full_name
    methods: dict[str, MethodDescriptor] = dict(descriptor.methods_by_name)
    return methods[method]


def _send(channel: grpc.Channel, method: str, body: str) -> Message:
    """Send a message that is given as JSON, and return the answer."""
    kind = _method(method)
    request = json_format.Parse(body, GetMessageClass(kind.input_type)())
    answer = GetMessageClass(kind.output_type)
    call = channel.unary_unary(
        f"/{method}",
        request_serializer=type(request).SerializeToString,
        response_deserializer=answer.FromString,
    )
    response: Message = call(request, timeout=60)
    return response


def _after(option: str, command: str) -> str:
    words = _words(command)
    return words[words.index(option) + 1]


def test_grpcurl_messages_are_answered(server: RunningServer) -> None:
    """The JSON messages of the printed grpcurl calls build an index and query it."""
    listing, *calls = printed(LANGUAGES, "grpcurl")
    assert _words(listing)[-1] == "list"
    methods = [_words(command)[-1] for command in calls]
    assert [name.split("/")[1] for name in methods] == ["BuildOnce", "Query"]
    with server.channel() as channel:
        build_answer, answer = (
            _send(channel, method, _after("-d", command))
            for method, command in zip(methods, calls, strict=True)
        )
    request = json_format.ParseDict(
        json_format.MessageToDict(answer), GetMessageClass(_method(methods[1]).output_type)()
    )
    assert request == answer
    assert len(answer.ids) == answer.parameters.k  # type: ignore[attr-defined]  # a QueryResponse
    assert build_answer.index.name == "corners"  # type: ignore[attr-defined]  # a BuildOnceResponse


def test_ghz_message_is_answered(server: RunningServer, client: Client) -> None:
    """The printed ghz call queries the index that the Python block above it builds."""
    ghz = only("ghz", page=LOAD_TESTING)
    _build_loaded(client)
    with server.channel() as channel:
        answer = _send(
            channel, _after("--call", ghz).replace("Index.", "Index/"), _after("-d", ghz)
        )
    assert len(answer.ids) == answer.parameters.k  # type: ignore[attr-defined]  # a QueryResponse


def _build_loaded(client: Client) -> None:
    """Build the index of the page, from the vectors that its Python block defines."""
    text = (PAGES / LOAD_TESTING).read_text()
    match = re.search(r'^vectors = (.*)\n.*\n.*client\.build\("loaded"', text, re.M)
    assert match is not None
    vectors = eval(match[1], {"np": np})  # noqa: S307  # the page's own line
    client.build("loaded", vectors, replace=True)


def test_grpcurl_commands_run(folder: Path, server: RunningServer) -> None:
    toolchains.require("grpcurl")
    listing, build, query = (
        command.replace("localhost:50051", server.target)
        for command in printed(LANGUAGES, "grpcurl")
    )
    assert "divgrpc.v1.DiverseIndex" in run(listing, folder).splitlines()
    assert '"rows": "6"' in run(build, folder)
    assert run(query, folder).count('"ids"') == 1


def test_ghz_command_runs(folder: Path, server: RunningServer, client: Client) -> None:
    toolchains.require("ghz")
    _build_loaded(client)
    output = run(only("ghz", page=LOAD_TESTING).replace(ADDRESS, server.target), folder)
    assert re.search(r"\[OK\]\s+\d+ responses", output)
    assert "Error distribution" not in output
