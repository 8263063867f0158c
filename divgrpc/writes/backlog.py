"""What was written to a collection since its last merge: when a merge is due, and when it is late.

The writer and each reader keep in memory what was not merged, about as many bytes as its records
have in the log. So these bytes are limited, and so is the number of rows. A merge begins long
before the limits. A write that would exceed them has to wait for the merge.
"""

from typing import Final

from divgrpc.errors import LimitExceededError, MergesBehindError
from divgrpc.parameters.limits import LIMITS
from divgrpc.writes.layout import rows_at_once, values_at_once
from divgrpc.writes.point_files import item_count
from divgrpc.writes.records import Record
from divgrpc.writes.state import State

# A merge begins when so many rows were written or deleted since the last one: a number, or a share
# of the rows if that is more.
_MERGED_ROWS_MIN: Final = 4_096
_WRITTEN_SHARE: Final = 0.02
_DELETED_SHARE: Final = 0.05
# It also begins when the log has so many records since then, or this share of the bytes that it may
# have. Each start reads them, and some records have no rows.
_MERGED_RECORDS: Final = 65_536
_MERGED_BYTES_SHARE: Final = 0.5
# And it begins when less than this share of the room of the layout is left.
_ROOM_SHARE: Final = 0.25


def is_merge_due(state: State, log_bytes: int) -> bool:
    """Return whether a merge should begin.

    log_bytes: bytes of the records since the last merge.
    """
    info = state.layout.info
    rows_written = state.rows - info.rows
    rows_deleted = (state.rows - state.live) - (info.rows - info.live)
    return (
        rows_written >= max(_MERGED_ROWS_MIN, _WRITTEN_SHARE * info.rows)
        or rows_deleted >= max(_MERGED_ROWS_MIN, _DELETED_SHARE * info.rows)
        or state.room_share < _ROOM_SHARE
        or state.sequence - info.sequence >= _MERGED_RECORDS
        or log_bytes >= _MERGED_BYTES_SHARE * LIMITS["unmerged_bytes_max"]
    )


def check_rows(count: int, state: State) -> None:
    """Check that there is room for `count` rows.

    Raises `MergesBehindError` if there is room only after a merge, and `LimitExceededError` if
    there is none then.
    """
    if count > LIMITS["write_rows_max"]:
        return
    rows_max = rows_at_once(state.generation.manifest)
    if count > rows_max:
        # A layout may have a little more room. The next generation may not, and takes over the
        # records of this one.
        raise LimitExceededError(
            f"ids has {count} rows; one write of vectors of this length may have at most {rows_max}"
        )
    if count <= state.room:
        return
    raise MergesBehindError(f"{state.rows - state.layout.info.rows} rows")


def check_items(record: Record, state: State) -> None:
    """Check that there is room for the values of sparse rows; raises like `check_rows`."""
    manifest = state.generation.manifest
    if record.rows is None or manifest.points == "dense":
        return
    count, most = item_count(record.rows.vectors), values_at_once(manifest)
    if count > most:
        raise LimitExceededError(
            f"vectors has {count} values; the sparse rows of one write may have at most {most}"
        )
    if not state.has_items(record.rows):
        raise MergesBehindError(f"{state.items - state.layout.info.items[0]} values")


def check_bytes(size: int, log_bytes: int) -> None:
    """Check that there is room for a record of `size` bytes; raises like `check_rows`."""
    most = LIMITS["unmerged_bytes_max"]
    if size > most:
        raise LimitExceededError(
            f"the points take {size} bytes in the log; one write may take at most {most}"
        )
    if not has_bytes(size, log_bytes):
        raise MergesBehindError(f"{log_bytes} bytes")


def has_bytes(size: int, log_bytes: int) -> bool:
    """Return whether there is room for a record of `size` bytes before the next merge."""
    return log_bytes + size <= LIMITS["unmerged_bytes_max"]
