"""Monitoring: the metrics that exist, and the shared memory in which processes count.

Every process may import this package. It must not import the package of a process.
"""
