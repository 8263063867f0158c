"""Calls over gRPC: channels, deadlines, errors, and the detection of stalled streams.

This package may import grpc, `divgrpc_protos` and messages. It may not import the command line,
load or reports.
"""
