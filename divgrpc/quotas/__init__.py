"""Quotas: which selections of points they allow, and whether there is one.

This package knows points only by the numbers of their values. It imports numpy, scipy, kernels and
types.
"""
