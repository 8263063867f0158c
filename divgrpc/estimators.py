"""`DiverseNeighbors`, an index with the interface of scikit-learn's estimators.

scikit-learn is not needed. If it is installed, its `clone`, pipelines and searches of parameters
take this class like a class of its own.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, Literal, Self, overload

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import read_only
from divgrpc.engine import Engine
from divgrpc.errors import DivgrpcError, InvalidArgumentError, invalid
from divgrpc.index import Index
from divgrpc.parameters import LIMITS, MetricWord, QueryOptions, QueryParameters
from divgrpc.parameters.query import DEFAULT_DIVERSITY
from divgrpc.parameters.suggestions import refuse_unknown
from divgrpc.storage.generations import Generation
from divgrpc.types import Auto, Metric, QueryResult, Selector
from divgrpc.vectors import RowsLike, as_rows, query_rows

Distances = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]


class NotFittedError(DivgrpcError, ValueError, AttributeError):
    """An estimator was used before `fit`.

    If scikit-learn is loaded, the error is also a `sklearn.exceptions.NotFittedError`.
    """

    reason = "NOT_FITTED"


class DiverseNeighbors:
    """Finds points that are near a query and differ from one another.

    It has the interface of `sklearn.neighbors.NearestNeighbors`, and the parameters of
    `Index.build` and `Index.query`; `n_neighbors` stands for `k`.

    n_neighbors: number of neighbours that `kneighbors` returns, 1 to 10,000.
    metric: "euclidean", "cosine" or "inner_product". scikit-learn, too, defaults to "euclidean".
    diversity: balance of nearness and diversity, 0 to 1, or "auto". 0 returns the nearest points.
    selector: how to pick the neighbours from the candidates.
    duplicate_threshold: collapse candidates that are at least this similar to a nearer one.
    keep_duplicates: do not collapse near-copies.

    The constructor stores its arguments. `fit` and `kneighbors` check them, and raise
    `InvalidArgumentError`, which is a `ValueError`. `fit` sets the attributes `index_`, the
    `divgrpc.Index`, and `n_features_in_`, the number of columns.
    """

    def __init__(
        self,
        n_neighbors: int = 5,
        *,
        metric: MetricWord = "euclidean",
        diversity: float | Auto = DEFAULT_DIVERSITY,
        selector: Selector = "greedy",
        duplicate_threshold: float | None = None,
        keep_duplicates: bool = False,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.metric = metric
        self.diversity = diversity
        self.selector = selector
        self.duplicate_threshold = duplicate_threshold
        self.keep_duplicates = keep_duplicates

    def __repr__(self) -> str:
        words = [
            f"{name}={getattr(self, name)!r}"
            for name, parameter in self._signature().items()
            if repr(getattr(self, name)) != repr(parameter.default)
        ]
        return f"{type(self).__name__}({', '.join(words)})"

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes, with the arrays of the index in place of the index."""
        state = dict(vars(self))
        if "index_" in state:
            engine = state["index_"].engine
            state["index_"] = Generation(engine.manifest, engine.arrays, engine.defaults)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the attributes; a restored index gives the same answers."""
        vars(self).update(state)
        if "index_" in state:
            generation: Generation = state["index_"]
            arrays = {name: read_only(array) for name, array in generation.arrays.items()}
            self.index_ = Index(Engine(replace(generation, arrays=arrays)))

    def __sklearn_tags__(self) -> object:
        """Return what scikit-learn wants to know about the class."""
        from sklearn.utils import InputTags, Tags, TargetTags

        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=False),
            input_tags=InputTags(sparse=True),
        )

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: ARG002  # as scikit-learn calls it
        """Return the parameters by name.

        deep: ignored, because no parameter is an estimator.
        """
        return {name: getattr(self, name) for name in self._signature()}

    def set_params(self, **params: Any) -> Self:  # noqa: ANN401  # values of any parameter
        """Set some parameters, and return this object.

        `n_neighbors` and the parameters of queries have an effect at once, `metric` at the next
        `fit`. Raises `InvalidArgumentError` for an unknown name.
        """
        refuse_unknown("set_params", params, self._signature(), ())
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def fit(self, X: RowsLike, y: object = None) -> Self:  # noqa: N803, ARG002  # scikit-learn's names
        """Build an index of the rows of `X`, and return this object.

        X: (n, d) numbers, dense or sparse. Under cosine, no row may be all zeros.
        y: ignored.

        Raises `InvalidArgumentError`.
        """
        with _own_names():
            self._parameters(self.n_neighbors)
            self.index_ = Index.build(X, metric=self.metric)
        self.n_features_in_ = self.index_.dims
        return self

    @overload
    def kneighbors(
        self,
        X: RowsLike | None = ...,  # noqa: N803  # scikit-learn's name
        n_neighbors: int | None = ...,
        return_distance: Literal[True] = ...,
    ) -> tuple[Distances, Places]: ...
    @overload
    def kneighbors(
        self,
        X: RowsLike | None = ...,  # noqa: N803  # scikit-learn's name
        n_neighbors: int | None = ...,
        *,
        return_distance: Literal[False],
    ) -> Places: ...
    def kneighbors(
        self,
        X: RowsLike | None = None,  # noqa: N803  # scikit-learn's name
        n_neighbors: int | None = None,
        return_distance: bool = True,
    ) -> tuple[Distances, Places] | Places:
        """Return the distances and the rows of the neighbours, or only the rows.

        X: (nq, d) numbers, dense or sparse. None stands for the points of `fit`; then no point is a
            neighbour of itself.
        n_neighbors: number of neighbours. Default: `n_neighbors` of the object.
        return_distance: whether to return the distances.

        Both arrays are (nq, n_neighbors), in the order in which the neighbours were selected, so
        distances need not ascend. A distance is 1 - cosine, the Euclidean distance or, under
        inner_product, the negative inner product. Rows are those of the `X` of `fit`.

        Raises `NotFittedError`, and `InvalidArgumentError` if there are too few points.
        """
        if not hasattr(self, "index_"):
            raise _not_fitted(f"this {type(self).__name__} is not fitted yet: call fit first")
        index, k = self.index_, self.n_neighbors if n_neighbors is None else n_neighbors
        with _own_names():
            options = self._parameters(k)
            count, kind = len(index) - (X is None), "other points" if X is None else "points"
            if k > count:
                raise invalid("k", f"must be at most the number of {kind}, {count}; got {k}")
            results = list(_results(index, X, options))
        places = np.concatenate([result.ids for result in results])
        if not return_distance:
            return places
        scores = np.concatenate([result.scores for result in results]).astype(np.float64)
        return _DISTANCES[index.engine.manifest.parameters.metric](scores), places

    def _signature(self) -> Mapping[str, inspect.Parameter]:
        """Return the parameters of the constructor, which a subclass may extend."""
        return inspect.signature(type(self)).parameters

    def _parameters(self, k: int) -> QueryOptions:
        """Return the checked options of queries."""
        options = QueryOptions(
            k=k,
            diversity=self.diversity,
            selector=self.selector,
            duplicate_threshold=self.duplicate_threshold,
            keep_duplicates=self.keep_duplicates,
        )
        QueryParameters(**options)
        return options


def _results(
    index: Index, queries: RowsLike | None, options: QueryOptions
) -> Iterator[QueryResult]:
    """Yield full results of all rows, or of the points of the index, in blocks."""
    rows = None if queries is None else as_rows("X", queries, index.dims, single=False)
    count, size = len(index) if rows is None else len(rows), LIMITS["query_rows_max"]
    if rows is not None and not count:
        raise invalid("X", "must have at least one row")
    if rows is not None and count > size:
        # The blocks below would be counted from 0 each.
        query_rows("X", rows, index.dims, index.engine.searcher.metric)
    for start in range(0, max(1, count), size):
        stop = min(start + size, count)
        block = None if rows is None else rows[start:stop]
        like = np.arange(start, stop) if rows is None else None
        result = index.query(block, like=like, **options)
        # Hash tables may find fewer than k points.
        if (result.counts < result.parameters.k).any():
            exact = QueryOptions(search="exact", hash_limit=0)
            result = index.query(block, like=like, **options | exact)
        yield result


# Arguments of `Index`, and the parameters that stand for them here.
_NAMES: Final = {"vectors": "X", "queries": "X", "k": "n_neighbors"}


@contextmanager
def _own_names() -> Iterator[None]:
    """Name the parameters of this module in errors about those of `Index`."""
    try:
        yield
    except InvalidArgumentError as error:
        name = _NAMES.get(error.field, error.field)
        message = re.sub(rf"^{error.field}\b|\b{error.field}(?=\[)", name, str(error))
        # The message may propose a parameter that the estimator does not have.
        message = message.partition("; zero_vectors=")[0]
        raise InvalidArgumentError(name, message) from None


def _not_fitted(message: str) -> NotFittedError:
    module = sys.modules.get("sklearn.exceptions")
    if module is None:
        return NotFittedError(message)
    bases = (NotFittedError, module.NotFittedError)
    error: NotFittedError = type("NotFittedError", bases, {})(message)
    return error


def _cosine_distances(scores: Distances) -> Distances:
    return 1 - scores


_DISTANCES: Final[Mapping[Metric, Callable[[Distances], Distances]]] = {
    "cosine": _cosine_distances,
    "euclidean": np.sqrt,
    "inner_product": np.negative,
}
