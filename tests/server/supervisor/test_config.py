"""The sources of the configuration, and the values that the server refuses."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from divgrpc.errors import InvalidArgumentError
from divgrpc_server.__main__ import parser, run
from divgrpc_server.config import Config, load
from support.checks.refusals import refused


def test_defaults_are_for_one_machine() -> None:
    """By default the server listens on the loopback address only."""
    config = load({}, {}, None)
    assert config == Config()
    assert (config.host, config.port) == ("127.0.0.1", 50051)
    assert config.workers >= 1
    assert config.fronts == 1


def test_arguments_win_over_environment_over_file(tmp_path: Path) -> None:
    """For each option, arguments take precedence over the environment, and that over the file."""
    file = tmp_path / "server.toml"
    file.write_text('workers = 2\nfronts = 2\ngrace = 2\nlog_level = "debug"\naccess_log = false\n')
    environment = {"DIVGRPC_FRONTS": "3", "DIVGRPC_GRACE": "3.5", "DIVGRPC_REFLECTION": "no"}
    config = load({"grace": "4"}, environment, file)
    assert (config.workers, config.fronts, config.grace) == (2, 3, 4.0)
    assert (config.log_level, config.access_log, config.reflection) == ("debug", False, False)


def test_children_get_the_same_configuration() -> None:
    """The supervisor passes the configuration to its child processes as JSON."""
    config = Config(listen="[::1]:0", workers=3, grace=1.5, reflection=False)
    assert Config.from_json(config.to_json()) == config
    assert config.host == "::1"


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"listen": "nowhere"}, "listen"),
        ({"listen": ":50051"}, "listen"),
        ({"listen": "host:99999"}, "listen"),
        ({"workers": "0"}, "workers"),
        ({"workers": "many"}, "workers"),
        ({"grace": "-1"}, "grace"),
        ({"grace": "nan"}, "grace"),
        ({"log_format": "xml"}, "log_format"),
        ({"reflection": "perhaps"}, "reflection"),
    ],
    ids=str,
)
def test_a_wrong_option_is_named(options: dict[str, object], option: str) -> None:
    """Errors for a wrong type and for a value out of range name the option."""
    with refused(option):
        load(options, {}, None)


@pytest.mark.parametrize("text", ["wokers = 2\n", "workers = true\n", "workers =\n"])
def test_a_wrong_file_is_refused(tmp_path: Path, text: str) -> None:
    """Unknown names, wrong types and broken TOML are errors."""
    file = tmp_path / "server.toml"
    file.write_text(text)
    with pytest.raises(InvalidArgumentError):
        load({}, {}, file)


def test_a_wrong_option_ends_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is 2, and one line on stderr gives the valid range of the option."""
    assert run(["--workers", "0"], {}) == 2
    assert "workers must be between 1 and 1024" in capsys.readouterr().err
    assert run([], {"DIVGRPC_CONFIG": "/nowhere"}) == 2


def test_help_names_every_option() -> None:
    """Every field of the configuration is an option and has a help text."""
    text = parser().format_help()
    for field in dataclasses.fields(Config):
        assert "--" + field.name.replace("_", "-") in text
        assert field.metadata["help"]


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("divgrpc_server.supervisor.supervisor", ("grpc", "numba", "google")),
        ("divgrpc_server.__main__", ("grpc", "numba", "google")),
        ("divgrpc_server.front.__main__", ("numba", "scipy", "llvmlite")),
        ("divgrpc_server.worker.__main__", ("grpc",)),
        ("divgrpc_server.builder.__main__", ("grpc", "numba")),
    ],
)
def test_processes_do_not_import_what_they_do_not_need(
    module: str, absent: tuple[str, ...]
) -> None:
    """For example, fronts do not import numba, and workers do not import gRPC."""
    program = f"import sys, {module}; print([m for m in {absent!r} if m in sys.modules])"
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert output.stdout.strip() == "[]"
