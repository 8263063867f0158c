"""Python values to protobuf messages and back.

May import protobuf, the contract and the core's types and parameters. May not import grpc.
"""
