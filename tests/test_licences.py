"""What an installation brings: how its wheels were built, and under which licences they come.

No wheel that divgrpc needs at run time was built by a Rust toolchain, so an installation can be
built from source with C compilers alone. Development tools are exempt, because divgrpc does not
install them. No locked package is under the GPL or AGPL, except packages that only [bench] brings,
which benchmarks measure for comparison.
"""

import re
import tomllib
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.processes import toolchains

ROOT = Path(__file__).parent.parent
RUN_TIME = ("cli", "server", "tracing", "report")
RUST_BUILDERS = ("maturin", "setuptools-rust")


def _direct(extra: str = "") -> list[Requirement]:
    """Return the direct dependencies of the base installation, or of one extra without the base."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = project["optional-dependencies"][extra] if extra else project["dependencies"]
    return [Requirement(text) for text in texts]


def _closure(roots: Iterable[Requirement]) -> set[str]:
    """Return the names of `roots` and of everything they require on this platform."""
    names: set[str] = set()
    waiting = list(roots)
    visits: set[tuple[str, str]] = set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        names.add(name)
        for extra in ("", *requirement.extras):
            if (name, extra) in visits:
                continue
            visits.add((name, extra))
            for text in distribution(name).requires or ():
                dependency = Requirement(text)
                if dependency.marker is None or dependency.marker.evaluate({"extra": extra}):
                    waiting.append(dependency)
    return names


def _run_time() -> set[str]:
    return _closure(requirement for extra in ("", *RUN_TIME) for requirement in _direct(extra))


def _pinned(lock: str) -> dict[str, tuple[str, ...]]:
    """Return the version and the hashes of each distribution in a lock file, by name."""
    text = (ROOT / lock).read_text()
    entries = re.findall(r"^([\w.-]+)==(\S+) \\\n((?:    --hash=.*\n)+)", text, re.MULTILINE)
    return {
        canonicalize_name(name): (version, *re.findall(r"sha256:\w+", hashes))
        for name, version, hashes in entries
    }


def _locked() -> set[str]:
    return set(_pinned("requirements.lock"))


def _built_by_rust(wheel: str) -> bool:
    """Tell whether the Generator line of a WHEEL file names a Rust tool."""
    generator = re.search(r"^Generator:\s*(.+)$", wheel, re.MULTILINE)
    return generator is not None and any(b in generator[1].lower() for b in RUST_BUILDERS)


def _licence(package: Distribution) -> str:
    """Return a package's SPDX expression, else its classifiers, else its long free text."""
    metadata = package.metadata
    classifiers = [c for c in metadata.get_all("Classifier", ()) if c.startswith("License ::")]
    statements = [
        " AND ".join(metadata.get_all(key, ())) for key in ("License-Expression", "License")
    ]
    return statements[0] or " AND ".join(classifiers) or statements[1]


def _is_gpl(licence: str) -> bool:
    """Tell whether a licence allows use under the GPL or AGPL only.

    The LGPL does not count. A choice such as ``MIT OR GPL-2.0-only`` allows other use, unless it is
    part of a larger expression, which a person must read and which therefore counts as GPL here.
    A licence with GCC's run-time library exception (``GPL-3.0-or-later WITH GCC-exception-3.1``)
    does not count, because any program may use the library.
    """
    if "(" not in licence and " OR " in licence:
        return all(_is_gpl(choice) for choice in licence.split(" OR "))
    plain = re.sub(r"A?GPL-\S+ WITH GCC-exception-\S+", "", licence)
    plain = re.sub(r"LGPL|(Lesser|Library) General Public License", "", plain)
    return re.search(r"(?<![A-Za-z])A?GPL|General Public License", plain) is not None


def test_running_divgrpc_needs_no_wheel_made_by_rust() -> None:
    wheels = {name: distribution(name).read_text("WHEEL") or "" for name in _run_time()}
    assert "numba" in wheels
    assert [name for name, wheel in wheels.items() if _built_by_rust(wheel)] == []


def test_the_engine_of_ray_needs_no_wheel_made_by_rust() -> None:
    toolchains.require_module("ray")
    names = _closure(
        requirement for extra in ("", "server", "ray") for requirement in _direct(extra)
    )
    wheels = {name: distribution(name).read_text("WHEEL") or "" for name in names}
    assert {"ray", "jsonschema"} < wheels.keys()
    assert [name for name, wheel in wheels.items() if _built_by_rust(wheel)] == []
    assert names - _closure(_direct("server")) <= _pinned("requirements-ray.lock").keys()


