"""Pages for people: one HTML file with tables, curves and result lists.

Lives here: the page, its charts, the report of an evaluation. May import formats, messages and the
client. May not import load or the command line.
"""
