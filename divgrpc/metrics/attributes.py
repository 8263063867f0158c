"""How evenly the results of a query spread over the values of an attribute."""

import math
from collections import defaultdict
from collections.abc import Sequence

from divgrpc.types.records import AttributeValue


def value_entropy(values: Sequence[AttributeValue]) -> float:
    """Return the entropy, 0 to 1, of the values of an attribute over n results.

    values: the value of each result. A tuple or list has several values, which share the weight of
        the result. None, and an empty tuple or list, count as a value of their own.

    The entropy is divided by log n and limited to 1: 0 if all results have the same value, and 1 if
    all differ. It is NaN for fewer than two results.
    """
    if len(values) < 2:
        return math.nan
    lists = [tuple(value) if isinstance(value, tuple | list) else (value,) for value in values]
    # Whole numbers add up without rounding, and take a tenth of the time of fractions.
    whole = math.lcm(*(len(parts) or 1 for parts in lists))
    weights: defaultdict[object, int] = defaultdict(int)
    for parts in lists:
        for part in parts or (None,):
            # True equals 1, but is another value.
            weights[type(part), part] += whole // (len(parts) or 1)
    shares = [weight / (whole * len(values)) for weight in weights.values()]
    entropy = -math.fsum(share * math.log(share) for share in shares)
    return min(1.0, max(0.0, entropy / math.log(len(values))))
