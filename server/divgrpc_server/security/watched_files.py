"""Files that are read again when they change; the last good version stays in use."""

import os
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from divgrpc.errors import InvalidArgumentError

_T = TypeVar("_T")
# Size, inode, and times of change of the content and of the rights; None if the file is missing.
_Stamp = tuple[int, int, int, int] | None
# Not the stamps of any files.
_UNREAD: Final[tuple[_Stamp, ...]] = ()


class WatchedFiles(Generic[_T]):
    """What a function reads from files: `value` is its result for the last good version."""

    def __init__(
        self, paths: Sequence[str], read: Callable[[], _T], value: _T | None = None
    ) -> None:
        """Read the files; raises `InvalidArgumentError` as `read` does.

        value: what was read a while ago, in which case the first `refresh` reads the files.
        """
        self._paths, self._read = tuple(paths), read
        # Before the files are read: a later change is then seen by the next call of `refresh`.
        self._stamps = self._current_stamps() if value is None else _UNREAD
        self.value = read() if value is None else value
        self._reason = ""  # why the last version is not used

    def refresh(self) -> bool:
        """Read the files if one of them has changed; return whether `value` has changed.

        Raises `InvalidArgumentError` once for each reason why a version is not used.
        """
        stamps = self._current_stamps()
        if stamps == self._stamps:
            return False
        before, self._stamps = self.value, stamps
        try:
            self.value, self._reason = self._read(), ""
        except InvalidArgumentError as error:
            if isinstance(error.__cause__, OSError):
                # A file may be readable soon without a change.
                self._stamps = _UNREAD
            former_reason, self._reason = self._reason, str(error)
            if former_reason != self._reason:
                raise
        return before != self.value

    def _current_stamps(self) -> tuple[_Stamp, ...]:
        return tuple(map(_stamp, self._paths))


def _stamp(path: str) -> _Stamp:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns
