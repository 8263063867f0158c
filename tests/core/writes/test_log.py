"""The log gives back what was appended to it, in part after a crash, and reports damage."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from divgrpc.errors import IndexDamagedError, StorageFullError
from divgrpc.writes import log as log_module
from divgrpc.writes.log import Log, LogWriter, Tail, frame

# Lengths with and without padding, and an empty body.
BODIES = [b"first", b"", b"eight by", bytes(range(1, 31)), b"\0" * 9, b"the last of these"]
Records = list[tuple[int, bytes]]


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Log:
    """Return an empty log, whose files hold all of `BODIES`."""
    monkeypatch.setattr(log_module, "FILE_BYTES", 1_024)
    return Log(tmp_path)


def numbered(bodies: list[bytes], first: int = 1) -> Records:
    return list(enumerate(bodies, first))


def written(log: Log, bodies: list[bytes]) -> None:
    """Append records to an empty log, and close it."""
    writer = LogWriter(log, 0)
    for body in bodies:
        writer.append(body)
    writer.sync()
    writer.close()


def reopened(log: Log) -> LogWriter:
    """Continue a log after its last record."""
    records = list(log.read(0))
    return LogWriter(log, records[-1][0] if records else 0)


def put(log: Log, data: bytes, first: int = 1) -> Path:
    path = log.folder / f"{first:020d}.wal"
    path.write_bytes(data)
    return path


def framed(bodies: list[bytes], first: int = 1) -> bytes:
    """Return records, each of which was synced before the next one was appended."""
    return b"".join(frame(n, n - 1, body) for n, body in numbered(bodies, first))


@pytest.fixture
def small_files(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001  # set before
    """Let a file of the log hold one or two records of `BODIES`."""
    monkeypatch.setattr(log_module, "FILE_BYTES", 56)


def test_records_are_read_again(log: Log) -> None:
    written(log, BODIES)
    records = numbered(BODIES)
    for after in range(len(BODIES) + 1):
        assert list(log.read(after)) == records[after:]
    assert log.bytes == log_module.FILE_BYTES


def test_an_empty_folder_has_no_records(log: Log) -> None:
    assert list(log.read(0)) == []
    assert list(log.read(7)) == []
    assert log.bytes == 0


def check_goes_on(log: Log, rest: int) -> None:
    """Check that a log of `rest` records takes another one, and gives all of them back."""
    records = numbered(BODIES)[:rest]
    assert list(log.read(0)) == records
    for number in range(2):
        writer = reopened(log)
        assert writer.append(b"added") == rest + 1 + number
        writer.close()
        records.append((rest + 1 + number, b"added"))
        assert list(log.read(0)) == records


@pytest.mark.parametrize("zeros", [0, 256])
def test_a_log_cut_anywhere_keeps_the_records_before_the_cut(log: Log, zeros: int) -> None:
    """What follows the cut is missing, or is zeros because a file is reserved in full."""
    data, ends = framed(BODIES), []
    for count in range(len(BODIES)):
        # The zeros behind a record are not part of it.
        whole = framed(BODIES[: count + 1])
        ends.append(len(whole) - (-len(BODIES[count]) % 8))
    for cut in range(len(data) + 1):
        path = put(log, data[:cut] + bytes(zeros))
        rest = [body for _, body in log.read(0)]
        whole_records = sum(end <= cut for end in ends)
        # The last bytes of a body may themselves be zeros.
        assert whole_records <= len(rest)
        assert whole_records == len(rest) or (zeros and not any(data[cut : ends[len(rest) - 1]]))
        assert rest == BODIES[: len(rest)]
        check_goes_on(log, len(rest))
        for _, file in log.files():
            file.unlink()
        assert not path.exists()


def test_a_flipped_bit_never_gives_another_record(log: Log) -> None:
    data = framed(BODIES) + bytes(64)
    damaged = prefixes = 0
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit >> 3] ^= 1 << (bit & 7)
        put(log, bytes(changed))
        try:
            rest = list(log.read(0))
        except IndexDamagedError:
            damaged += 1
        else:
            prefixes += 1
            assert rest == numbered(BODIES)[: len(rest)]
            assert len(rest) >= len(BODIES) - 1
    # A change of the last record cannot be told from a crash.
    heads_and_bodies = sum(24 + len(body) for body in BODIES[:-1])
    assert damaged == 8 * heads_and_bodies
    assert prefixes == 8 * len(data) - damaged


def test_a_record_that_was_lost_in_the_middle_is_damage(log: Log) -> None:
    first, last = framed(BODIES[:2]), framed(BODIES[3:], 4)
    put(log, first + last + bytes(64))
    with pytest.raises(IndexDamagedError, match="damaged at record 3"):
        list(log.read(0))
    put(log, first + bytes(32) + last + bytes(64))
    with pytest.raises(IndexDamagedError, match="damaged at record 3"):
        list(log.read(0))


def test_a_record_that_was_not_synced_may_be_lost_before_others(log: Log) -> None:
    """A loss of power keeps any pages of the records since the last sync."""
    unsynced = [frame(n, 2, body) for n, body in numbered(BODIES)[2:]]
    for lost in range(len(unsynced)):
        blocks = [bytes(len(data)) if n == lost else data for n, data in enumerate(unsynced)]
        put(log, framed(BODIES[:2]) + b"".join(blocks) + bytes(256))
        check_goes_on(log, 2 + lost)


def test_a_record_says_which_one_was_synced(log: Log) -> None:
    writer = LogWriter(log, 0)
    for body in BODIES[:2]:
        writer.append(body)
    writer.sync()
    writer.append(BODIES[2])
    writer.append(BODIES[3])
    writer.close()
    ((_, path),) = log.files()
    assert [entry.synced for entry in log_module.entries(path.read_bytes(), 1)] == [0, 0, 2, 2]


def test_records_that_are_found_are_synced(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that appended them may have been killed before it synced them."""
    written(log, BODIES)
    synced: list[int] = []
    monkeypatch.setattr(log_module, "sync_data", synced.append)
    writer = reopened(log)
    writer.sync()
    writer.close()
    assert len(synced) == 1


