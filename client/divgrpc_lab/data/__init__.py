"""Data: sets read from files or generated, and hyperplane queries learned from them.

May import the core's types and metrics, scipy and scikit-learn. May not open a connection.
"""
