"""Conversion between Python values and protobuf messages.

This package may import protobuf, numpy, `divgrpc_protos`, and the core's types, errors, parameters,
metrics, `evaluation` and `search.results`. It may not import grpc.
"""
