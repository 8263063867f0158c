"""Logs: structured records, access lines, and a log sink that never blocks its writer.

Lives here: all output to standard error. May import ipc and the configuration. May not import any
process.
"""
