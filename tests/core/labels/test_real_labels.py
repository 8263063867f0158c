"""Labels on real documents; skipped where DIVGRPC_DATA names no folder."""

from pathlib import Path

import pytest

from benchmarks.documents import precisions, read
from divgrpc.labels import train


@pytest.mark.parametrize(
    ("name", "least"),
    [("bibtex", [62.5, 38.2, 28.0]), ("delicious", [65.7, 60.1, 55.5])],
)
def test_default_training_reaches_the_published(
    data_folder: Path, name: str, least: list[float]
) -> None:
    """P@1, P@3 and P@5 on the test documents are no worse than what LEML's authors report."""
    split = read(data_folder, name)
    model = train(split.documents, split.labels).model
    found = precisions(split, model.predict(split.asked).labels)
    assert all(ours >= theirs for ours, theirs in zip(found, least, strict=True)), found
