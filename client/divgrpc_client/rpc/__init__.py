"""Calls over gRPC: channels, deadlines, errors, streams that stall.

May import grpc, the contract and messages. May not import the command line, load or reports.
"""
