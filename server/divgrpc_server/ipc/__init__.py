"""Messages between the processes of one server: packets, control messages, frames of jobs.

Lives here: how bytes travel, not what they mean. May import the configuration and the core's
parameters. May not import grpc, protobuf messages or the engine of the core.
"""
