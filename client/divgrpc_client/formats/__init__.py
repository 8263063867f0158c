"""Readers of input files, and writers of tables, JSON and CSV.

This package may import messages, `divgrpc_protos.arrays`, numpy, rich, and the core's types, errors
and parameters. It may not open a connection.
"""
