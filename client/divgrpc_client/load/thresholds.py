"""What a run must reach: `p99<20ms`, `errors<0.1%`, `rate>=450`, `quality>0.95`.

p50, p99, p99.9, max, mean   latency from the intended send time, in us, ms or s
service_p99, ...             the same from the true send time
errors                       share of calls that were not answered OK, those not sent included
rate                         calls answered OK a second
quality                      share of ids that exact search finds too
gap_closed, h                where points are known: of the kind of call where it is least
"""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from divgrpc.errors import InvalidArgumentError

_FORM: Final = re.compile(
    r"(?P<name>[a-z_]+[\d.]*)\s*(?P<sign><=|>=|<|>)\s*(?P<number>\d+\.?\d*)\s*(?P<unit>us|ms|s|%|)"
)
_SIGNS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_UNITS: Final = {"us": 1.0, "ms": 1e3, "s": 1e6, "%": 0.01, "": 1.0}
MEASURED: Final = ("gap_closed", "h")
_SHARES: Final = ("errors", "quality", *MEASURED)


@dataclass(frozen=True, slots=True)
class Threshold:
    """One of them; times in microseconds, shares from 0 to 1."""

    text: str
    name: str
    sign: str
    bound: float

    def holds(self, value: float | None) -> bool:
        """Tell whether a figure is within it; what was not measured is not."""
        return value is not None and _SIGNS[self.sign](value, self.bound)


def parse_threshold(text: str, field: str = "require") -> Threshold:
    """Read a threshold; raises `InvalidArgumentError`, naming `field`, where it is none."""
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise InvalidArgumentError(field, f"{field} must be such as p99<20ms, got {text!r}")
    name, unit = found["name"], found["unit"]
    if is_time(name):
        fitting: tuple[str, ...] = ("us", "ms", "s")
    elif name in _SHARES:
        fitting = ("%", "")
    elif name == "rate":
        fitting = ("",)
    else:
        raise InvalidArgumentError(
            field,
            f"{field} knows p50, p99.9 and so on, max, mean, errors, rate, quality, "
            f"gap_closed, h: {text!r}",
        )
    if unit not in fitting:
        wanted = " or ".join(filter(None, fitting)) or "none"
        raise InvalidArgumentError(field, f"the unit of {name} is {wanted}: {text!r}")
    return Threshold(text.strip(), name, found["sign"], float(found["number"]) * _UNITS[unit])


def is_time(name: str) -> bool:
    """Tell whether a figure is a latency."""
    plain = name.removeprefix("service_")
    return plain in {"max", "mean"} or percentile(plain) is not None


def percentile(name: str) -> float | None:
    """Return the number of a percentile's name, None where it is not one."""
    if re.fullmatch(r"p\d+(\.\d+)?", name) and 0 < float(name[1:]) < 100:
        return float(name[1:])
    return None
