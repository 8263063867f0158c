"""The front: the process that speaks gRPC, admits calls and hands them to workers.

May import codec, ipc, logging and the configuration. May not import numba, scipy or kernels.
"""
