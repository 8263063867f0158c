"""Which settings to try, and which to take: grids, folds and choices; no index is asked here."""

from divgrpc.evaluation.folds import FOLDS, Chosen, choose_by_folds, deal_folds
from divgrpc.evaluation.grid import Grid

__all__ = ["FOLDS", "Chosen", "Grid", "choose_by_folds", "deal_folds"]
