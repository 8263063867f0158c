"""Builds: from rows to a generation, with all measurements and choices on the way.

Lives here: the builder, the encoder, tuning, and the choice of a hash family. May import hashing,
search, labels, kernels, parameters, storage and `compilation`. May not import the engine or
`divgrpc.Index`.
"""
