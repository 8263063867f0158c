"""The page of readings has every place of the paper, and names modules that exist."""

import importlib.util
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "pages" / "lab" / "readings.md"


def test_35_readings_and_their_modules() -> None:
    """The readings are numbered from 1 to 35, and each names a module or says that it has none."""
    rows = re.findall(r"^\| (\d+) \|.*\| ([^|]*) \|$", PAGE.read_text(), re.M)
    assert [int(number) for number, _ in rows] == list(range(1, 36))
    for _, where in rows:
        modules = re.findall(r"`([\w.]+)`", where)
        assert modules or where == "documentation only"
        assert all(importlib.util.find_spec(module) for module in modules), where
