"""Requests, valid and malformed; it may import `support.processes` and `support.checks`."""
