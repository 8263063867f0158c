"""The bill of materials has every package of the locks, and the audit says when it cannot check."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.checks.documentation import ROOT

SCRIPT = ROOT / "docs" / "supply_chain.py"


def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_bill_has_every_package_with_its_hashes() -> None:
    bill: dict[str, Any] = json.loads(run("sbom").stdout)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    names = {f"{entry['name']}=={entry['version']}" for entry in bill["components"]}
    locks = [ROOT / f"requirements-{name}.lock" for name in ("engine", "demo")]
    text = "".join(lock.read_text() for lock in locks)
    assert names == set(re.findall(r"^[\w.-]+==[^\s\\]+", text, re.M))
    assert {"grpcio", "numba", "protobuf"} <= {entry["name"] for entry in bill["components"]}
    references = [entry["bom-ref"] for entry in bill["components"]]
    assert len(set(references)) == len(references)
    hashes = [entry["externalReferences"][0]["hashes"] for entry in bill["components"]]
    assert all(hashes)
    assert sum(map(len, hashes)) == len(re.findall("--hash=sha256:", text))
    assert run("sbom").stdout == json.dumps(bill, indent=1) + "\n"


@pytest.mark.parametrize(
    ("report", "code", "text"),
    [
        (None, 3, "NOT CHECKED: pip-audit or its data cannot be had here: no route"),
        (
            {"dependencies": [{"name": "a", "version": "1", "vulns": []}]},
            0,
            "1 packages checked, 0",
        ),
        (
            {
                "dependencies": [
                    {"name": "a", "version": "1", "vulns": [{"id": "X-1", "fix_versions": ["2"]}]}
                ]
            },
            1,
            "a 1: X-1, mended in 2",
        ),
    ],
)
def test_findings_are_told_from_data_that_cannot_be_had(
    tmp_path: Path, report: object, code: int, text: str
) -> None:
    program = tmp_path / "pip-audit"
    lines = ["#!/bin/sh", "echo 'no route' >&2"]
    if report is not None:
        (tmp_path / "source.json").write_text(json.dumps(report))
        lines.append(f"cp {tmp_path / 'source.json'} {tmp_path / 'report.json'}")
    program.write_text("\n".join([*lines, "exit 1"]))
    program.chmod(0o755)
    outcome = run("audit", program, tmp_path / "report.json")
    assert outcome.returncode == code
    assert text in outcome.stdout + outcome.stderr
    missing = run("audit", tmp_path / "nowhere", tmp_path / "report.json")
    assert missing.returncode == 3
