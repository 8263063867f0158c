"""Stores an index as immutable generations, each with a manifest and arrays.

This package contains all code that reads or writes the files of an index. Of the other packages
of divgrpc, it may import `parameters` and `types`, but not `kernels`, `hashing` or `search`.
"""
