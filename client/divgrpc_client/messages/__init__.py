"""Python values to protobuf messages and back.

May import protobuf, the contract, and the core's types, parameters and tallies of evaluations. May
not import grpc.
"""
