"""The supervisor: a process that starts, connects and replaces all other processes.

The supervisor controls the lifetime of every process, the port, and the folder for indexes in
memory. It may import ipc, logging, the configuration and the core's storage. It must not import
grpc or numba, because it must survive faults in both.
"""
