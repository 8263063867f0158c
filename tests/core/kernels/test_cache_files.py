"""Where compiled kernels are cached, how damaged files are found, and what a process reports.

Compiling all kernels takes too long for a test. Therefore tests copy the complete cache folder of
this test run, and remove or damage one small kernel in the copy.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from numba.core import config

import divgrpc
from divgrpc import compilation, warmup
from divgrpc.compilation import Compilation
from divgrpc.kernels import cache_files, jit
from support.processes.command_line import run_script

# A kernel that compiles in a moment and that warming calls from Python.
SMALL = "leml.column_squares"
_MIX = """
import numpy as np
from divgrpc.kernels import cache_files, top_k
number = int(top_k.mix(np.uint64(1234567)))
stats = top_k.mix.stats
hits, misses = sum(stats.cache_hits.values()), sum(stats.cache_misses.values())
print(number, hits, misses, cache_files.is_warm())
"""
_WARM = """
import sys
from divgrpc.kernels import cache_files
from divgrpc.warmup import warm_kernels
warm_kernels()
modules = [module for name, module in sys.modules.items() if name.startswith("divgrpc")]
values = [value for module in modules for value in vars(module).values()]
functions = {id(f): f for f in values if hasattr(f, "nopython_signatures")}
print(cache_files.is_warm(), sum(sum(f.stats.cache_misses.values()) for f in functions.values()))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copy the cache folder with all kernels, make this process use the copy, and return it.

    Files that another process is writing, whose names begin with a dot, are left out.
    """
    warmup.warm_kernels()
    copy = tmp_path / cache_files.cache_folder().name
    shutil.copytree(cache_files.cache_folder(), copy, ignore=shutil.ignore_patterns(".*"))
    monkeypatch.setattr(cache_files, "cache_folder", lambda: copy)
    assert cache_files.is_warm()
    return copy


def file_of(folder: Path, kernel: str) -> Path:
    (file,) = folder.glob(f"{kernel}-*.kernel")
    return file


def test_kernel_names_lists_every_decorated_function() -> None:
    """Names are parsed from the sources; functions that are only inlined are left out."""
    names = {
        f"{name.removeprefix('divgrpc.kernels.')}.{value.__name__}"
        for name, module in list(sys.modules.items())
        if name.startswith("divgrpc.kernels.")
        for value in vars(module).values()
        if hasattr(value, "nopython_signatures")
        and value.__module__ == name
        and "inline" not in value.targetoptions
    }
    assert names == cache_files.kernel_names()


@pytest.mark.usefixtures("folder")
def test_warming_calls_every_kernel_that_no_kernel_calls() -> None:
    """Otherwise a server would compile such a kernel during a request."""
    calls = [
        call.func
        for source in Path(cache_files.__file__).parent.glob("*.py")
        for call in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call)
    ]
    callees = {call.id for call in calls if isinstance(call, ast.Name)}
    callees |= {call.attr for call in calls if isinstance(call, ast.Attribute)}
    files = (cache_files.read("warm") or b"").decode().split()
    entries = {file.rpartition("-")[0] for file in files}
    names = {name for name in cache_files.kernel_names() if name.partition(".")[2] not in callees}
    assert names - entries == set()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda file: file.unlink(),
        lambda file: file.write_bytes(file.read_bytes()[:-1]),
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(file.read_bytes()[:-9] + b"?" + file.read_bytes()[-8:]),
    ],
    ids=["missing", "half copied", "empty", "one byte changed"],
)
def test_a_folder_with_a_damaged_kernel_is_not_warm(
    folder: Path, spoil: Callable[[Path], object]
) -> None:
    file_names = (cache_files.read("warm") or b"").decode().split()
    assert file_of(folder, SMALL).name in file_names
    assert cache_files.mark_warm(file_names)
    spoil(file_of(folder, SMALL))
    assert not cache_files.is_warm()
    assert not cache_files.mark_warm(file_names)


@pytest.mark.parametrize("bytes_kept", [None, 0, 3, -1])
def test_a_missing_or_incomplete_stamp_is_not_valid(folder: Path, bytes_kept: int | None) -> None:
    """The cases are no stamp, an empty stamp as earlier versions wrote it, and a partial copy."""
    stamp = (folder / "warm").read_bytes()
    (folder / "warm").unlink()
    if bytes_kept is not None:
        (folder / "warm").write_bytes(stamp[:bytes_kept])
    assert not cache_files.is_warm()
    assert not cache_files.mark_warm([])


def test_a_kernel_used_only_by_other_kernels_may_be_missing(folder: Path) -> None:
    file_names = (cache_files.read("warm") or b"").decode().split()
    inner = next(file for file in folder.glob("*.kernel") if file.name not in file_names)
    inner.unlink()
    assert cache_files.is_warm()
    environment = {"DIVGRPC_KERNEL_CACHE": str(folder.parent)}
    assert run_script(_WARM, **environment) == ("True 0", "")


def test_cached_kernels_serve_another_copy_of_the_package(folder: Path, tmp_path: Path) -> None:
    """Other timestamps of the sources, as in a container image, do not invalidate the cache."""
    package = Path(divgrpc.__file__).parent
    elsewhere = tmp_path / "elsewhere" / "site-packages"
    shutil.copytree(package, elsewhere / "divgrpc", ignore=shutil.ignore_patterns("__pycache__"))
    for source in elsewhere.rglob("*.py"):
        os.utime(source, (1, 1))
    script = f"import divgrpc; print(divgrpc.__file__)\n{_WARM}"
    environment = {"DIVGRPC_KERNEL_CACHE": str(folder.parent), "PYTHONPATH": str(elsewhere)}
    output, messages = run_script(script, **environment)
    assert output.splitlines() == [str(elsewhere / "divgrpc" / "__init__.py"), "True 0"]
    assert messages == ""


def test_a_damaged_kernel_is_compiled_again_with_one_message(folder: Path) -> None:
    """Compiler processes replace the file, so the process that found it compiles nothing."""
    kernel_file = file_of(folder, SMALL)
    kernel_file.write_bytes(kernel_file.read_bytes()[:100])
    environment = {"DIVGRPC_KERNEL_CACHE": str(folder.parent)}
    output, messages = run_script(_WARM, **environment)
    assert output == "True 0"
    assert re.fullmatch(
        r"divgrpc: compiling kernels, once, about \d+ s\n"
        r"divgrpc: kernels compiled in \d+ s\n",
        messages,
    )
    assert cache_files.is_warm()
    assert run_script(_WARM, **environment) == ("True 0", "")


def test_two_processes_may_compile_at_the_same_time(folder: Path) -> None:
    file_of(folder, SMALL).unlink()
    outcomes: list[tuple[str, str]] = []

    def start() -> None:
        outcomes.append(
            run_script(_WARM, DIVGRPC_KERNEL_CACHE=str(folder.parent), DIVGRPC_QUIET="1")
        )

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [("True 0", "")] * 2
    assert cache_files.is_warm()


def test_kernels_compile_in_memory_if_the_folder_is_not_writable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for place in ("/proc/nowhere", str(tmp_path / "file")):
        output, messages = run_script(_MIX, DIVGRPC_KERNEL_CACHE=place)
        assert (output, messages) == ("6457827717110365317 0 1 False", "")
        script = "from divgrpc import compilation as c\nc.ensure()\nc.ensure()"
        _, messages = run_script(script, DIVGRPC_KERNEL_CACHE=place)
        assert messages.count("\n") == 1
        assert messages.startswith("divgrpc: compiled kernels cannot be kept (")
        assert "set DIVGRPC_KERNEL_CACHE to a folder that can be written" in messages


def test_a_read_only_folder_of_kernels_is_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container image may hold a folder of kernels and run its server as another user."""

    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(cache_files, "write", refuse)
    reports: list[Compilation] = []
    assert compilation.compile_ahead(reports.append)
    assert reports == []
    file_of(folder, SMALL).unlink()
    assert not compilation.compile_ahead(reports.append)
    (report,) = reports
    assert report.state == "uncached"
    assert report.reason.startswith("Read-only file system: ")


