"""Hash families: hyperplanes, codes, the count sketch, and the k-means partition.

Lives here: everything that turns points into codes or cells. May import kernels, parameters and
vectors. May not import search, the builder or storage.
"""
