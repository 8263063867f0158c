"""Compiled loops (kernels) that take and return arrays, scalars and records. Read `query` first.

`records` defines the records, and `registers` passes them by address. `query` answers one query
from end to end, and other modules contain its stages. The package also contains selectors, and the
loops of builds and of the label model LEML. The modules of this package may import numpy, numba and
one another, but no other module of this project.

Rules for every kernel:

- It uses no Python objects, strings, options, I/O or randomness. Seeds and scratch memory are
  arguments.
- Its docstring, or the record that the docstring names, states the dtypes of its arrays.
- It sums in a fixed order, so the same inputs give the same bytes on any machine.
- If candidates tie, it prefers the smaller distance from the query, then the smaller id.
- Tests compare it with a slow implementation in `tests/reference`.
"""
