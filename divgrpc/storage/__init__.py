"""Files of an index: immutable generations, each with a manifest and arrays.

This folder holds all code that reads or writes a data directory. It may import parameters and
types, but not kernels, hashing or search.
"""
