"""The client and `divgrpc.Index` work without modules and calls that only Linux has."""

import errno
import os
import sys
from pathlib import Path

import pytest

from divgrpc import platforms
from support.processes.command_line import run_script

# Third-party packages choose their imports by operating system, so they are imported before Linux's
# modules and calls are removed.
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
def test_client_and_index_need_no_linux_modules_or_calls(use: str) -> None:
    assert run_script(_WITHOUT_LINUX + use)[1] == ""


def test_reserve_extends_a_file_without_posix_fallocate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    with (tmp_path / "array").open("wb+") as file:
        platforms.reserve(file.fileno(), 100)
        platforms.reserve(file.fileno(), 50)
        assert os.fstat(file.fileno()).st_size == 100


def test_locking_without_fcntl_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with (tmp_path / "lock").open("wb") as file, pytest.raises(OSError, match="no file locks") as e:
        platforms.lock_exclusively(file)
    assert e.value.errno == errno.ENOLCK


def test_cores_are_counted_without_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    """On systems without CPU affinity, all cores of the machine are counted."""
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
def test_light_modules_import_neither_numba_nor_scipy(module: str) -> None:
    script = (
        f"import sys, {module}; print(sorted({{'numba', 'scipy', 'llvmlite'}} & set(sys.modules)))"
    )
    assert run_script(script)[0] == "[]"


def test_the_index_class_is_imported_on_first_access() -> None:
    import divgrpc
    from divgrpc.index import Index

    assert divgrpc.Index is Index
    with pytest.raises(AttributeError, match="nothing"):
        divgrpc.nothing  # noqa: B018
