"""Points without a vector, as callers give them: None in a list or an array of vectors."""

from typing import Any

import numpy as np
import numpy.typing as npt


def split_vectors(vectors: Any) -> tuple[Any, npt.NDArray[np.bool_] | None]:  # noqa: ANN401  # what callers pass
    """Return the vectors that are there, and whether each row (n,) has one.

    vectors: n rows; None in a list, a tuple or a one-dimensional array is a row without a vector.

    If no row is None, returns the argument and None. If all rows are None, returns None for the
    vectors.
    """
    is_column = isinstance(vectors, np.ndarray) and vectors.dtype == object and vectors.ndim == 1
    if not (is_column or isinstance(vectors, list | tuple)):
        return vectors, None
    flags = np.fromiter((vector is not None for vector in vectors), np.bool_, len(vectors))
    if flags.all():
        return vectors, None
    return [vector for vector in vectors if vector is not None] or None, flags
