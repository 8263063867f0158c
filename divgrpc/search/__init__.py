"""Queries over the arrays of one generation: plan, memory, kernels, selectors, costs.

Lives here: `searcher` (calls the kernels), `plan` and `memory` (what kernels need), selectors, and
the cost model behind `auto`. May import kernels, hashing, parameters and vectors, and the type of
the manifest. May not import the builder, labels or the engine.
"""
