"""The parameters of a diagnosis: names, defaults and ranges."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from divgrpc.errors import invalid
from divgrpc.parameters.checks import FieldChecks, whole
from divgrpc.parameters.limits import LIMITS, SEED_MAX

# With this many sampled points, the 95 % interval of a share reaches at most 2 % to each side.
DEFAULT_SAMPLE: Final = 2_500

_check_fields: Final = FieldChecks(
    sample=whole(1, LIMITS["diagnose_sample_max"]), seed=whole(0, SEED_MAX)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnoseParameters:
    """How a collection is diagnosed.

    attributes: names of attributes; near-copies are also counted by their values.
    sample: number of points whose near-copies are counted, 1 to 10,000.
    seed: seed of the sample.

    Raises `InvalidArgumentError` with the field.
    """

    attributes: Sequence[str] = ()
    sample: int = DEFAULT_SAMPLE
    seed: int = 0

    def __post_init__(self) -> None:
        _check_fields(self)
        names = (self.attributes,) if isinstance(self.attributes, str) else self.attributes
        if not isinstance(names, Iterable):
            raise invalid("attributes", f"must be names of attributes, got {names!r:.80}")
        names = tuple(names)
        most = LIMITS["attributes_max"]
        if len(names) > most:
            raise invalid("attributes", f"must be at most {most}, got {len(names)}")
        for name in names:
            if not isinstance(name, str):
                raise invalid("attributes", f"must be names of attributes, got {name!r:.80}")
            if names.count(name) > 1:
                raise invalid("attributes", f"has {name!r:.80} more than once")
        object.__setattr__(self, "attributes", names)
