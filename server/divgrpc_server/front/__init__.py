"""The front: a process that serves gRPC, decides which calls to admit, and passes them to workers.

The front may import codec, ipc, logging, the configuration, and the core's parameters and storage.
It must not import numba, scipy or compiled kernels.
"""
