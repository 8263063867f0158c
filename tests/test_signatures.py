"""What an editor shows of public methods: short signatures and complete docstrings."""

import inspect
import re
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest

from divgrpc import types
from divgrpc.index import Index
from divgrpc.parameters.signatures import name_of
from divgrpc_client import AsyncClient, Client

METHODS = [
    *(getattr(Index, name) for name in ("build", "open", "query", "predict_labels")),
    *(getattr(Index, name) for name in ("add_attributes", "set_default", "set_threshold")),
    *(
        getattr(client, name)
        for client in (Client, AsyncClient)
        for name in ("build", "query", "predict_labels", "query_stream")
    ),
]
CLIENT_METHODS = [
    method
    for client in (Client, AsyncClient)
    for name, method in inspect.getmembers(client, inspect.isfunction)
    if not name.startswith("_")
]


@pytest.mark.parametrize("method", METHODS, ids=attrgetter("__qualname__"))
def test_a_signature_fits_an_editor(method: Callable[..., object]) -> None:
    text = str(inspect.signature(method))
    assert len(text) < 1_050
    assert not re.search(r"numpy|typing|Union|Literal|Unpack|\*\*", text)


def explained_in(text: str) -> set[str]:
    """Return the parameters that have a line of their own in a docstring."""
    lists = re.findall(r"^(\w[\w, ]*): ", text, re.MULTILINE)
    return {name for names in lists for name in names.split(", ")}


@pytest.mark.parametrize("method", [*METHODS, *CLIENT_METHODS], ids=attrgetter("__qualname__"))
def test_a_docstring_explains_every_parameter(method: Callable[..., object]) -> None:
    """A docstring must explain parameters itself instead of naming a .proto file."""
    text = inspect.getdoc(method) or ""
    assert ".proto" not in text
    explanations = explained_in(text) | set(re.findall(r"`(\w+)`", text))
    assert set(inspect.signature(method).parameters) - {"self", "cls"} <= explanations


@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_a_client_explains_its_arguments(client: type) -> None:
    """The explanations are in the docstring of the constructor, which both clients share."""
    text = inspect.getdoc(vars(client)["__init__"]) or ""
    assert set(inspect.signature(client).parameters) <= explained_in(text)


def test_an_index_has_only_these_public_names() -> None:
    names = "build count default diagnose dims engine generation get info open pages predict_labels"
    names += " query rows scroll set_default set_threshold"
    expected = ["add_attributes", *names.split()]
    assert [name for name in dir(Index) if not name.startswith("_")] == expected


def test_repr_of_an_index(tmp_path: Any) -> None:  # noqa: ANN401  # a path
    points = np.random.default_rng(1).standard_normal((1_200, 4), dtype=np.float32)
    index = Index.build(points, hash_family="lsh_div", metric="l2")
    assert len(index) == 1_200
    assert repr(index) == "Index(generation 1, 1,200 points x 4 dims, euclidean, lsh_div)"
    stored_index = Index.build(points[:7], hash_family="lsh_div", path=tmp_path / "shoes")
    assert repr(stored_index) == "Index('shoes', generation 1, 7 points x 4 dims, cosine, lsh_div)"
    assert repr(Index.open(tmp_path / "shoes")) == repr(stored_index)


@pytest.mark.parametrize(
    ("annotation", "name"),
    [
        (int, "int"),
        (float | None, "float | None"),
        (types.Metric, "Metric"),
        (types.Metric | None, "Metric | None"),
        (npt.ArrayLike, "ArrayLike"),
        (npt.ArrayLike | None, "ArrayLike | None"),
        (Callable[[types.Progress], None] | None, "Callable[[Progress], None] | None"),
        (list[types.Search], "list[Search]"),
        (Literal["x"], "Literal['x']"),
        ("Index", "Index"),
        (dict[str, bytes], "dict[str, bytes]"),
    ],
)
def test_annotations_are_named_as_they_are_written(annotation: object, name: str) -> None:
    assert name_of(annotation, {bytes: "bytes"}) == name
