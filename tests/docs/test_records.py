"""Records of benchmarks are well-formed, are shown on a page and name commands that exist."""

import dataclasses
import importlib.util
import json
import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

import benchmarks.__main__  # noqa: F401  # registers all runs
from benchmarks.harness.records import command, write
from benchmarks.harness.runner import RUNS, Table

ROOT = Path(__file__).parent.parent.parent
RECORDS = sorted((ROOT / "docs/records").glob("*.json"))
PAGES = sorted((ROOT / "docs/pages").rglob("*.md"))
FIELDS = {
    "title": "T",
    "command": 'make bench ARGS="start"',
    "commit": "1234567",
    "date": "2026-01-02",
    "machine": "M & N",
    "notes": ["busy"],
    "columns": ["name", "us", "note"],
    "rows": [["a|b", "1,000", "x"], ["c", "", "y"]],
}
TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def _hook() -> ModuleType:
    """Import docs/hooks.py from its path, as MkDocs does."""
    spec = importlib.util.spec_from_file_location("docs_hooks", ROOT / "docs/hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


hook = _hook()


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", *arguments],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_records_are_well_formed(path: Path) -> None:
    record = hook.load(path)
    assert record.title
    assert record.machine
    assert record.rows
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", record.date)
    assert re.fullmatch(r"[0-9a-f]{7,40}( with changes)?", record.commit)
    assert all(isinstance(cell, str) for row in (record.columns, *record.rows) for cell in row)


def test_record_commits_exist() -> None:
    if _git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("this clone has no full history")
    commits = {hook.load(path).commit.split()[0] for path in RECORDS}
    missing = [c for c in commits if _git("cat-file", "-e", f"{c}^{{commit}}").returncode]
    assert not missing


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_record_commands_exist(path: Path) -> None:
    make, target, *rest = shlex.split(hook.load(path).command)
    assert make == "make"
    assert target in TARGETS
    if target == "bench":
        name, *words = shlex.split(rest[0].removeprefix("ARGS="))
        RUNS[name].parse(shlex.join(words))


def test_every_record_is_used_once() -> None:
    """Each marker of a page names a record, and each record belongs to exactly one marker."""
    markers = Counter(name for page in PAGES for name in hook.MARKER.findall(page.read_text()))
    assert markers == Counter(path.stem for path in RECORDS)


def test_markers_are_on_lines_of_their_own() -> None:
    """The hook finds only markers on lines of their own, so a marker elsewhere is an error."""
    for page in PAGES:
        text = re.sub(r"`[^`\n]*`", "", page.read_text())
        assert text.count("{{") == len(hook.MARKER.findall(text)), page.name


def test_a_marker_becomes_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns of numbers are right-aligned; the caption shows the record's other fields."""
    monkeypatch.setattr(hook, "FOLDER", tmp_path)
    (tmp_path / "one.json").write_text(json.dumps(FIELDS))
    page = hook.on_page_markdown("before\n\n{{ record one }}\n\nafter\n")
    assert [line for line in page.splitlines() if line] == [
        "before",
        '<div class="record" markdown="1">',
        "| name | us | note |",
        "| --- | --: | --- |",
        "| a\\|b | 1,000 | x |",
        "| c |  | y |",
        '<p class="record-caption"><code>make bench ARGS=&quot;start&quot;</code> · '
        "commit <code>1234567</code> · M &amp; N · 2026-01-02 · busy</p>",
        "</div>",
        "after",
    ]


def test_long_tables_are_folded() -> None:
    """A table of more than 60 rows is collapsed under its title."""
    rows = tuple((str(number),) for number in range(61))
    record = hook.Record("T", "c", "1234567", "2026-01-02", "M", (), ("n",), rows)
    assert "<summary>T: 61 rows</summary>" in hook.render(record)
    assert "<summary>" not in hook.render(dataclasses.replace(record, rows=rows[:60]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": [["a"]]}, "row 1 has 1 cells, expected 2"),
        ({"extra": 1}, "missing or unknown fields: extra"),
    ],
)
def test_bad_records_are_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    fields = FIELDS | {"columns": ["a", "b"], "rows": [["1", "2"]]} | change
    (tmp_path / "bad.json").write_text(json.dumps(fields))
    with pytest.raises(ValueError, match=f"bad.json: {message}"):
        hook.load(tmp_path / "bad.json")


def test_a_run_writes_a_record_per_table(tmp_path: Path) -> None:
    """Each table of a run is written to a separate file, which the hook can read."""
    tables = [Table("", {}, [{"a": 1, "b": "|"}]), Table("", {}, [{"c": 2}, {"c": 3}])]
    words = ["start", "--rounds", "1", "--record", "docs/records/start.json"]
    path = tmp_path / "start.json"
    paths = write(path, "Time to start", words, tables, notes=["busy"])
    assert [path.name for path in paths] == ["start.json", "start-2.json"]
    for path, table in zip(paths, tables, strict=True):
        record = hook.load(path)
        assert list(record.columns) == table.columns
        assert [list(row) for row in record.rows] == table.cells()
        assert record.command == 'make bench ARGS="start --rounds 1"'
        assert record.title == "Time to start"
        assert record.notes == ("busy",)


def test_commands_leave_out_files_to_write() -> None:
    words = ["--record", "a.json", "peers", "--faiss", "faiss IVF", "--record=b.json"]
    words += ["--note", "busy"]
    assert command(words) == "make bench ARGS=\"peers --faiss 'faiss IVF'\""
