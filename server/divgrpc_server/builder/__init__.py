"""The builder: a process that serves one build, from the upload to the finished generation.

This package contains the protocol of the upload, the build, and the label inputs of an upload. It
may import the core, codec, ipc and logging. It must not import grpc.
"""
