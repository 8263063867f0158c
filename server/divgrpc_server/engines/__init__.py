"""Engines start, place and replace the shard servers of a cluster.

An engine runs in a process of its own, which tells the supervisor, and so the fronts, where shards
are. `LocalEngine` takes its servers with it if it ends, and the next one starts new ones.
"""
