"""Answers queries over shards: parts of an index on several servers, exactly as one index would.

`placement` says on which shard a point is. `cutting` divides a generation among shards.
`ShardCore` answers messages of a router from one shard. `Router` turns a query into rounds of
messages, and the replies into the answer. Nothing here does I/O.
"""
