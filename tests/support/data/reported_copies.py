"""Copies of shards in a folder of a test, and what was reported about them."""

from pathlib import Path

from divgrpc.sharding.copies import ShardCopies


class ReportedCopies:
    """The copies of one server; `root` has the indexes, and `cache` the copies.

    events: what was reported, without times, each with the reason.
    prefixes: how the names of all copies may begin.
    """

    prefixes: tuple[str, ...] = ("",)

    def __init__(self, folder: Path) -> None:
        """Take a folder, which several servers may share."""
        self.root, self.cache = folder / "data", folder / "cache"
        self.root.mkdir(exist_ok=True)
        self.events: list[tuple[str, str]] = []
        self.copies = ShardCopies(self.cache, self.root, self._report)

    def _report(self, event: str, shard: str, reason: str) -> None:
        assert shard.startswith(self.prefixes)
        self.events.append((event.split(" in ", maxsplit=1)[0], reason))

    @property
    def paths(self) -> list[Path]:
        """The files and folders beside one another in `cache`."""
        return sorted(self.cache.iterdir()) if self.cache.exists() else []
