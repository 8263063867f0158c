"""The paper's Table 1: hashing and selectors compared on points with categories.

May import data, the shared modules of the lab, the public client and metrics. May not import Table
2 or the demonstration.
"""
