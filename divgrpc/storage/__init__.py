"""Stores an index as immutable generations, each with a manifest and arrays.

This package contains all code that reads or writes a data directory. Its modules may import
parameters and types, but not kernels, hashing or search.
"""
