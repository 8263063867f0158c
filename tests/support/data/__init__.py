"""Points, labels, indexes and rows of evaluations; it may import `reference` and `processes`."""
