"""The runs: quality in process, other libraries, and the server. No run imports another one.

`contestants` is shared by the comparisons with other libraries, and `label_rivals` is a program
that another interpreter runs.
"""
