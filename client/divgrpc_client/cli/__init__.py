"""Command line of divgrpc: its options, commands and exit codes.

This package may import every other module of the client. No other module of the client may import
it.
"""
