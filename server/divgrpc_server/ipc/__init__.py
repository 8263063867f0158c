"""Communication between the processes of a server: packets, control messages and job frames.

This package defines how bytes are sent, not what they mean. It may import the configuration and the
core's parameters. It must not import grpc, protobuf messages or the core's engine.
"""
