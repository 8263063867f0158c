"""Which settings to try, what each reaches on a caller's own queries, and which to take.

Lives here: grids, cross-validation by folds, evaluations of queries and of predicted labels. May
import every other package of divgrpc. Only the modules on labels of an index may import an engine:
a client makes rows of answered figures with numpy alone.

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
