"""Files of an index: immutable generations, their manifest, their arrays.

Lives here: whatever reads or writes a data directory. May import parameters and types. May not
import kernels, hashing or search.
"""
