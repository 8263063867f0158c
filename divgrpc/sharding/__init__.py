"""Answers calls over shards: parts of an index on several servers, exactly as one index would.

`placement` says on which shard a point is. `cutting` divides a generation among shards.
`ShardCore` answers messages of a router from one shard. `Router` turns a call into rounds of
messages, and the replies into the result. Nothing here does I/O.
"""
