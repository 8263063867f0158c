"""What a figure is worth nothing without: machine, versions, commit, data, command, date."""

import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
_PACKAGES = ("numpy", "scipy", "numba", "llvmlite", "grpcio", "protobuf")


def record() -> dict[str, str]:
    """Return the environment of this run, by name, in the order in which it is printed."""
    cpu = Path("/proc/cpuinfo").read_text()
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]]),
        "commit": _commit(),
        "processor": _cpu_field(cpu, "model name"),
        "cores": str(len(os.sched_getaffinity(0))),
        "avx512_vpopcntdq": "yes" if "avx512_vpopcntdq" in _cpu_field(cpu, "flags") else "no",
        "load average before": f"{os.getloadavg()[0]:.2f}",
        "python": platform.python_version(),
        **{name: version(name) for name in _PACKAGES},
    }


def _cpu_field(cpu: str, field: str) -> str:
    for line in cpu.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == field:
            return value.strip()
    return "unknown"


def _commit() -> str:
    """Return the short commit, marked where a tracked file differs from it."""

    def git(*arguments: str) -> str:
        ran = subprocess.run(
            ["git", *arguments],  # noqa: S607
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        return ran.stdout.strip()

    commit = git("rev-parse", "--short", "HEAD") or "unknown"
    return f"{commit} with changes" if git("status", "--porcelain", "-uno") else commit
