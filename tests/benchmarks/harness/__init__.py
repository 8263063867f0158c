"""What all benchmarks share: the runner, tables and records, timing in turns, data, exact answers.

Imports the product and `support`, and no benchmark.
"""
