"""Thresholds, bounds on figures of a run: `p99<20ms`, `errors<0.1%`, `rate>=450`.

p50, p99.9, max, mean   latency from the time a call was due (with --closed, sent), in us, ms or s
errors                  share of calls that were not sent or not answered OK
rate                    number of calls per second that were answered OK
"""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from divgrpc.errors import InvalidArgumentError, invalid

_FORM: Final = re.compile(
    r"(?P<name>[a-z_]+[\d.]*)\s*(?P<sign><=|>=|<|>)\s*(?P<number>\d+\.?\d*)\s*(?P<unit>us|ms|s|%|)"
)
_PERCENTILE: Final = re.compile(r"p(?P<percent>\d+(\.\d+)?)")
_SIGNS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_UNITS: Final = {"us": 1.0, "ms": 1e3, "s": 1e6, "%": 0.01, "": 1.0}
_UNITS_OF: Final = {"errors": ("%", ""), "rate": ("",)}


@dataclass(frozen=True, slots=True)
class Threshold:
    """A bound on a figure; times are in microseconds, shares from 0 to 1."""

    text: str
    name: str
    sign: str
    bound: float

    def holds(self, value: float | None) -> bool:
        """Tell whether a figure meets the bound; None, a figure that was not measured, does not."""
        return value is not None and _SIGNS[self.sign](value, self.bound)


def parse_threshold(text: str, field: str = "require") -> Threshold:
    """Parse a threshold; raises `InvalidArgumentError` for `field` if it is malformed."""
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise invalid(field, f"must be such as p99<20ms, got {text!r}")
    name, unit = match["name"], match["unit"]
    units = ("us", "ms", "s") if is_time(name) else _UNITS_OF.get(name)
    if units is None:
        raise invalid(field, f"knows p50, p99.9, max, mean, errors and rate: {text!r}")
    if unit not in units:
        unit_names = " or ".join(filter(None, units)) or "none"
        raise InvalidArgumentError(field, f"the unit of {name} is {unit_names}: {text!r}")
    return Threshold(text.strip(), name, match["sign"], float(match["number"]) * _UNITS[unit])


def is_time(name: str) -> bool:
    """Tell whether a figure is a latency."""
    return name == "mean" or percent_of(name) is not None


def percent_of(name: str) -> float | None:
    """Return the percentage of a figure such as p99, 100 for the maximum, None for others."""
    if name == "max":
        return 100.0
    match = _PERCENTILE.fullmatch(name)
    return float(match["percent"]) if match and 0 < float(match["percent"]) < 100 else None
