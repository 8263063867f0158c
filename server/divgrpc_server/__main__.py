"""The command `divgrpc-server`, which reads the configuration and runs the supervisor."""

import argparse
import dataclasses
import importlib.util
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import divgrpc
from divgrpc.errors import DivgrpcError, InvalidArgumentError
from divgrpc.platforms import allow_open_files
from divgrpc_server import config as configuration
from divgrpc_server.security import command
from divgrpc_server.security import options as security

# Modules that the extra `server` installs.
_EXTRA_MODULES: Final = (
    *("numba", "scipy", "structlog", "grpc_health", "grpc_reflection", "prometheus_client"),
)

# What stands for the values of options, unless their type says it.
_METAVARS: Final = {
    "recall_sample": "SHARE",
    "hedge_ms": "MILLISECONDS",
    "shard_servers": "ADDRESSES",
    "cluster_name": "NAME",
}

_DESCRIPTION = """\
Serves diverse retrieval over gRPC: results that are near the query and different from one another.

Each option may also be set by the environment (--data-dir: DIVGRPC_DATA_DIR) or in the TOML file
that --config names (data_dir = "..."). Arguments win over the environment, which wins over the
file.

Once the server serves it prints one line, `serving HOST:PORT`, on standard output; logs go to
standard error. SIGTERM or SIGINT lets running calls finish; a second signal ends them.
"""
_EPILOG = """\
Examples:
  divgrpc-server                               indexes in memory, 127.0.0.1:50051
  divgrpc-server --data-dir /var/lib/divgrpc   indexes on disk, which outlive the server
  divgrpc-server --listen 127.0.0.1:0          a free port; `serving HOST:PORT` is printed
  divgrpc-server --data-dir /mnt/divgrpc --read-only   beside a server that writes there
  divgrpc-server --config divgrpc.toml --workers 4
  divgrpc-server token --help                  makes a token for a caller
  divgrpc-server --listen 0.0.0.0:50051 --tls-cert server.pem --tls-key server-key.pem

Ask the server with divgrpc --help, or with a client of any language.
"""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line, which has one option per field of `Config`."""
    command = argparse.ArgumentParser(
        prog="divgrpc-server",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    command.add_argument("--version", action="version", version=divgrpc.__version__)
    command.add_argument("--config", metavar="FILE", help="TOML file of options (DIVGRPC_CONFIG)")
    for field in dataclasses.fields(configuration.Config):
        flag = "--" + field.name.replace("_", "-")
        text = field.metadata["help"]
        if field.metadata["is_internal"]:
            command.add_argument(flag, help=argparse.SUPPRESS)
            continue
        default = _shown(field.default)
        if field.type is bool:
            command.add_argument(
                flag, action=argparse.BooleanOptionalAction, help=f"{text} (default: {default})"
            )
        else:
            note = f" (default: {default})" if default else ""
            command.add_argument(flag, metavar=_metavar(field), help=text + note)
    return command


def _shown(default: object) -> str:
    """Return a default as the help shows it: yes and no, numbers without a needless .0."""
    if isinstance(default, bool):
        return "yes" if default else "no"
    return f"{default:g}" if isinstance(default, float) else str(default)


def _metavar(field: "dataclasses.Field[object]") -> str:
    if field.metadata["choices"]:
        return "|".join(field.metadata["choices"])
    if field.name in ("listen", "metrics", "ray_address"):
        return "HOST:PORT"
    if field.name in _METAVARS:
        return _METAVARS[field.name]
    return "N" if field.type is int else "SECONDS" if field.type is float else "PATH"


def run(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run the server and return its exit code.

    If the configuration is invalid, the code is 2. If the server cannot start, the code is 1.
    """
    if arguments[:1] == ["token"]:
        return command.run(arguments[1:])
    options = vars(parser().parse_args(arguments))
    file = options.pop("config", environment.get("DIVGRPC_CONFIG"))
    try:
        config = configuration.load(options, environment, Path(file) if file else None)
        security.check(config)
    except InvalidArgumentError as error:
        sys.stderr.write(f"divgrpc-server: {error}\n")
        return 2
    if missing := [name for name in _EXTRA_MODULES if importlib.util.find_spec(name) is None]:
        # Check for the packages of the extra `server`. This command is installed even without the
        # extra, because an extra cannot add a command.
        sys.stderr.write(f"divgrpc-server needs {missing[0]}: install divgrpc[server]\n")
        return 1
    if config.engine == "ray" and importlib.util.find_spec("ray") is None:
        sys.stderr.write("divgrpc-server --engine ray needs ray: install divgrpc[server,ray]\n")
        return 1
    from divgrpc_server.logging import logs
    from divgrpc_server.supervisor import supervisor

    # Each connection and each file of an index needs a descriptor.
    allow_open_files()
    _exit_on_signals()
    log = logs.configure(config, "supervisor")
    try:
        return supervisor.run(config, log)
    except DivgrpcError as error:
        log.error("cannot start", reason=str(error))  # noqa: TRY400  # a traceback would not help
        return 1


def _exit_on_signals() -> None:
    """Exit cleanly on a signal that arrives before the supervisor installs its signal handlers."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: sys.exit(128 + number))


def main() -> None:
    """Run `divgrpc-server`."""
    sys.exit(run(sys.argv[1:], os.environ))


if __name__ == "__main__":
    main()
