"""Logging: structured events, access lines, and a log sink that never blocks.

All output to standard error goes through this package. It may import ipc and the configuration. It
must not import a process.
"""
