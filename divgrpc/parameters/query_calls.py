"""The parameters of calls of `Index.query`."""

from typing import Final

from divgrpc.parameters.query import (
    QueryOptions,
    QueryParameters,
    check_one_dial,
    named_over_default,
)
from divgrpc.parameters.suggestions import refuse_unknown
from divgrpc.types import QueryDefault

# Maximum number of cached parameters of queries. Calls with different options use different ones.
_CACHED_PARAMETERS_MAX: Final = 1_024
# Arguments of `Index.query` that are no parameters. Errors about unknown options may suggest them.
_QUERY_ARGUMENTS: Final = (
    *("queries", "like", "filter", "exclude_ids", "quotas", "group_by", "on_infeasible"),
    *("already_shown", "paged", "page_token", "min_sequence"),
)


class CallParameters:
    """Checks the options of calls, and caches the results because most calls repeat options."""

    def __init__(self) -> None:
        self._cached: dict[tuple[object, ...], QueryParameters] = {}

    def of(self, options: QueryOptions, default: QueryDefault | None) -> QueryParameters:
        """Return the parameters of a call, completed by the default of the index.

        Raises `InvalidArgumentError` with the name of the option as its `field`.
        """
        values = options.values()
        # The types of the values are part of the key, because True equals 1 and is no valid `k`.
        key = (default, *options, *values, *map(type, values))
        try:
            parameters = self._cached.get(key)
        except TypeError:
            # A value cannot be hashed, such as an array of no dimensions.
            return _check_options(options, default)
        if parameters is None:
            parameters = _check_options(options, default)
            if len(self._cached) >= _CACHED_PARAMETERS_MAX:
                self._cached.clear()
            self._cached[key] = parameters
        return parameters


def _check_options(options: QueryOptions, default: QueryDefault | None) -> QueryParameters:
    refuse_unknown("query", options, QueryOptions.__annotations__, _QUERY_ARGUMENTS)
    check_one_dial(options)
    return QueryParameters(**named_over_default(options, default))
