"""Folders as a loss of power may leave them: changes that were not synced are missing in part.

`Disk` records what a process does to the files in a folder. It replaces functions of `os`, and
looks at the folder after each call, so that it also sees writes to mapped files: to those that were
never synced, and to `PUBLISHED`. A sync of a file
keeps its contents, and a sync of a folder keeps the names in it. All other changes may reach the
disk or not, in any order, and changes of contents also block by block. Only a rename is never
split.
"""

import os
import threading
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from divgrpc.storage.published import PUBLISHED

_NAMES: Final = ("open", "mkdir", "rename", "replace", "link", "unlink", "rmdir")
_CONTENTS: Final = ("write", "pwrite", "posix_fallocate", "ftruncate")
_SYNCS: Final = ("fsync", "fdatasync")
_BLOCK_BYTES: Final = (64, 512, 4096)
# Each change reaches the disk with one of these probabilities.
_SHARES: Final = (0.0, 1.0, 0.5, 0.1, 0.9)
# Share of the folders in which all files that were not synced lack a single small block.
_TORN_SHARE: Final = 0.5
# Share of the files with a mixture of contents that lack a single block.
_LOST_BLOCK_SHARE: Final = 0.5


@dataclass(eq=False)
class _Node:
    """A file or a folder; its number does not change when it is renamed.

    events, contents: the contents of a file since each event.
    syncs: the events at which it was synced.
    """

    is_folder: bool
    events: list[int] = field(default_factory=list)
    contents: list[bytes] = field(default_factory=list)
    syncs: list[int] = field(default_factory=list)

    def synced_at(self, event: int) -> int:
        """Return the last event up to `event` at which it was synced; -1 if it never was."""
        place = bisect_right(self.syncs, event)
        return self.syncs[place - 1] if place else -1

    def versions(self, event: int) -> list[bytes]:
        """Return the contents that it had since the last sync; the first ones are on the disk."""
        first = bisect_right(self.events, self.synced_at(event))
        last = bisect_right(self.events, event)
        durable = self.contents[first - 1] if first else b""
        return [durable, *self.contents[first:last]]


_Name = tuple[_Node, str]


@dataclass(frozen=True)
class _Change:
    """Names that changed at once, each with its new file or folder; None if the name is gone."""

    event: int
    names: dict[_Name, _Node | None]

    def is_synced(self, event: int) -> bool:
        """Whether a folder of the names was synced since, up to an event."""
        return any(self.event <= folder.synced_at(event) for folder, _ in self.names)


