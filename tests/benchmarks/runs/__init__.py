"""The benchmarks: quality and speed in process, comparisons with other libraries, and the server.

A benchmark module does not import another one. `contestants` and `rivals` are not benchmarks: the
comparisons with other libraries share them.
"""
