"""Evaluations: the quality and the time of many settings on a caller's own queries.

Lives here: grids, cross-validation by folds, evaluations of queries and of predicted labels. May
import every other package of divgrpc. Only `label_running` may import an engine, because clients
load the other modules with numpy alone.

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
