"""The builder: the process of one build, from an upload to a generation.

May import the core, codec, ipc and logging. May not import grpc.
"""
