"""Hash families turn points into codes or cells.

This package contains hyperplanes, codes, the count sketch, and the k-means partition. The modules
of this package may import kernels, parameters and vectors. These modules may not import search, the
builder or storage.
"""
