"""Diverse retrieval: results that are near the query and differ from one another.

    from divgrpc import Index
    index = Index.build(vectors)
    result = index.query(queries, k=10, diversity=0.3)

The first use of `Index`, `Collection` or `diversify` imports the compiled engine. Importing
`divgrpc.types` or `divgrpc.errors` imports nothing heavier than numpy.

The folders form layers, from lowest to highest: `kernels`; `types`; `parameters` and `metrics`;
`columns`; `storage` and `hashing`; `quotas`; `search`; `labels`; `builder`; `evaluation`; `writes`.
A folder may import only from lower layers. The layers of the other modules are in pyproject.toml.
No module may import the .proto modules, the server or the client.
"""

import importlib
from typing import TYPE_CHECKING, Any, Final

from divgrpc import former_paths
from divgrpc.errors import DivgrpcError
from divgrpc.types import IndexInfo, QueryResult
from divgrpc.types.filters import Field, Filter, HasId
from divgrpc.types.quotas import GroupBy, Quota
from divgrpc.version import VERSION

if TYPE_CHECKING:
    from divgrpc.collection import Collection
    from divgrpc.diversifier import diversify
    from divgrpc.index import Index

__all__ = [
    "Collection",
    "DivgrpcError",
    "Field",
    "Filter",
    "GroupBy",
    "HasId",
    "Index",
    "IndexInfo",
    "QueryResult",
    "Quota",
    "__version__",
    "diversify",
]

__version__ = VERSION

# Modules of the classes and functions that import the compiled engine.
_COMPILED: Final = {
    "Collection": "divgrpc.collection",
    "Index": "divgrpc.index",
    "diversify": "divgrpc.diversifier",
}

former_paths.install()


def __getattr__(name: str) -> Any:  # noqa: ANN401  # a module's attributes have no common type
    if name in _COMPILED:
        try:
            module = importlib.import_module(_COMPILED[name])
        except ModuleNotFoundError as error:
            message = f"divgrpc.{name} needs {error.name}: install divgrpc[server]"
            raise ModuleNotFoundError(message, name=error.name) from error
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
