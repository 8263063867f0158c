"""Data sets, read from files or generated, and hyperplane queries learned from them.

This package may import the core's types and metrics, scipy and scikit-learn. It may not open a
connection.
"""
