"""The demonstration: scikit-learn's digits, indexed and queried on a server of its own.

This package may import data, the shared modules of the lab and the public client. It may not import
the tables of the paper.
"""
