"""Why Build chose what it chose, a sentence each."""

from divgrpc.build.encoder import Encoded
from divgrpc.build.families import Family
from divgrpc.build.tuning import Tuned
from divgrpc.hashing.count_sketch import FROM_DIMS, SUMS
from divgrpc.parameters import BuildParameters
from divgrpc.search.costs import AUTO, CLEARLY_CHEAPER, reaches
from divgrpc.types import Choice


def choices(
    asked: BuildParameters, family: Family, encoded: Encoded, tuned: Tuned, shape: tuple[int, int]
) -> tuple[Choice, ...]:
    """Return what was left to Build and what became of it, of points (n, d) of this shape."""
    (rows, dims), made = shape, encoded.parameters
    cells = made.hash_family == "cells"
    found = []
    if asked.hash_family == "auto":
        found.append(Choice("hash_family", made.hash_family, family.reason))
    if "sketch" in encoded.arrays:
        reason = f"sums that {dims:,} columns are hashed by, as all above {FROM_DIMS - 1:,} are"
        found.append(Choice("sketch", str(SUMS), reason))
    if asked.n_components is None and made.hash_family != "lsh_div":
        reason = "all dimensions" if made.n_components == dims else f"the strongest of {dims:,}"
        found.append(Choice("n_components", str(made.n_components), reason))
    if cells:
        count = len(encoded.arrays["cell_centres"])
        reason = f"about four times the square root of {rows:,} points, one per sixteen at most"
        found.append(Choice("cells", str(count), reason))
    else:
        if asked.n_bits is None:
            reason = f"buckets of two to four points on average, of {rows:,}; 8 to 24 bits"
            found.append(Choice("n_bits", str(made.n_bits), reason))
        if asked.n_tables is None:
            found.append(Choice("n_tables", str(made.n_tables), "the default, room allowing"))
    found.append(_probes(tuned, made.target_recall, "cells" if cells else "buckets"))
    found.append(_search(tuned, made.target_recall))
    return tuple(found)


def _probes(tuned: Tuned, target: float, what: str) -> Choice:
    pools = next(cost.pools for cost in tuned.search_costs if cost.search == "tables")
    pool = next(pool for pool in pools if pool.n_probes == tuned.n_probes)
    reason = f"the {what} that find most of the nearest {pool.candidates}, {pool.recall:.3f}"
    if reaches(pool.recall, target):
        reason = f"{what} enough to find {target:g} of the nearest {pool.candidates}"
    others = ", ".join(f"{pool.n_probes} for {pool.candidates:,}" for pool in pools)
    return Choice("n_probes", str(tuned.n_probes), f"{reason}; by candidates: {others}")


def dense_choice(dense: Tuned, target: float, kind: str) -> Choice:
    """Return what `auto` takes for dense queries of sparse points; `kind` names the sample."""
    chosen = _search(dense, target)
    return Choice("search_dense", chosen.value, f"by {dense.n_queries} {kind}: {chosen.reason}")


def _search(tuned: Tuned, target: float) -> Choice:
    measured = {cost.search: cost for cost in tuned.search_costs}
    costs = ", ".join(
        f"{search} finds {measured[search].recall:.3f} at {measured[search].microseconds:.0f} us"
        for search in AUTO
    )
    reason = (
        f"auto starts with {AUTO[0]}, and moves on to {', then to '.join(AUTO[1:])}, where that "
        f"finds {target:g} of the candidates of a default query at less than {CLEARLY_CHEAPER:g} "
        f"of the price: {costs} by counted work"
    )
    return Choice("search", tuned.auto_search, reason)
