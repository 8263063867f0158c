"""Logs: structured records, access lines, and a pipe that never blocks its writer.

May import ipc and the configuration. May not import any process.
"""
