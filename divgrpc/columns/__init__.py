"""Columns hold what points have beside their vectors: ids, attributes and payloads.

`values` converts Python values to columns and back, `texts` stores texts of any length, `ids` finds
rows by ids, `writer` writes the columns of a build, and `reader` reads them.
"""