def test_an_old_record_behind_the_last_one_is_no_record(log: Log) -> None:
    put(log, framed(BODIES[:3]) + framed([b"stale"], 2) + bytes(64))
    check_goes_on(log, 3)


@pytest.mark.usefixtures("small_files")
def test_records_go_into_several_files(log: Log) -> None:
    written(log, BODIES)
    firsts = [first for first, _ in log.files()]
    assert firsts == [1, 3, 4, 5, 6]
    for after in range(len(BODIES) + 1):
        assert list(log.read(after)) == numbered(BODIES)[after:]
    check_goes_on(log, len(BODIES))


@pytest.mark.usefixtures("small_files")
def test_dropped_files_hold_only_older_records(log: Log) -> None:
    for sequence in range(len(BODIES) + 1):
        written(log, BODIES)
        log.drop(sequence)
        rest = [first for first, _ in log.files()]
        assert rest == {
            0: [1, 3, 4, 5, 6],
            1: [1, 3, 4, 5, 6],
            2: [3, 4, 5, 6],
            3: [4, 5, 6],
        }.get(sequence, [5, 6] if sequence == 4 else [6])
        assert list(log.read(sequence)) == numbered(BODIES)[sequence:]
        for _, path in log.files():
            path.unlink()


@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize("missing", [0, 1, 2, 3])
def test_a_missing_file_is_damage(log: Log, missing: int) -> None:
    written(log, BODIES)
    files = log.files()
    files[missing][1].unlink()
    with pytest.raises(IndexDamagedError, match=f"lacks record {files[missing][0]}"):
        list(log.read(0))


@pytest.mark.usefixtures("small_files")
def test_a_record_that_is_lost_at_the_end_of_a_file_is_damage(log: Log) -> None:
    written(log, BODIES)
    _, path = log.files()[1]
    path.write_bytes(bytes(56))
    with pytest.raises(IndexDamagedError, match="lacks record 3"):
        list(log.read(0))


def test_a_log_goes_on_behind_records_that_it_lost(log: Log) -> None:
    """A merge has the records that the log has lost."""
    written(log, BODIES[:2])
    writer = LogWriter(log, 5)
    assert writer.append(b"sixth") == 6
    writer.close()
    assert [first for first, _ in log.files()] == [1, 6]
    assert list(log.read(5)) == [(6, b"sixth")]
    log.drop(5)
    assert list(log.read(5)) == [(6, b"sixth")]


@pytest.mark.usefixtures("small_files")
def test_a_tail_reads_what_another_process_appends(log: Log) -> None:
    tail, writer = Tail(log, 0), LogWriter(log, 0)
    for sequence, body in numbered(BODIES):
        writer.append(body)
        assert list(tail.read(sequence)) == [(sequence, body)]
        assert list(tail.read(sequence)) == []
    later = Tail(log, 2)
    assert list(later.read(5)) == numbered(BODIES)[2:5]
    assert list(later.read(6)) == numbered(BODIES)[5:]
    with pytest.raises(IndexDamagedError, match=r"lacks record 7, .* `divgrpc doctor`"):
        list(later.read(7))
    for reader in (tail, later, writer):
        reader.close()


