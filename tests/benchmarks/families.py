"""The hash families that are measured, the option that names them, and an index of each."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from divgrpc.index import Index
from divgrpc.types import FloatArray, HashFamily, Search

FAMILIES: Final[tuple[HashFamily, ...]] = ("lsh_div", "lsh_sdiv", "pca_hash", "cells", "auto")


def add_families(parser: argparse.ArgumentParser) -> None:
    """Add `--families`, which are all unless told."""
    parser.add_argument(
        "--families", nargs="+", default=list(FAMILIES), choices=FAMILIES, help="(default all)"
    )


def searches(family: str) -> tuple[Search, ...]:
    """Return the ways to search an index of a family: `auto` takes its own."""
    return ("auto",) if family == "auto" else ("tables", "scan")


def build_each(
    points: FloatArray, families: Sequence[HashFamily], folder: Path
) -> dict[HashFamily, Index]:
    """Build an index of each family over points (n, d), in a folder of its name."""
    return {
        family: Index.build(points, hash_family=family, path=folder / family) for family in families
    }
