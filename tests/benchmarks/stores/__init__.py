"""Adapters of other stores to the checks of `divgrpc.conformance`.

Each uses the store as its documentation shows, with the store's defaults, except the number of
candidates: searches with a diversity have ten times as many as results, as in divgrpc.
"""

from typing import Final

CANDIDATES_PER_RESULT: Final = 10
