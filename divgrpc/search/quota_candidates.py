"""Picks within quotas from the candidates of a caller."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from divgrpc.errors import InvalidArgumentError
from divgrpc.parameters.diversify import DiversifyParameters
from divgrpc.quotas.bounds import Bounds, QuotaColumn
from divgrpc.search.quota_outcomes import (
    in_groups,
    infeasible,
    shortfalls_of,
    shortfalls_of_nothing,
    with_all_values,
)
from divgrpc.search.quota_selection import QuotaPicks, QuotaSelection
from divgrpc.search.relaxation import CandidateSet
from divgrpc.types import EffectiveParameters, Metric
from divgrpc.types.quotas import Quota, Quotas


class QuotaValues(NamedTuple):
    """What picks must meet, and the values of candidates.

    quotas: as `divgrpc.columns.quotas.check_attributes` returns them.
    columns: by attribute, the values of all candidates in the caller's order.
    """

    quotas: Quotas
    columns: Mapping[str, QuotaColumn]

    def limited(self, parameters: DiversifyParameters, count: int) -> DiversifyParameters:
        """Return parameters whose `k` is at most `count` if there are groups.

        There may be fewer candidates than the groups have room for.
        """
        if self.quotas.group_by is None:
            return parameters
        return replace(parameters, k=min(parameters.k or count, count) or None)

    def shortfalls_of_nothing(self) -> dict[str, Any]:
        """Return the fields of a `Diversification` of no candidates; raises as `pick` does."""
        lacks = shortfalls_of_nothing(self.quotas.quotas, 0)
        if lacks and self.quotas.on_infeasible == "fail":
            raise infeasible(lacks)
        return {"quota_shortfalls": tuple(lacks)}

    def pick(
        self,
        candidates: CandidateSet,
        parameters: EffectiveParameters,
        metric: Metric,
        copy_limit: float,
    ) -> tuple[QuotaPicks, dict[str, Any]]:
        """Pick from candidates, whose rows are their places in the caller's order.

        parameters: with a dial or `lose_at_most`.

        Returns the picks, and the fields of a `Diversification` with groups and shortfalls. Raises
        `ConditionFailedError` if no picks meet the quotas and they must not be relaxed.
        """
        if parameters.selector == "qp_relax":
            sentence = "qp_relax picks all results at once, and does not go with quotas or groups"
            raise InvalidArgumentError("selector", f"{sentence}: choose another selector")
        group_by = self.quotas.group_by
        if group_by is None:
            rules = tuple(with_all_values(q, self.columns[q.attribute]) for q in self.quotas.quotas)
        else:
            rules = (Quota(group_by.attribute, max_each=group_by.per_group),)
        columns = tuple(self.columns[quota.attribute].take(candidates.rows) for quota in rules)
        k = parameters.k
        bounds = Bounds.of(rules, columns, k, group_by)
        picks = QuotaSelection.of(
            candidates, bounds, parameters, metric, copy_limit=copy_limit
        ).select(k)
        if group_by is not None:
            picks, groups = in_groups(bounds, picks)
            return picks, {
                "group_values": groups.values,
                "group_offsets": np.concatenate(([0], np.cumsum(groups.sizes, dtype=np.int64))),
            }
        shortfalls = shortfalls_of(bounds, picks, k)
        if shortfalls and self.quotas.on_infeasible == "fail":
            raise infeasible(shortfalls)
        return picks, {"quota_shortfalls": tuple(shortfalls)}
