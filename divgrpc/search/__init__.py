"""Queries over the arrays of one generation (one build of an index).

`searcher` calls the kernels. `plan` and `memory` prepare the plan and the scratch memory that the
kernels need. The package also contains the selectors, and the cost model with which `auto` chooses
a search. The modules of this package may import kernels, hashing, parameters and vectors, and the
type of the manifest. These modules may not import the builder, labels or the engine.
"""
