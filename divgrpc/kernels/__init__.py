"""Compiled loops (kernels) that take and return arrays, scalars and records. Read `query` first.

This package contains the records (`records`, and `registers`, which passes them by address), one
query from end to end (`query`) and its stages, the selectors, and the loops of builds and of LEML.
Its modules may import numpy, numba and one another, but no other module of this project.

Rules for every kernel:

- It uses no Python objects, strings, options, I/O or randomness. Seeds and scratch memory are
  arguments.
- Its docstring states the dtypes of its arrays.
- It sums in a fixed order, so the same numbers give the same bytes on any machine.
- If candidates tie, it prefers the smaller distance from the query, then the smaller id.
- `tests/reference` has a slow implementation of it, which tests compare it with.
"""
