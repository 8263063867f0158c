"""Hash families: hyperplanes, codes, the count sketch, and the k-means partition.

This package contains everything that turns points into codes or cells. Its modules may import
kernels, parameters and vectors. They may not import search, the builder or storage.
"""
