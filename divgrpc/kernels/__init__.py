"""Compiled loops: arrays, scalars and records of these in and out. Read `query` first.

Lives here: `records` (the named arrays and numbers), `registers` (records by address), `query` (one
query from end to end) and its stages, selectors, and the loops of builds and of LEML. May import
numpy, numba and one another. May not import any other module of this project.

Rules for every kernel: no objects, strings, options, I/O or randomness; seeds and scratch memory
are arguments; dtypes are fixed and stated; sums run in a fixed order, so that the same numbers give
the same bytes on any machine; ties go to the smaller distance from the query, then the smaller id.
Each has a slow twin in `tests/reference`.
"""
