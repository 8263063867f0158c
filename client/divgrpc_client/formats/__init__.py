"""Files that people have, and output that people and programs read.

Lives here: readers of vectors and labels, tables for terminals, JSON and CSV. May import messages
and the core's types. May not open a connection.
"""
