"""The paper's Table 2: labels predicted by several methods.

May import data, the public core and the verdicts of Table 1. May not import the demonstration.
"""
