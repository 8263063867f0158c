"""Protobuf messages to the core's types and back, and the status of each error.

May import protobuf, the contract, the core and ipc. May not import grpc's server or any process.
"""
