"""Points without a vector, as callers give them: None in a list of vectors."""

from typing import Any

import numpy as np
import numpy.typing as npt


def split_vectors(vectors: Any) -> tuple[Any, npt.NDArray[np.bool_] | None]:  # noqa: ANN401  # what callers pass
    """Return the vectors that are there, and whether each row has one.

    If no row is None, returns the argument and None. If all rows are None, returns None for the
    vectors.
    """
    if not isinstance(vectors, list | tuple) or all(vector is not None for vector in vectors):
        return vectors, None
    present = [vector for vector in vectors if vector is not None]
    flags = np.fromiter((vector is not None for vector in vectors), np.bool_, len(vectors))
    return present or None, flags
