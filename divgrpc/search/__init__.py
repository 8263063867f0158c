"""Queries over the arrays of one generation (one build of an index).

This package contains `searcher`, which calls the kernels; `plan` and `memory`, which prepare what
the kernels need; the selectors; and the cost model by which `auto` chooses a search. Its modules
may import kernels, hashing, parameters and vectors, and the type of the manifest. They may not
import the builder, labels or the engine.
"""
