"""The parameters of builds, queries and predictions: names, defaults, ranges, limits.

This package contains dataclasses that check what callers pass, and the limits of requests. It may
import `divgrpc.types` and `divgrpc.errors`. It may not import modules that compute, such as
`divgrpc.kernels`, because the client imports this package.
"""

from divgrpc.parameters.build import (
    BuildOptions,
    BuildParameters,
    LabelParameters,
    MetricWord,
    as_metric,
)
from divgrpc.parameters.diversify import DiversifyOptions, DiversifyParameters
from divgrpc.parameters.limits import INDEX_NAME, LIMITS, SEED_MAX, check_index_name
from divgrpc.parameters.predict import PredictOptions, PredictParameters
from divgrpc.parameters.query import (
    CODE_BITS,
    DEFAULT_DIVERSITY,
    DEFAULT_DUPLICATE_COSINE,
    DEFAULT_K,
    DEFAULT_VARIANT,
    QueryOptions,
    QueryParameters,
    check_one_dial,
    named_over_default,
)

__all__ = [
    "CODE_BITS",
    "DEFAULT_DIVERSITY",
    "DEFAULT_DUPLICATE_COSINE",
    "DEFAULT_K",
    "DEFAULT_VARIANT",
    "INDEX_NAME",
    "LIMITS",
    "SEED_MAX",
    "BuildOptions",
    "BuildParameters",
    "DiversifyOptions",
    "DiversifyParameters",
    "LabelParameters",
    "MetricWord",
    "PredictOptions",
    "PredictParameters",
    "QueryOptions",
    "QueryParameters",
    "as_metric",
    "check_index_name",
    "check_one_dial",
    "named_over_default",
]
