"""Logging: structured events, access lines, and a log sink that never blocks.

All output to standard error goes through this package. This package may import the core's
parameters and the configuration. It must not import the package of a process.
"""
