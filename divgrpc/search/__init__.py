"""Queries: plan, memory, kernels called in order, selectors, costs.

Lives here: what answers a query over the arrays of one generation. May import kernels, hashing,
parameters, storage and vectors. May not import build, labels or the engine.
"""
