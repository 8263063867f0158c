"""Building turns rows into a generation, and chooses and measures its parameters.

This folder holds the builder, the encoder, tuning, and the choice of a hash family. It may import
hashing, search, labels, kernels, parameters, storage and `compilation`, but not the engine or
`divgrpc.Index`.
"""
