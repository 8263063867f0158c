"""Shared by all benchmarks: the runner, records, timing in turns, data, exact answers, programs.

Imports the product and `support`, and no benchmark.
"""
