"""Benchmarks, which `make bench` runs; the suite runs them only in their smallest form.

`harness` has the runner and the yardsticks, `runs` the benchmarks. A benchmark imports the product,
the harness and `support`, and no other benchmark.
"""
