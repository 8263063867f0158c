"""What benchmarks share: the runner, records, data sets, exact answers, and measured programs.

The package `harness` imports the product and `support`, but no benchmark.
"""
