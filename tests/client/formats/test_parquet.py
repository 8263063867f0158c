"""Points as Parquet files. Most tests need pyarrow."""

import sys
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from divgrpc.errors import InvalidArgumentError, UnsupportedError
from divgrpc.types import IndexInfo
from divgrpc.types.records import Attribute, Records
from divgrpc_client.formats.parquet import read_parquet_values
from divgrpc_client.formats.record_files import read_records, record_writer

VECTORS = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)


@pytest.fixture
def pyarrow() -> ModuleType:
    """Return pyarrow with its Parquet module."""
    pytest.importorskip("pyarrow.parquet", reason="missing extra: pyarrow")
    return import_module("pyarrow")


def info_of(*attributes: Attribute, **fields: Any) -> IndexInfo:  # noqa: ANN401  # of the class
    values = {"name": "a", "generation": 1, "rows": 5, "dims": 3, "parameters": {}}
    values |= {"code_bits": 8, "n_probes": 1, "auto_search": "scan", "search_costs": ()}
    values |= {"has_categories": False, "has_subtopics": False, "arrays": ()}
    return IndexInfo(**values, attributes=attributes, **fields)  # type: ignore[arg-type]


@pytest.mark.usefixtures("pyarrow")
def test_what_is_written_is_read(tmp_path: Path) -> None:
    info = info_of(
        Attribute("brand", "keyword"),
        Attribute("n", "integer"),
        Attribute("x", "float"),
        Attribute("ok", "bool"),
        Attribute("tags", "keyword", multi=True),
        id_kind="string",
        has_payloads=True,
    )
    attributes: dict[str, Any] = {
        "brand": ("x", None, "y", "x", None),
        "n": (1, 2, None, 2**62, -5),
        "x": (0.5, None, 1.0, 2.0, 3.0),
        "ok": (True, False, None, True, True),
        "tags": (("u", "v"), (), ("v",), (), ()),
    }
    ids = np.array([f"id {row}" for row in range(5)], object)
    payloads: tuple[bytes, ...] = (b"\x00\xff", b"", b"{}", b"x", b"")
    path = tmp_path / "points.parquet"
    with record_writer(path, path.suffix, info) as write:
        for part in (slice(0, 2), slice(2, 5)):
            columns = {name: values[part] for name, values in attributes.items()}
            write(Records(ids[part], VECTORS[part], columns, payloads[part]))
    points = read_records(path)
    assert points.ids == ids.tolist()
    assert isinstance(points.vectors, np.ndarray)
    assert points.vectors.tobytes() == VECTORS.tobytes()
    expected = {name: list(values) for name, values in attributes.items()}
    assert points.attributes == expected | {"tags": [["u", "v"], [], ["v"], [], []]}
    assert points.payloads == [payload or None for payload in payloads]


def test_files_of_other_programs_are_read(pyarrow: ModuleType, tmp_path: Path) -> None:
    moment = datetime(2024, 5, 1, 12, tzinfo=UTC)
    table = pyarrow.table({
        "vector": [[1.0, 2.0], [3.0, 4.0]],
        "id": [7, 5],
        "when": [moment, None],
        "brand": pyarrow.array(["x", "y"]).dictionary_encode(),
    })  # fmt: skip
    pyarrow.parquet.write_table(table, tmp_path / "points.parquet")
    points = read_records(tmp_path / "points.parquet")
    assert (points.ids, points.payloads) == ([7, 5], None)
    assert isinstance(points.vectors, np.ndarray)
    assert points.vectors.tolist() == [[1, 2], [3, 4]]
    assert points.attributes == {"when": [moment, None], "brand": ["x", "y"]}


def test_attributes_may_have_the_names_of_labels(pyarrow: ModuleType, tmp_path: Path) -> None:
    columns = {"labels": [["a"], []], "category": ["x", None], "divgrpc.category": [3, None]}
    columns |= {"divgrpc.labels": [[1, 0], None], "vector": [[1.0], [2.0]]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "points.parquet")
    points = read_records(tmp_path / "points.parquet")
    assert points.attributes == {"labels": [["a"], []], "category": ["x", None]}
    labels = points.annotations.pop("labels")
    assert (labels.indptr.tolist(), labels.indices.tolist(), labels.cols) == ([0, 2, 2], [0, 1], 2)
    assert points.annotations == {"categories": [3, -1]}
    assert read_parquet_values(tmp_path / "points.parquet") == (None, points.attributes)
    columns["divgrpc.category"] = [3, -2]
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "points.parquet")
    with pytest.raises(InvalidArgumentError, match="row 1: `category` must be"):
        read_records(tmp_path / "points.parquet")


def test_a_file_may_lack_vectors(pyarrow: ModuleType, tmp_path: Path) -> None:
    table = pyarrow.table({"id": [7, 5], "price": [1.5, None]})
    pyarrow.parquet.write_table(table, tmp_path / "points.parquet")
    points = read_records(tmp_path / "points.parquet", needs_vectors=False)
    assert (points.vectors, points.ids, points.payloads) == (None, [7, 5], None)
    assert points.attributes == {"price": [1.5, None]}


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"id": [1]}, "has no column 'vector', but id"),
        ({"vector": [1.0]}, "must hold lists of numbers"),
        ({"vector": [["x"]]}, "must hold lists of numbers"),
        ({"vector": [[1.0], [1.0, 2.0]]}, "all of one length"),
        ({"vector": [[1.0], None]}, "none missing"),
    ],
)
def test_wrong_vectors_are_refused(
    pyarrow: ModuleType, tmp_path: Path, columns: dict[str, Any], words: str
) -> None:
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "points.parquet")
    with pytest.raises(InvalidArgumentError, match=words) as error_info:
        read_records(tmp_path / "points.parquet")
    assert error_info.value.field == "file"


@pytest.mark.usefixtures("pyarrow")
def test_what_a_file_cannot_have_is_refused(tmp_path: Path) -> None:
    for info, words in (
        (info_of(points="sparse"), "as .jsonl"),
        (info_of(Attribute("id", "keyword")), "name of another column"),
    ):
        with (
            pytest.raises(InvalidArgumentError, match=words),
            record_writer(tmp_path / "a.parquet", ".parquet", info),
        ):
            pass
    (tmp_path / "b.parquet").write_bytes(b"PAR1")
    for name, words in (
        ("b.parquet", "cannot be read as Parquet: "),
        ("no.parquet", "no such file"),
    ):
        with pytest.raises(InvalidArgumentError, match=words):
            read_records(tmp_path / name)


def test_without_pyarrow_the_error_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UnsupportedError, match="pip install pyarrow"):
        read_records(tmp_path / "points.parquet")
