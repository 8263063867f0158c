"""The builder: the process of one build, from an upload to a generation.

Lives here: the upload's messages, the build, and the label inputs of an upload. May import the
core, codec, ipc and logging. May not import grpc.
"""
