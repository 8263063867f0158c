"""Which settings to try, what each reaches, and which to take.

    for row in evaluate(index, queries, categories, grid=Grid(ks=(10, 20))):
        print(row.parameters, row.metrics["h_score"])

numpy alone is imported: an index is asked, never made, so that a server's front and a client can
put together what others have measured.
"""

from divgrpc.evaluation.folds import FOLDS, Chosen, choose_by_folds, deal_folds
from divgrpc.evaluation.grid import Grid
from divgrpc.evaluation.measuring import COLUMNS, METRICS, Asked, Evaluable, Piece
from divgrpc.evaluation.planning import LEAST_WITH_H, Plan, Task, plan
from divgrpc.evaluation.running import PIECE_QUERIES, Clock, evaluate
from divgrpc.evaluation.tallying import Tally

__all__ = [
    "COLUMNS",
    "FOLDS",
    "LEAST_WITH_H",
    "METRICS",
    "PIECE_QUERIES",
    "Asked",
    "Chosen",
    "Clock",
    "Evaluable",
    "Grid",
    "Piece",
    "Plan",
    "Tally",
    "Task",
    "choose_by_folds",
    "deal_folds",
    "evaluate",
    "plan",
]
