"""A Haystack ranker that keeps relevant documents that differ from one another."""

from haystack_integrations.components.rankers.divgrpc.diversity_ranker import (
    DivgrpcDiversityRanker,
)

__all__ = ["DivgrpcDiversityRanker"]
