"""Import paths, attributes and signatures that users may depend on, as recorded.

A change of the code must keep these names; a moved module keeps its old path as an alias. To record
the names again, run this file as a script, and review the changes before you commit them:

    .venv/bin/python tests/test_public_names.py
"""

import ast
import dataclasses
import inspect
import json
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeAlias, get_origin, is_typeddict

import pytest

_ROOT: Final = Path(__file__).parent.parent
_RECORD: Final = Path(__file__).parent / "golden" / "public_names.json"
_PACKAGES: Final = ("divgrpc", "divgrpc_client", "divgrpc_protos", "divgrpc_server")
# The public modules and their public names. An empty tuple stands for the names in `__all__`, or
# for all public names if the module has no `__all__`.
_MODULES: Final[dict[str, tuple[str, ...]]] = {
    "divgrpc": (),
    "divgrpc.backup": (),
    "divgrpc.conformance": (),
    "divgrpc.errors": (
        *("BuildUnderWayError", "ConditionFailedError", "DivgrpcError", "IndexChangedError"),
        *(
            "IndexDamagedError",
            "IndexExistsError",
            "IndexNotFoundError",
            "InvalidArgumentError",
            "LimitExceededError",
        ),
        *("OtherFormatError", "StorageFullError", "StorageInUseError", "UnavailableError"),
        *("UnfitIndexError", "UnsupportedError"),
    ),
    "divgrpc.estimators": ("DiverseNeighbors", "NotFittedError"),
    "divgrpc.evaluation": (),
    "divgrpc.evaluation.grid": ("Grid", "Limits"),
    "divgrpc.evaluation.label_grid": ("LabelGrid",),
    "divgrpc.evaluation.label_running": ("evaluate_labels",),
    "divgrpc.evaluation.label_thresholds": ("ChosenThreshold", "choose_threshold"),
    "divgrpc.evaluation.label_votes": ("neighbour_vote",),
    "divgrpc.index": ("Index",),
    "divgrpc.label_parameters": ("DEFAULT_NEIGHBOURS", "DEFAULT_TOP_K", "PredictParameters"),
    "divgrpc.label_plans": ("LabelModelLike", "LabelPlan", "Labelling"),
    "divgrpc.labels": (),
    "divgrpc.metrics": (),
    "divgrpc.parameters": (),
    "divgrpc.thresholds": ("ChosenThreshold", "choose_threshold"),
    "divgrpc.types": (),
    "divgrpc.voting": ("neighbour_vote",),
    "divgrpc.warming": ("Warmed", "warm_ahead", "warm_kernels"),
    "divgrpc_client": (),
    "divgrpc_client.documents": (),
    "divgrpc_client.load": (),
    "divgrpc_client.options": (
        *("BuildOptions", "GridOptions", "LabelGridOptions", "PredictOptions", "QueryOptions"),
    ),
    "divgrpc_client.reports.evaluation": ("write_report",),
    "divgrpc_protos.v1.diverse_index_pb2_grpc": ("DiverseIndexServicer", "DiverseIndexStub"),
}
# Names that other modules of the project use but users should not, although `__all__` or a class
# has them. `Index.` stands for the signature of the class.
_INTERNAL: Final = {
    *("Asked", "Clock", "Evaluable", "PIECE_QUERIES", "Piece", "Plan", "Tally", "Task", "plan"),
    *("DIAL_STEPS", "MOST_CANDIDATES_GROWTH", "POOL_GROWTH", "POOL_WORK", "RELAX_PASSES"),
    *("SEARCHES_AGAIN", "SEARCH_GROWTH", "Sought"),
    *(
        "LabelHitRows",
        "PointHitRows",
        "as_metric",
        "check_index_name",
        "check_one_dial",
        "named_over_default",
    ),
    *("Index.", "Index.engine", "Call.messages", "Schedule.arrivals"),
    *("Schedule.times", "Step.times", "Threshold.holds"),
}
# The record of a public name: the signature of a function, None for a constant, and the attributes
# of a class. A class has its signature under "". An exception has the classes that catch it under
# "except".
Description: TypeAlias = "str | dict[str, str | None] | None"


