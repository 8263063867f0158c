"""Timed runs of divgrpc beside strong baselines; `make bench` runs them, the suite does not."""
