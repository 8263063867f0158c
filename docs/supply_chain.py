"""Says what divgrpc stands on: a list for machines, and a check against known vulnerabilities.

`python docs/supply_chain.py sbom` prints a software bill of materials in the form CycloneDX 1.5,
made from the lock files alone, so the same locks give the same bytes. Its command `audit` runs
pip-audit, and tells a finding from data that cannot be had.
"""

import json
import re
import subprocess
import sys
import tomllib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parent.parent
# What an installation of divgrpc[server,report] takes. The other locks are for development.
LOCKS: Final = ("requirements-engine.lock", "requirements-demo.lock")
_PACKAGE: Final = re.compile(r"^([A-Za-z0-9._-]+)==([^\s\\;]+)")
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_VULNERABLE, _NO_DATA = 1, 3
# Without a network, a connection is given up after this time, and so is the audit.
_CONNECT_SECONDS: Final = 5
_SECONDS_MAX: Final = 120


def packages(lock: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the name, the version and the hashes of the files of each package of a lock."""
    for block in re.split(r"\n(?=\S)", lock.read_text(encoding="utf-8")):
        match = _PACKAGE.match(block)
        if match is not None:
            yield match[1], match[2], _HASH.findall(block)


def bill_of_materials() -> dict[str, Any]:
    """Return the bill of materials as the tables of CycloneDX."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    contents = sorted(set(_components()))
    components = [
        {
            "type": "library",
            "bom-ref": f"pkg:pypi/{name}@{version}",
            "name": name,
            "version": version,
            "purl": f"pkg:pypi/{name}@{version}",
            "externalReferences": [
                {
                    "type": "distribution",
                    "url": f"https://pypi.org/project/{name}/{version}/",
                    "hashes": [{"alg": "SHA-256", "content": content} for content in hashes],
                }
            ],
        }
        for name, version, hashes in contents
    ]
    root = f"pkg:pypi/{project['name']}@{project['version']}"
    main = {"type": "application", "bom-ref": root, "name": project["name"], "purl": root}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, repr((root, contents)))}",
        "version": 1,
        "metadata": {"component": {**main, "version": project["version"]}},
        "components": components,
    }


def _components() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    for lock in LOCKS:
        for name, version, hashes in packages(ROOT / lock):
            yield name, version, tuple(hashes)


def audit(program: str, report: Path) -> int:
    """Run pip-audit on the locks; return 1 if it found a vulnerability, 3 if it has no data."""
    report.unlink(missing_ok=True)
    options = ["--disable-pip", "--require-hashes", "--timeout", str(_CONNECT_SECONDS)]
    options += ["--format", "json", "--output", str(report)]
    locks = [word for lock in LOCKS for word in ("--requirement", str(ROOT / lock))]
    try:
        outcome = subprocess.run(  # noqa: S603  # the program of the make target
            [program, *options, *locks],
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS_MAX,
        )
        last = outcome.stderr.strip().rpartition("\n")[2]
    except (OSError, subprocess.TimeoutExpired) as error:
        last = str(error)
    if not report.exists():
        sys.stderr.write(f"NOT CHECKED: pip-audit or its data cannot be had here: {last}\n")
        return _NO_DATA
    entries = json.loads(report.read_text(encoding="utf-8"))["dependencies"]
    bad = [(entry, fault) for entry in entries for fault in entry.get("vulns", ())]
    for entry, fault in bad:
        fixes = ", ".join(fault["fix_versions"]) or "no version yet"
        sys.stdout.write(f"{entry['name']} {entry['version']}: {fault['id']}, mended in {fixes}\n")
    skipped = [entry["name"] for entry in entries if "skip_reason" in entry]
    if skipped:
        sys.stderr.write(f"NOT CHECKED: pip-audit has no data on {', '.join(skipped)}\n")
    checked = len(entries) - len(skipped)
    sys.stdout.write(f"{checked} packages checked, {len(bad)} known vulnerabilities\n")
    if skipped and not bad:
        return _NO_DATA
    return _VULNERABLE if bad else 0


def main(arguments: list[str]) -> int:
    """Run `sbom`, or `audit PROGRAM REPORT`."""
    if arguments == ["sbom"]:
        sys.stdout.write(json.dumps(bill_of_materials(), indent=1) + "\n")
        return 0
    _, program, report = arguments
    return audit(program, Path(report))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
