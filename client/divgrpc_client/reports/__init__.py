"""HTML reports: each is one file with tables, curves and result lists.

This package holds the page, its charts and the report of an evaluation. It may import formats,
messages and the client. It may not import load or the command line.
"""
