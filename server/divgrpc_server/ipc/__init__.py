"""Messages between the processes of one server: packets, control messages, frames of builds.

May import the configuration. May not import grpc, protobuf messages or the core's engine.
"""
