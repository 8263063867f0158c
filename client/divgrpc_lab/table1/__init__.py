"""The paper's Table 1, which compares hashing and selectors on points with categories.

This package may import data, the shared modules of the lab, the public client and metrics. It may
not import Table 2 or the demonstration.
"""
