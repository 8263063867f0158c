"""Conversion between Python values and protobuf messages.

This package may import protobuf, the contract, and the core's types, parameters and tallies of
evaluations. It may not import grpc.
"""
