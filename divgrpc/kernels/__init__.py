"""Compiled loops: arrays and scalars in, arrays and scalars out.

Rules for every kernel: no objects, strings, options, I/O or randomness; seeds and scratch memory
are passed in; dtypes are fixed and stated; sums run in a fixed order, so that the same numbers give
the same bytes on any machine; ties break by smaller distance to the query, then smaller id. Each
has a slow twin in `tests/reference.py`.
"""
