"""The front: the process that speaks gRPC, admits calls and hands them to workers.

May import codec, ipc, logging, the configuration, and the core's parameters and storage. May not
import numba, scipy or kernels.
"""