@pytest.mark.usefixtures("small_files")
def test_a_tail_reports_records_that_were_dropped(log: Log) -> None:
    written(log, BODIES)
    log.drop(4)
    tail = Tail(log, 1)
    with pytest.raises(IndexDamagedError, match="lacks record 2"):
        list(tail.read(6))


@pytest.mark.usefixtures("small_files")
def test_a_full_disk_is_met_when_a_file_begins(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = LogWriter(log, 0)
    writer.append(BODIES[0])
    writer.append(BODIES[1])
    with monkeypatch.context() as patch:
        patch.setattr(log_module, "reserve", raising(errno.ENOSPC))
        for _ in range(2):
            with pytest.raises(StorageFullError, match="no room"):
                writer.append(BODIES[2])
    assert list(log.folder.glob("*.new")) == []
    assert list(log.read(0)) == numbered(BODIES[:2])
    assert writer.append(BODIES[2]) == 3
    writer.close()
    assert list(log.read(0)) == numbered(BODIES[:3])


def test_no_record_is_hidden_by_a_file_that_failed_to_begin(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record that has room in the file before goes into the file that already has its number."""
    large, small = bytes(900), b"small"
    written(log, [large])
    writer, tail = reopened(log), Tail(log, 0)
    with monkeypatch.context() as patch:
        patch.setattr(log_module, "sync_folder", raising(errno.EIO))
        with pytest.raises(OSError, match="Input/output error"):
            writer.append(large)
    assert [first for first, _ in log.files()] == [1, 2]
    assert writer.append(small) == 2
    assert list(tail.read(2)) == list(log.read(0)) == numbered([large, small])
    log.drop(1)
    assert list(log.read(1)) == numbered([small], first=2)
    writer.close()


def raising(number: int) -> Callable[..., None]:
    def fail(*_arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("call", ["sync_data", "pwrite"])
def test_an_error_of_the_disk_is_final(
    log: Log, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    writer = LogWriter(log, 0)
    writer.append(BODIES[0])
    owner = log_module if call == "sync_data" else os
    with monkeypatch.context() as patch:
        patch.setattr(owner, call, raising(errno.EIO))
        with pytest.raises(StorageFullError, match=os.strerror(errno.EIO)):
            writer.append(BODIES[1]) if call == "pwrite" else writer.sync()
    for _ in range(2):
        with pytest.raises(StorageFullError, match="read-only until it is opened again"):
            writer.append(BODIES[1])
        with pytest.raises(StorageFullError, match="read-only until it is opened again"):
            writer.sync()
    writer.close()
    check_goes_on(log, 1)


def test_records_before_a_failed_append_are_synced(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their writes may have returned, with a promise to be on the disk soon."""
    writer, synced_files = LogWriter(log, 0), list[int]()
    writer.append(BODIES[0])
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", raising(errno.ENOSPC))
        with pytest.raises(StorageFullError):
            writer.append(BODIES[1])
    monkeypatch.setattr(log_module, "sync_data", synced_files.append)
    for _ in range(2):
        with pytest.raises(StorageFullError, match="read-only until it is opened again"):
            writer.sync()
    assert len(synced_files) == 1
    writer.close()


def test_a_record_that_is_appended_during_a_sync_is_synced_later(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = LogWriter(log, 0)
    calls: list[int] = []

    def append_once(_descriptor: int) -> None:
        calls.append(len(calls))
        if len(calls) == 1:
            writer.append(BODIES[1])

    writer.append(BODIES[0])
    monkeypatch.setattr(log_module, "sync_data", append_once)
    for expected in (1, 2, 2):
        writer.sync()
        assert len(calls) == expected
    writer.close()


def test_drafts_of_files_are_removed(log: Log) -> None:
    (log.folder / "00000000000000000009.new").write_bytes(bytes(64))
    LogWriter(log, 0).close()
    assert list(log.folder.iterdir()) == []


def test_files_may_be_removed_while_their_bytes_are_counted(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        (log.folder / f"{number:020d}.wal").write_bytes(bytes(10))
    assert log.bytes == 20
    scan = os.scandir

    def early(folder: Path) -> list[os.DirEntry[str]]:
        entries = list(scan(folder))
        (log.folder / f"{1:020d}.wal").unlink(missing_ok=True)
        return entries

    monkeypatch.setattr(os, "scandir", early)
    assert log.bytes == 10
