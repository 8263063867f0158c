"""The supervisor: starts, connects and replaces all other processes.

Lives here: the life of every process, the port, the folder in memory. May import ipc, logging, the
configuration and the core's storage. May not import grpc or numba, because it must outlive faults
of both.
"""
