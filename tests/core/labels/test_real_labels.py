"""Labels on real documents; skipped where DIVGRPC_DATA names no folder."""

from pathlib import Path

import pytest

from benchmarks.harness.datasets import documents, precisions
from divgrpc.labels import train


@pytest.mark.parametrize(
    ("name", "least"),
    [("bibtex", [62.5, 38.2, 28.0]), ("delicious", [65.7, 60.1, 55.5])],
)
def test_default_training_reaches_the_published(
    data_folder: Path, name: str, least: list[float]
) -> None:
    """P@1, P@3 and P@5 on the test documents are no worse than what LEML's authors report."""
    split = documents.read(data_folder, name)
    model = train(split.documents, split.labels).model
    result = list(precisions(split, model.predict(split.asked).labels).values())
    assert all(ours >= expected for ours, expected in zip(result, least, strict=True)), result
