"""The paper's Table 2: labels predicted by several methods.

May import data, the public core and the shared modules of the lab. May not import Table 1 or the
demonstration.
"""
