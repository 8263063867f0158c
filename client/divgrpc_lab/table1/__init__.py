"""The paper's Table 1: hashing and selectors compared on points with categories.

May import data and the public client. May not import Table 2 or the demonstration.
"""