class Disk:
    """The history of a folder. At the beginning, the whole folder is on the disk.

    event: the number of the last change or sync, 0 at the beginning.
    renames: the numbers of all renames, whose order with other changes matters most.
    folder_syncs: the numbers of all syncs of folders.
    """

    def __init__(self, folder: Path) -> None:
        # The folder is looked at once before event 0.
        self.event = -2
        self.renames: list[int] = []
        self.folder_syncs: list[int] = []
        self._path = folder
        self._lock = threading.RLock()
        self._root = _Node(is_folder=True)
        self._numbers: dict[int, _Node] = {}
        self._names: dict[_Node, dict[str, _Node]] = {}
        self._paths: dict[_Node, str] = {}
        # Files that may have changed since they were last looked at.
        self._dirty: set[_Node] = set()
        self._changes: list[_Change] = []
        self._look()
        self.event = 0
        for node in (self._root, *self._numbers.values()):
            node.syncs.append(self.event)
        self._dirty.clear()

    def record(self, patch: pytest.MonkeyPatch) -> None:
        """Record what this process does until `patch` is undone; nothing is really synced."""
        for name in (*_NAMES, *_CONTENTS):
            patch.setattr(os, name, self._recorded(name, getattr(os, name)))
        for name in _SYNCS:
            patch.setattr(os, name, self._sync)

    def _recorded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401  # those of `function`
            with self._lock:
                try:
                    return function(*arguments, **options)
                finally:
                    if name in _NAMES:
                        self._look_at_names()
                        self.renames += [self.event] * (name in ("rename", "replace"))
                    elif (node := self._node_of(arguments[0])) is not None:
                        self._look_at_contents([node])
                        self._dirty.add(node)

        return call

    def _sync(self, descriptor: int) -> None:
        with self._lock:
            self._look()
            node = self._node_of(descriptor)
            if node is not None:
                self.event += 1
                node.syncs.append(self.event)
                self.folder_syncs += [self.event] * node.is_folder
                self._dirty.discard(node)

    def _node_of(self, descriptor: int) -> _Node | None:
        """Return the open file or folder; None if it is elsewhere, or was removed."""
        number = os.fstat(descriptor).st_ino
        return self._root if number == os.stat(self._path).st_ino else self._numbers.get(number)

    def _look(self) -> None:
        """Record how the folder differs from what was recorded."""
        self._look_at_names()
        self._look_at_contents([node for node in self._paths if self._may_change(node)])

    def _may_change(self, node: _Node) -> bool:
        """Tell whether the contents may differ from what was recorded.

        The code under test maps files for writing only before their first sync, except one.
        """
        is_mapped = self._paths[node].endswith(PUBLISHED)
        return not node.is_folder and (is_mapped or not node.syncs or node in self._dirty)

    def _look_at_names(self) -> None:
        before, self._names, self._paths = self._names, {}, {}
        numbers: dict[int, _Node] = {}
        self._walk(str(self._path), self._root, numbers)
        # A number without a name may be used for another file later.
        self._numbers = numbers
        changes: dict[_Name, _Node | None] = {}
        for folder in self._names.keys() | before.keys():
            old, new = before.get(folder, {}), self._names.get(folder, {})
            for name in old.keys() | new.keys():
                if old.get(name) is not new.get(name):
                    changes[folder, name] = new.get(name)
        if changes:
            self.event += 1
            self._changes.append(_Change(self.event, changes))

    def _walk(self, path: str, folder: _Node, numbers: dict[int, _Node]) -> None:
        entries = self._names.setdefault(folder, {})
        for entry in os.scandir(path):
            number = entry.inode()
            node = numbers.get(number) or self._numbers.get(number)
            if node is None or node.is_folder != entry.is_dir():
                node = _Node(entry.is_dir())
            numbers[number] = entries[entry.name] = node
            self._paths[node] = entry.path
            if node.is_folder:
                self._walk(entry.path, node, numbers)

    def _look_at_contents(self, files: list[_Node]) -> None:
        self.event += 1
        for node in files:
            with open(self._paths[node], "rb", buffering=0) as file:
                content = file.read()
            if content != (node.contents[-1] if node.contents else b""):
                node.events.append(self.event)
                node.contents.append(content)

    # Copies of the folder as a loss of power may leave it.

    def certain(self, event: int) -> dict[str, bytes]:
        """Return the files that no loss of power right after an event removes, with contents.

        They are those whose names and contents were synced.
        """
        return self._files(event, 0.0)

    def latest(self, event: int) -> dict[str, bytes]:
        """Return the files with contents that processes see right after an event."""
        return self._files(event, 1.0)

    def _files(self, event: int, share: float) -> dict[str, bytes]:
        names, files = self._names_at(event, share, np.random.default_rng(0)), dict[str, bytes]()

        def add(prefix: str, parent: _Node) -> None:
            for name, node in names.get(parent, {}).items():
                if node.is_folder:
                    add(f"{prefix}{name}/", node)
                else:
                    files[prefix + name] = node.versions(event)[-1 if share else 0]

        add("", self._root)
        return files

    def leave(
        self, folder: Path, event: int, rng: np.random.Generator, share: float | None = None
    ) -> None:
        """Write a copy of the folder as a loss of power right after an event may leave it.

        share: the probability that a change which was not synced is there; random by default.
        """
        lacks_block = share is None and rng.random() < _TORN_SHARE
        if share is None:
            share = float(rng.choice(_SHARES))
        block_bytes = int(rng.choice(_BLOCK_BYTES))
        names = self._names_at(event, share, rng)

        def content(node: _Node) -> bytes:
            versions = node.versions(event)
            if lacks_block and len(versions) > 1:
                return _without_a_block(versions[0], versions[-1], min(_BLOCK_BYTES), rng)
            if rng.random() < share:
                return versions[-1]
            if len(versions) == 1 or share == 0 or rng.random() < 0.5:
                return versions[0]
            return _mixed(versions, block_bytes, rng)

        def write(path: Path, parent: _Node) -> None:
            path.mkdir()
            for name, node in sorted(names.get(parent, {}).items(), key=lambda item: item[0]):
                if node.is_folder:
                    write(path / name, node)
                else:
                    (path / name).write_bytes(content(node))

        write(folder, self._root)

    def _names_at(
        self, event: int, share: float, rng: np.random.Generator
    ) -> dict[_Node, dict[str, _Node]]:
        """Return the names in each folder, with some of the changes that were not synced."""
        names: dict[_Node, dict[str, _Node]] = {}
        for change in self._kept_changes(event, share, rng):
            for (parent, name), node in change.names.items():
                entries = names.setdefault(parent, {})
                if node is None:
                    entries.pop(name, None)
                else:
                    entries[name] = node
        return names

    def _kept_changes(self, event: int, share: float, rng: np.random.Generator) -> list[_Change]:
        """Choose the changes of names that reached the disk: those that were synced, and others.

        A change is there only if the earlier changes of its names are.
        """
        changes = [change for change in self._changes if change.event <= event]
        is_kept = [change.is_synced(event) for change in changes]
        names: set[_Name] = set()
        for place in reversed(range(len(changes))):
            is_kept[place] = is_kept[place] or not names.isdisjoint(changes[place].names)
            if is_kept[place]:
                names |= changes[place].names.keys()
        lost: set[_Name] = set()
        kept_changes = []
        for change, keep in zip(changes, is_kept, strict=True):
            if keep or (lost.isdisjoint(change.names) and rng.random() < share):
                kept_changes.append(change)
            else:
                lost |= change.names.keys()
        return kept_changes


def _mixed(versions: list[bytes], block_bytes: int, rng: np.random.Generator) -> bytes:
    """Return contents whose blocks are of several versions, or the last ones without a block."""
    if rng.random() < _LOST_BLOCK_SHARE:
        return _without_a_block(versions[0], versions[-1], block_bytes, rng)
    size = len(versions[rng.integers(len(versions))])
    content = b""
    for start in range(0, size, block_bytes):
        version = versions[rng.integers(len(versions))]
        block = version[start : min(size, start + block_bytes)]
        content += block.ljust(min(size, start + block_bytes) - start, b"\0")
    return content


def _without_a_block(
    durable: bytes, last: bytes, block_bytes: int, rng: np.random.Generator
) -> bytes:
    """Return the last contents with one of the blocks that differ as it was before."""
    before = durable.ljust(len(last), b"\0")
    blocks = [slice(start, start + block_bytes) for start in range(0, len(last), block_bytes)]
    lost_blocks = [block for block in blocks if last[block] != before[block]]
    if not lost_blocks:
        return last
    block = lost_blocks[rng.integers(len(lost_blocks))]
    return last[: block.start] + before[block][: len(last[block])] + last[block.stop :]
