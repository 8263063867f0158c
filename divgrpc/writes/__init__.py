"""Writes: the log, the rows that were written since Build, and the merge of these rows.

A collection is a generation of an index and the writes to it. `records` and `log` define the log.
`State` applies the records of the log, one after another, to arrays in memory. A `Snapshot` is what
queries read. `layout` writes and opens the files of a merge, and `renewal` makes a new generation.
`requests` checks requests and makes records of them. A `WriteTarget` is a generation that is open
for writing, and the `Committer` lets many threads write to it. `Replica` follows another process.
`divgrpc.collection` puts these parts together.
"""