def test_the_lock_of_ray_fits_beside_the_others() -> None:
    """It pins what the extra needs, at the versions of the main file where both name a package."""
    whole, lock = _pinned("requirements.lock"), _pinned("requirements-ray.lock")
    assert {name: whole.get(name, pin) for name, pin in lock.items()} == lock
    direct = {requirement.name: requirement for requirement in _direct("ray")}
    assert all(r.specifier.contains(lock[name][0]) for name, r in direct.items())
    # A newer jsonschema would bring it, and Rust builds it.
    assert "rpds-py" not in lock


def test_rust_wheels_are_recognised() -> None:
    assert _built_by_rust(distribution("ruff").read_text("WHEEL") or "")
    assert _built_by_rust("Generator: setuptools-rust 1.9\n")
    assert not _built_by_rust("Generator: setuptools (84.0.0)\n")


def test_nothing_locked_is_gpl() -> None:
    without_bench = ("", *RUN_TIME, "dev")
    names_without_bench = _closure(
        requirement for extra in without_bench for requirement in _direct(extra)
    )
    only_bench = _closure(_direct("bench")) - names_without_bench
    names = sorted(_locked() - only_bench)
    assert names
    licences = {name: _licence(distribution(name)) for name in names}
    assert [name for name, text in licences.items() if not text] == [], "each states a licence"
    assert [name for name, text in licences.items() if _is_gpl(text)] == []


@pytest.mark.parametrize(
    ("licence", "gpl"),
    [
        ("GPL-3.0-or-later", True),
        ("AGPL-3.0-only", True),
        ("GPLv2+", True),
        ("License :: OSI Approved :: GNU General Public License v3 (GPLv3)", True),
        ("License :: OSI Approved :: GNU Affero General Public License v3", True),
        ("MIT AND GPL-2.0-only", True),
        ("GPL-2.0-only OR AGPL-3.0-only", True),
        ("MIT OR GPL-2.0-only", False),
        ("LGPL-2.1-or-later", False),
        ("License :: OSI Approved :: GNU Lesser General Public License v3 (LGPLv3)", False),
        ("BSD-3-Clause AND GPL-3.0-or-later WITH GCC-exception-3.1", False),
        ("Apache-2.0", False),
    ],
)
def test_gpl_is_told_from_similar_licences(licence: str, gpl: bool) -> None:
    assert _is_gpl(licence) is gpl


def test_lock_holds_every_dependency() -> None:
    extras = ("", *RUN_TIME, "dev", "bench")
    assert _closure(n for extra in extras for n in _direct(extra)) - _locked() == set()


def test_lock_files_of_the_demonstration_are_parts_of_the_whole() -> None:
    """The two lock files pin what users and an editable install need, at the main file's versions.

    Both files are installed together, so no package is in both. The first file has the packages
    that compile kernels.
    """
    whole = _pinned("requirements.lock")
    engine, demo = _pinned("requirements-engine.lock"), _pinned("requirements-demo.lock")
    small = engine | demo
    assert {name: whole[name] for name in small} == small
    assert engine.keys().isdisjoint(demo)
    run_time_names = _closure(n for extra in ("", "server", "report") for n in _direct(extra))
    build = _closure([Requirement("hatchling"), Requirement("editables")])
    assert set(small) == run_time_names | build
    assert set(engine) == _closure(map(Requirement, ("numba", "scipy", "threadpoolctl")))


def test_notice_names_every_direct_dependency() -> None:
    notice = (ROOT / "NOTICE").read_text()
    assert notice.startswith("divgrpc\nCopyright ")
    notice_names = set(re.findall(r"^    (\S+) {2,}\S", notice, re.MULTILINE))
    direct = {n.name for extra in ("", *RUN_TIME, "ray") for n in _direct(extra)}
    assert notice_names == direct


def test_licence_is_the_standard_text() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert re.search(r"Apache License\s+Version 2\.0, January 2004", text)
    assert "END OF TERMS AND CONDITIONS" in text
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["license"] == "Apache-2.0"
    assert project["license-files"] == ["LICENSE", "NOTICE"]