def add_one(n: int) -> int:
    """Stand in for a kernel of another module, such as those of benchmarks."""
    return n + 1


def test_a_failing_compiler_process_is_reported(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_of(folder, SMALL).unlink()
    monkeypatch.setattr(compilation, "_COMMAND", "raise SystemExit('no room')")
    reports: list[Compilation] = []
    assert not compilation.compile_ahead(reports.append)
    states = [report.state for report in reports if report.state != "running"]
    assert states == ["started", "failed"]
    assert reports[-1].reason == "no room"
    assert reports[-1].ready == reports[-1].total - 1 == len(cache_files.kernel_names()) - 1
    assert "no room" in compilation.describe_failure(reports[-1])


def test_a_compiler_of_another_installation_refuses_to_run(folder: Path) -> None:
    """The compiler would write files that the calling installation never reads."""
    script = "from divgrpc.warmup import compile_kernels; compile_kernels('all', '/nowhere')"
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert (process.returncode, process.stderr) == (
        1,
        b"another divgrpc is installed than the one that runs\n",
    )
    assert cache_files.is_warm(), folder


def test_no_compiler_starts_if_python_is_embedded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sys.executable` is then the embedding application, which cannot compile kernels."""
    file_of(folder, SMALL).unlink()
    monkeypatch.setattr(sys, "executable", "/srv/application")
    reports: list[Compilation] = []
    assert not compilation.compile_ahead(reports.append)
    assert [report.state for report in reports] == ["failed"]


def test_cache_folders_differ_by_processor_and_location(tmp_path: Path) -> None:
    script = "from divgrpc.kernels import cache_files; print(cache_files.cache_folder())"
    here, _ = run_script(script, DIVGRPC_KERNEL_CACHE=str(tmp_path))
    assert Path(here).parent == tmp_path
    environment = {"DIVGRPC_KERNEL_CACHE": str(tmp_path), "NUMBA_CPU_NAME": "x86-64"}
    plain, _ = run_script(script, **environment)
    bare, _ = run_script(script, **environment, NUMBA_CPU_FEATURES="")
    assert len({here, plain, bare}) == 3
    home, _ = run_script(script, DIVGRPC_KERNEL_CACHE="", XDG_CACHE_HOME=str(tmp_path / "home"))
    assert Path(home).is_absolute()


def test_an_edit_of_any_kernel_changes_the_cache_folder(tmp_path: Path) -> None:
    """A compiled kernel contains the kernels that it calls, so the folder depends on them all."""
    package = tmp_path / "kernels"
    shutil.copytree(Path(cache_files.__file__).parent, package)
    script = (
        "import sys; from divgrpc.kernels import cache_files\n"
        "cache_files.__file__ = sys.argv[1]; print(cache_files.cache_folder().name)"
    )
    place, source = str(package / "cache_files.py"), package / "exact.py"
    before, _ = run_script(script, place)
    assert before == cache_files.cache_folder().name
    source.write_text(source.read_text() + "# A word.\n")
    after, _ = run_script(script, place)
    (package / "more.py").write_text("")
    assert len({before, after, run_script(script, place)[0]}) == 3


def test_a_kernel_that_cannot_be_cached_still_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment variable of numba's cache folder stays unchanged."""
    before = config.CACHE_DIR
    monkeypatch.setattr(cache_files, "cache_folder", lambda: tmp_path / "file" / "below")
    monkeypatch.setattr(jit, "write_errors", {})
    (tmp_path / "file").write_text("in the way")
    assert jit.kernel(add_one)(2) == 3
    (kernel,) = jit.write_errors
    assert kernel.endswith(".add_one")
    after = config.CACHE_DIR
    assert after == before


def test_a_compiler_imports_nothing_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file numba.py in the folder where a server is started is not imported."""
    (tmp_path / "numba.py").write_text("open('run', 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compilation, "_COMMAND", "import numba; open('imported', 'w')")
    with open(os.devnull, "wb") as nowhere, compilation._compiler("all", nowhere) as process:
        process.wait()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["imported", "numba.py"]


@pytest.mark.parametrize(
    ("state", "line"),
    [
        ("started", r"divgrpc: compiling kernels, once, about \d+ s\n"),
        ("running", ""),
        ("done", r"divgrpc: kernels compiled in 21 s\n"),
        ("failed", r"divgrpc: kernels could not be compiled ahead \(why\); .*\n"),
    ],
)
def test_progress_in_a_file_is_a_line_at_start_and_end(
    state: str, line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = Compilation(state, 60, 117, 21.2, "why")  # type: ignore[arg-type]  # a parameter
    monkeypatch.delenv("DIVGRPC_QUIET", raising=False)
    compilation.print_progress(now)
    assert re.fullmatch(line, capsys.readouterr().err)
    monkeypatch.setenv("DIVGRPC_QUIET", "1")
    compilation.print_progress(now)
    assert capsys.readouterr().err == ""


def test_progress_on_a_terminal_overwrites_its_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DIVGRPC_QUIET", raising=False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    compilation.print_progress(Compilation("running", 60, 117, 9.4))
    compilation.print_progress(Compilation("done", 117, 117, 21.2))
    line = r"\r\033\[Kdivgrpc: .* about \d+ s: 60 of 117 after 9 s\r\033\[K[^\n]+\n"
    assert re.fullmatch(line, capsys.readouterr().err)


def test_waiting_for_a_stalled_process_ends(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file_of(folder, SMALL).unlink()
    monkeypatch.setattr(compilation, "_STALL_SECONDS_MAX", 0.3)
    monkeypatch.setattr(compilation, "lock_exclusively", lambda _: False)
    reports: list[Compilation] = []
    start = time.monotonic()
    assert not compilation.compile_ahead(reports.append)
    assert time.monotonic() - start < 5
    assert reports[-1].reason == "another process holds the lock and writes no file"


DAY_SECONDS = 86_400


def age_days(folder: Path) -> float:
    return (time.time() - folder.stat().st_mtime) / DAY_SECONDS


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Return folders of several ages; this process uses `current` as its own."""
    days = {"current": 40, "31 days": 31, "29 days": 29, "other": 40}
    paths = {name: tmp_path / f"kernels-{number:016x}" for number, name in enumerate(days)}
    paths["other"] = tmp_path / "kernels-of-mine"
    for name, folder in paths.items():
        folder.mkdir()
        (folder / "a.kernel").write_bytes(b"")
        seconds = time.time() - DAY_SECONDS * days[name]
        os.utime(folder, (seconds, seconds))
    (tmp_path / f"kernels-{99:016x}").symlink_to(paths["other"])
    monkeypatch.setattr(cache_files, "cache_folder", lambda: paths["current"])
    return paths


def left(folders: dict[str, Path]) -> set[str]:
    return {name for name, folder in folders.items() if (folder / "a.kernel").exists()}


def test_warming_removes_folders_unused_for_30_days(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_files, "is_warm", lambda: True)
    monkeypatch.setattr(compilation, "ensure", lambda: None)
    monkeypatch.setattr(warmup, "warm_kernels", lambda: None)
    warmup.warm_ahead()
    assert left(folders) == {"current", "29 days", "other"}


@pytest.mark.parametrize(("failure", "removals"), [("", {"31 days"}), ("no room", set())])
def test_a_successful_compilation_removes_unused_folders(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, failure: str, removals: set[str]
) -> None:
    monkeypatch.setattr(cache_files, "is_warm", lambda: False)
    monkeypatch.setattr(compilation, "_compile_under_lock", lambda _: failure)
    assert compilation.compile_ahead(lambda _: None) == (not failure)
    assert left(folders) == set(folders) - removals


def test_old_drafts_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_files, "cache_folder", lambda: tmp_path)
    for name, days in ((".young", 1), (".old", 31), ("old.kernel", 31), ("warm", 31)):
        (tmp_path / name).touch()
        seconds = time.time() - DAY_SECONDS * days
        os.utime(tmp_path / name, (seconds, seconds))
    compilation.remove_unused()
    assert {file.name for file in tmp_path.iterdir()} == {".young", "old.kernel", "warm"}


def test_starting_a_process_counts_as_use(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_files, "is_warm", lambda: True)
    assert age_days(folders["current"]) > 39
    assert compilation.compile_ahead(lambda _: None)
    assert age_days(folders["current"]) < 0.1
    assert left(folders) == set(folders)


def test_folders_that_cannot_be_removed_cause_no_error(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(cache_files, "is_warm", lambda: True)
    monkeypatch.setattr(os, "utime", refuse)
    monkeypatch.setattr("shutil.rmtree", refuse)
    assert compilation.compile_ahead(lambda _: None)
    compilation.remove_unused()
    assert left(folders) == set(folders)
