"""The demonstration: scikit-learn's digits, indexed and queried on a server of its own.

May import data, the shared modules of the lab and the public client. May not import the tables of
the paper.
"""
