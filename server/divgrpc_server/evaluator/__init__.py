"""The evaluator: the process of evaluations, one at a time, on threads of a low priority.

May import the core, codec, ipc and logging. May not import grpc.
"""
