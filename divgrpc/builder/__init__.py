"""Turns rows of points into a generation (one build of an index), and tunes its parameters.

This package contains the builder, the encoder, tuning, and the choice of a hash family. The modules
of this package may import hashing, search, labels, kernels, parameters, storage, vectors and
`compilation`, but not the engine or `divgrpc.Index`.
"""
