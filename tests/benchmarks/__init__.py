"""Benchmarks, which `make bench` runs; the test suite runs them at their smallest size.

The package `harness` has the runner and common measuring tools, and `runs` has the benchmarks. A
benchmark may import the product, the harness and `support`, but no other benchmark.
"""
