"""The paper's Table 2: labels predicted by several methods.

This package may import data, the public core and the shared modules of the lab. It may not import
Table 1 or the demonstration.
"""
