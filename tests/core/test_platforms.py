"""The client and `divgrpc.Index` work without the modules and calls that only Linux has."""

import errno
import os
import sys
from pathlib import Path

import pytest

from divgrpc import platforms
from support.command_line import run_script

# Third parties choose their imports by system, so they load first and are not looked at.
_WITHOUT_LINUX = """
import os, sys
import grpc, google.protobuf, numba, numpy as np, scipy.sparse, threadpoolctl
for module in ("fcntl", "resource", "termios", "pwd", "grp"):
    sys.modules[module] = None
for call in (
    "sched_getaffinity", "sched_setaffinity", "posix_fallocate", "fdatasync", "memfd_create",
    "eventfd", "pidfd_open", "splice", "sched_setscheduler",
):
    delattr(os, call)
"""
_CLIENT = """
import divgrpc_client
divgrpc_client.Client("127.0.0.1:1").close()
"""
_INDEX = """
import divgrpc
points = np.random.default_rng(0).standard_normal((300, 16), dtype=np.float32)
index = divgrpc.Index.build(points)
for selector in ("greedy", "mmr", "dpp", "max_sum", "qp_relax"):
    assert index.query(points[:3], k=5, selector=selector).ids.shape == (3, 5)
print("answered")
"""


@pytest.mark.parametrize("use", [_CLIENT, _INDEX], ids=["client", "index"])
def test_nothing_that_only_linux_has_is_needed(use: str) -> None:
    assert run_script(_WITHOUT_LINUX + use)[1] == ""


def test_reserve_makes_a_file_of_the_size_where_space_cannot_be_reserved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    with (tmp_path / "array").open("wb+") as file:
        platforms.reserve(file.fileno(), 100)
        platforms.reserve(file.fileno(), 50)
        assert os.fstat(file.fileno()).st_size == 100


def test_a_lock_is_refused_where_there_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without fcntl nobody is told that a lock was taken."""
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with (tmp_path / "lock").open("wb") as file, pytest.raises(OSError, match="no file locks") as e:
        platforms.lock_exclusively(file)
    assert e.value.errno == errno.ENOLCK


def test_cores_are_counted_without_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system cannot say which cores a process may use, all that exist count."""
    monkeypatch.delattr(os, "sched_getaffinity")
    assert platforms.count_cores() == os.cpu_count()


@pytest.mark.parametrize(
    "module",
    [
        "divgrpc",
        "divgrpc.types",
        "divgrpc.errors",
        "divgrpc.parameters",
        "divgrpc.storage.generations",
        "divgrpc.metrics",
        "divgrpc.evaluation",
    ],
)
def test_the_light_modules_compile_nothing(module: str) -> None:
    script = (
        f"import sys, {module}; print(sorted({{'numba', 'scipy', 'llvmlite'}} & set(sys.modules)))"
    )
    assert run_script(script)[0] == "[]"


def test_the_index_is_loaded_when_it_is_asked_for() -> None:
    import divgrpc
    from divgrpc.index import Index

    assert divgrpc.Index is Index
    with pytest.raises(AttributeError, match="nothing"):
        divgrpc.nothing  # noqa: B018