def signature_of(function: Any) -> str:  # noqa: ANN401  # any function or class
    """Return the names, order, kinds and defaults of parameters, without annotations."""
    signature = inspect.signature(function)
    bare = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
    ]
    return re.sub(r" at 0x[0-9a-f]+", "", str(inspect.Signature(bare)))


def is_function(thing: object) -> bool:
    """Tell whether an object is a function or a method; a cached property is neither."""
    return inspect.isroutine(thing) and callable(thing)


def describe(thing: Any) -> Description:  # noqa: ANN401  # whatever a module has
    """Return the signature of a function, the attributes of a class, or None for other objects."""
    if is_function(thing):
        return signature_of(thing)
    if not inspect.isclass(thing):
        return None
    if is_typeddict(thing):
        return dict.fromkeys(sorted(thing.__annotations__))
    classes = [kind for kind in inspect.getmro(thing) if kind.__module__.split(".")[0] in _PACKAGES]
    names = {name for kind in classes for name in vars(kind)}
    if dataclasses.is_dataclass(thing):
        names |= {field.name for field in dataclasses.fields(thing)}
    attributes: dict[str, str | None] = {}
    if names & {"__init__", "__new__"} and not getattr(thing, "_is_protocol", False):
        attributes[""] = signature_of(thing)
    if issubclass(thing, Exception):
        attributes["except"] = ", ".join(kind.__name__ for kind in inspect.getmro(thing)[:-2])
    for name in sorted(name for name in names if not name.startswith("_")):
        attribute = getattr(thing, name, None)
        attributes[name] = signature_of(attribute) if is_function(attribute) else None
    return {
        name: text
        for name, text in attributes.items()
        if f"{thing.__name__}.{name}" not in _INTERNAL
    }


@cache
def recorded() -> dict[str, dict[str, Description]]:
    record: dict[str, dict[str, Description]] = json.loads(_RECORD.read_text())
    return record


_CASES: Final = [(module, name) for module, names in recorded().items() for name in names]


@pytest.mark.parametrize(("module", "name"), _CASES, ids=[".".join(case) for case in _CASES])
def test_a_public_name_is_as_recorded(module: str, name: str) -> None:
    """The signature and the attributes are as recorded; new attributes are allowed."""
    thing = getattr(import_module(module), name)
    expected, description = recorded()[module][name], describe(thing)
    if isinstance(expected, dict) and isinstance(description, dict):
        description = {
            attribute: description[attribute] for attribute in expected if attribute in description
        }
    assert description == expected


def test_modules_are_recorded() -> None:
    assert set(recorded()) == set(_MODULES)


def imports_in(text: str) -> Iterator[tuple[str, str]]:
    """Yield the module and the name of each import of this project in a page's Python blocks."""
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        for node in ast.walk(ast.parse(block)):
            module = (isinstance(node, ast.ImportFrom) and node.module) or ""
            if isinstance(node, ast.ImportFrom) and module.split(".")[0] in _PACKAGES:
                yield from ((module, alias.name) for alias in node.names)


def test_imports_of_the_documentation_are_recorded() -> None:
    pages = [_ROOT / "README.md", *(_ROOT / "docs").rglob("*.md")]
    imports = {pair for page in pages for pair in imports_in(page.read_text())}
    assert ("divgrpc", "Index") in imports
    assert imports <= set(_CASES)


def _public_names(module: ModuleType) -> list[str]:
    """Return the names of a module without an underscore, except modules and names of libraries."""
    return [
        name
        for name, thing in vars(module).items()
        if not name.startswith("_")
        and not isinstance(thing, ModuleType)
        and (get_origin(thing) or getattr(thing, "__module__", "").split(".")[0] in _PACKAGES)
    ]


def record() -> None:
    """Write the public names, their attributes and their signatures to the record."""
    modules = {}
    for path, names in _MODULES.items():
        module = import_module(path)
        public = set(names or getattr(module, "__all__", _public_names(module))) - _INTERNAL
        modules[path] = {name: describe(getattr(module, name)) for name in sorted(public)}
    _RECORD.write_text(json.dumps(modules, indent=1) + "\n")


if __name__ == "__main__":
    record()
