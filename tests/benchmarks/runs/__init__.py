"""The benchmarks: quality and speed in process, comparisons with other libraries, and the server.

A benchmark module does not import another one. Two modules are not benchmarks. `contestants` is
shared by the comparisons with other libraries, and `label_rivals` is a program for another
interpreter.
"""
