"""Evaluations measure the quality and the time of many settings on a caller's own queries.

This package contains grids of settings, cross-validation, and evaluations of queries and of
predicted labels. It may import every other package of divgrpc. Only `label_running` may import an
engine, because clients use the other modules without any dependency but numpy.

    for row in evaluate(index, queries, categories, grid=Grid(ks=(10, 20))):
        print(row.parameters, row.metrics["h_score"])
"""

from divgrpc.evaluation.folds import FOLDS, Chosen, choose_by_folds, deal_folds
from divgrpc.evaluation.grid import Grid, LabelGrid
from divgrpc.evaluation.queries import COLUMNS, LEAST_WITH_H, METRICS, evaluate

__all__ = [
    "COLUMNS",
    "FOLDS",
    "LEAST_WITH_H",
    "METRICS",
    "Chosen",
    "Grid",
    "LabelGrid",
    "choose_by_folds",
    "deal_folds",
    "evaluate",
]
