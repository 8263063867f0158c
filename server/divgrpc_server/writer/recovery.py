"""The process that repairs indexes after a loss of power; the supervisor passes their names.

A write is on the disk when the log is. The file of vectors and the number of the last write are
not synced with it, and without power they may be older. Opening a collection takes both from the
log.
"""

import os
import sys
from pathlib import Path

from divgrpc.collection import Collection
from divgrpc.errors import DivgrpcError


def main(root: Path, names: list[str]) -> int:
    """Open each collection and close it; return the number of those that cannot be opened."""
    failures = 0
    for name in names:
        try:
            Collection.open(root / name).close()
        except (DivgrpcError, OSError) as error:
            sys.stderr.write(f"{name}: {error}\n")
            failures += 1
    return failures


if __name__ == "__main__":
    STATUS = main(Path(sys.argv[1]), sys.argv[2:])
    sys.stderr.flush()
    # Skip a normal exit, because unloading the compiler is slow.
    os._exit(min(STATUS, 1))
