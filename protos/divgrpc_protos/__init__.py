"""The contract: `v1/*.proto`, the code generated from them, and numpy arrays as wire bytes.

`make proto` regenerates; a test fails when the committed code is stale.
"""
