"""Conversion between protobuf messages and the core's types, and of errors to gRPC statuses.

This package may import protobuf, the contract, the core and ipc. It must not import the gRPC server
or the package of a process.
"""
