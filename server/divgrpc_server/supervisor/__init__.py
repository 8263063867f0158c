"""The supervisor: starts, connects and replaces all other processes.

May import ipc, logging and the configuration. May not import grpc or numba, because it must outlive
faults of both.
"""
