"""The worker: the process that runs kernels over open indexes.

May import the core, codec, ipc and logging. May not import grpc, which does not survive a crash of
compiled code.
"""
