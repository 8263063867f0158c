"""Engines start, place and replace the shard servers of a cluster.

An engine runs in a process of its own, which tells the supervisor, and so the fronts, where shards
are. If it ends, fronts go on with what they know.
"""
