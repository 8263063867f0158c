"""The worker: a process that answers queries with compiled kernels over open indexes.

The worker may import the core, codec, ipc and logging. It must not import grpc, so that a crash of
compiled code cannot take down a gRPC server.
"""
