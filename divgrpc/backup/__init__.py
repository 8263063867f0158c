"""Snapshots of indexes: one file that is made while a server runs, and restored elsewhere.

`write_snapshot` copies indexes into a file, and `restore_snapshot` makes indexes from it.
"""

from divgrpc.backup.contents import SnapshotEntry
from divgrpc.backup.restoration import restore_snapshot
from divgrpc.backup.snapshots import write_snapshot

__all__ = ["SnapshotEntry", "restore_snapshot", "write_snapshot"]
