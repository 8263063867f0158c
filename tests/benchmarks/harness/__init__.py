"""What benchmarks share: the runner, records, data sets, exact answers, and measured programs.

This package imports the product and `support`, but no benchmark.
"""
