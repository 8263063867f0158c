"""The code blocks of the README print what it says."""

from pathlib import Path

from support.checks.readmes import run_blocks


def test_blocks_of_the_readme_run(target: str, tmp_path: Path) -> None:
    assert run_blocks(Path(__file__).resolve().parents[1] / "README.md", target, tmp_path) == 5
