"""The writer process, which makes all writes to the indexes of a server.

The supervisor starts it at the first write, and again if it ends.
"""
