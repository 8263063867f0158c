"""Files of an index: immutable generations, each a manifest and its arrays.

Lives here: all code that reads or writes a data directory. May import parameters and types. May not
import kernels, hashing or search.
"""
