"""The gRPC contract, and the conversion of Python values to its messages.

This package contains `v1/*.proto`, the code that `make proto` generates from these files, the
conversion of dataclasses to messages (`records`), and the conversion of numpy arrays to bytes
(`arrays`). It may import protobuf, grpc and numpy. It must not import divgrpc, the client or the
server.
"""
