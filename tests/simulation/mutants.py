"""Known defects of the write path. The simulator must find each of them within 1,000 seeds."""

from typing import Final

from simulation.faults import Focus
from simulation.mutation import Mutant
from simulation.world import KINDS

# Points may lack a vector.
_OPTIONAL: Final = next(kind for kind in KINDS if kind.is_optional)

_LIST: Final = (
    Mutant(
        name="log-without-sync",
        module="divgrpc.writes.log",
        old="""
            sync_data(self._descriptor)
        """,
        new="",
        reason="a write returns before it is on the disk",
    ),
    Mutant(
        name="ack-before-sync",
        module="divgrpc.writes.committer",
        old="""
            if is_synced and results:
                self._sync()
        """,
        new="""
            if is_synced and results:
                self._publish()
        """,
        reason="queries see a write, and its caller gets its number, before it is synced",
    ),
    Mutant(
        name="layout-renamed-unsynced",
        module="divgrpc.writes.layout",
        old="""
            for name in (LAYOUTS, PARTS, LOG):
                sync_folder(self.path / name)
            os.rename(draft, self.path / LAYOUT)
        """,
        new="""
            os.rename(draft, self.path / LAYOUT)
        """,
        reason="LAYOUT names folders that are not on the disk",
    ),
    Mutant(
        name="layout-folder-unsynced",
        module="divgrpc.writes.layout",
        old="""
            os.rename(draft, self.path / LAYOUT)
            self.sync_names()
        """,
        new="""
            os.rename(draft, self.path / LAYOUT)
            sync_folder(self.path.parent)
        """,
        reason="the log is dropped before the new LAYOUT is on the disk",
    ),
    Mutant(
        name="log-file-unsynced",
        module="divgrpc.writes.log",
        old="""
            os.rename(draft, path)
            sync_folder(path.parent)
        """,
        new="""
            os.rename(draft, path)
        """,
        reason="the name of a new file of the log may be lost",
    ),
    Mutant(
        name="log-dropped-early",
        module="divgrpc.writes.committer",
        old="""
            target.folder.log.drop(min(kept, source.sequence))
        """,
        new="""
            target.folder.log.drop(target.state.sequence)
        """,
        reason="a merge drops records that were written meanwhile",
    ),
    Mutant(
        name="catch-up-missed",
        module="divgrpc.writes.committer",
        old="""
            target.apply(state, tail.read(target.state.sequence))
        """,
        new="",
        reason="a merge loses the records that were written meanwhile",
    ),
    Mutant(
        name="renewal-follows-too-late",
        module="divgrpc.writes.committer",
        old="""
            follow(tail.read(self._sequence))
            successor.log.sync()
            successor.publish(self._sequence)
        """,
        new="""
            successor.log.sync()
            successor.publish(self._sequence)
        """,
        reason="a new generation lacks the last records",
    ),
    Mutant(
        name="pointer-without-generation",
        module="divgrpc.storage.generations",
        old="""
            sync_folder(self._target)
            write_pointer(self._target, number)
        """,
        new="""
            write_pointer(self._target, number)
        """,
        reason="CURRENT names a generation that is not on the disk",
    ),
    Mutant(
        name="arrays-unsynced",
        module="divgrpc.storage.arrays",
        old="""
            self._file.truncate(HEADER_BYTES + entry.bytes)
            os.fsync(self._file.fileno())
        """,
        new="""
            self._file.truncate(HEADER_BYTES + entry.bytes)
        """,
        reason="a layout or a generation has arrays that are not on the disk",
    ),
    Mutant(
        name="named-write-made-twice",
        module="divgrpc.writes.target",
        old="""
            if request.write_id in state.requests:
                return first_result(request, state)
        """,
        new="",
        reason="a write that is sent again is made again",
    ),
    Mutant(
        name="names-forgotten",
        module="divgrpc.writes.layout",
        old="""
            requests=source.requests,
        """,
        new="",
        reason="a merge forgets the names of writes",
    ),
    Mutant(
        name="lock-of-writers-ignored",
        module="divgrpc.writes.target",
        old="""
            if not lock_exclusively(self._lock_file):
        """,
        new="""
            if not lock_exclusively(self._lock_file) and False:
        """,
        reason="two processes write to one generation",
    ),
    Mutant(
        name="build-lets-writers-go-on",
        module="divgrpc.writes.committer",
        old="""
            if stamp is None or stamp != self._stamp:
        """,
        new="""
            if stamp is None:
        """,
        reason="a writer does not notice that a build has replaced its generation",
    ),
    Mutant(
        name="published-before-append",
        module="divgrpc.writes.target",
        old="""
            # Readers find the vectors of each record of the log.
            self._put_vectors(state, record)
            sequence = log.append(body)
        """,
        new="""
            sequence = log.append(body)
            self._published.publish(sequence, layout=state.layout.info.number)
            self._put_vectors(state, record)
        """,
        reason="readers see a record before its vectors and before its sync",
    ),
    Mutant(
        name="error-of-sync-forgotten",
        module="divgrpc.writes.log",
        old="""
                self._synced = last
            except OSError as error:
                self.error = error
        """,
        new="""
                self._synced = last
            except OSError:
                raise
        """,
        reason="after a failed sync, later writes are acknowledged",
    ),
    Mutant(
        name="vectors-not-recovered",
        module="divgrpc.writes.target",
        old="""
            self._put_vectors(state, record)
            state.apply(sequence, record)
            self.log_bytes += len(body)
        """,
        new="""
            state.apply(sequence, record)
            self.log_bytes += len(body)
        """,
        reason="vectors that a loss of power has taken are not written again",
    ),
    Mutant(
        name="recovered-log-unsynced",
        module="divgrpc.writes.target",
        old="""
            # No query sees a record that a loss of power could remove.
            self._log.sync()
        """,
        new="""
            pass
        """,
        reason="queries see a record of the log that a loss of power may remove",
    ),
    Mutant(
        name="successor-unsynced",
        module="divgrpc.writes.committer",
        old="""
            follow(tail.read(self._sequence))
            successor.log.sync()
            successor.publish(self._sequence)
        """,
        new="""
            follow(tail.read(self._sequence))
            successor.publish(self._sequence)
        """,
        reason="a new generation becomes current before its log is on the disk",
    ),
    Mutant(
        name="followed-sequence-forgotten",
        module="divgrpc.writes.committer",
        old="""
            self._followed_sequence = renewal.source.sequence
        """,
        new="""
            self._followed_sequence = None
        """,
        reason="a merge drops records that a new generation has to follow",
    ),
    Mutant(
        name="issue-1",
        module="divgrpc.writes.committer",
        old="""
            with self._removal_errors():
                if not self._target.was_written:
                    self._target.begin()
        """,
        new="""
            with self._state_lock:
                if not self._target.was_written:
                    self._target.begin()
        """,
        reason="a first write during a build says that the index is damaged",
    ),
    Mutant(
        name="sync-flag-set-late",
        module="divgrpc.writes.log",
        old="""
            self._is_synced, last = True, self.sequence
            try:
                sync_data(self._descriptor)
                self._synced = last
        """,
        new="""
            last = self.sequence
            try:
                sync_data(self._descriptor)
                self._synced = last
                self._is_synced = True
        """,
        reason="a record that is appended during a sync counts as synced",
    ),
    Mutant(
        name="torn-tail-kept",
        module="divgrpc.writes.log",
        old="""
            write_at(self._descriptor, bytes(end.rest), end.offset)
        """,
        new="",
        reason="records that were not kept may follow a later record",
    ),
    Mutant(
        name="issue-2",
        module="divgrpc.writes.committer",
        old="""
            if not self._sequence:
                self._begin()
        """,
        new="""
            if not self._target.was_written:
                self._begin()
        """,
        reason="readers never see writes if a writer was killed while it made the first layout",
    ),
    Mutant(
        name="issue-3",
        module="divgrpc.storage.arrays",
        old="""
            write_at(self._file.fileno(), header, 0)
        """,
        new="""
            os.pwrite(self._file.fileno(), header, 0)
        """,
        reason="a header of an array that the system writes in parts is not whole",
        # System calls that write half of a header, while builds make headers.
        changes={
            "builds": 4,
            "faults": [],
            "focus": Focus("storage.arrays:ArrayFile._write_header", ("short",), 60),
            "has_power": False,
            "snapshots": 0,
        },
    ),
    Mutant(
        name="issue-4",
        module="divgrpc.writes.committer",
        old="""
            with self._removal_errors(), self._state_lock:
                sequence, count = self._target.write(pending.request)
        """,
        new="""
            with self._state_lock:
                sequence, count = self._target.write(pending.request)
        """,
        reason="a write that begins a file of the log as a build ends fails for a missing file",
        # Each write begins a file of the log, and threads are often stopped while builds end.
        changes={
            "builds": 8,
            "clients": 3,
            "faults": [],
            "has_power": False,
            "log_bytes": 1,
            "readers": 0,
            "renewals": [],
            "slow_share": 0,
            "snapshots": 0,
            "stall_share": 0.05,
        },
    ),
    Mutant(
        name="issue-5",
        module="divgrpc.writes.committer",
        old="""
            if not self._sequence:
                self._begin()
        """,
        new="""
            tries = vars(self).setdefault("tries", [])
            if not self._sequence and not (self._target.was_written and self._target in tries):
                tries.append(self._target)
                self._begin()
        """,
        reason="readers never see writes if the time of CURRENT could not be set in the first one",
        changes={
            "builds": 0,
            "faults": [],
            "focus": Focus("storage.generations:_set_time", ("error",)),
            "kills": 0,
            "readers": 2,
            "renewals": [],
        },
    ),
    Mutant(
        name="issue-6",
        module="divgrpc.storage.build_locks",
        old="""
            try:
                path.unlink(missing_ok=True)
            finally:
                # An open file would stay locked.
                os.close(descriptor)
        """,
        new="""
            path.unlink(missing_ok=True)
            os.close(descriptor)
        """,
        reason="a lock of builds is never free if its file cannot be removed",
        # A builder has ended, but must have freed the lock before: its next build needs it.
        changes={
            "builds": 3,
            "faults": [],
            "focus": Focus("storage.build_locks:build_lock:path.unlink", ("error",), 3),
            "has_power": False,
            "readers": 0,
            "renewals": [],
            "snapshots": 0,
            "writes": 8,
        },
    ),
    Mutant(
        name="issue-7",
        module="divgrpc.doctor.writes",
        old="""
            if self._has_whole_log and not is_optional:
        """,
        new="""
            if self._has_whole_log:
        """,
        reason="the doctor loses points without a vector, and says that it loses nothing",
        changes={
            "builds": 0,
            "faults": [],
            "has_power": False,
            "is_damaged_last": True,
            "kind": _OPTIONAL,
            "log_bytes": 8_192,
            "renewals": [],
            "writes": 6,
        },
    ),
    Mutant(
        name="issue-8",
        module="divgrpc.storage.published",
        old="""
            (published is not None and published.layout > 0)
        """,
        new="""
            (published is not None and published.sequence > 0)
        """,
        reason="nobody misses a LAYOUT of Build, so points without a vector are lost",
        changes={
            "builds": 0,
            "faults": [],
            "has_power": False,
            "is_damaged_last": True,
            "kind": _OPTIONAL,
            "renewals": [],
            "writes": 0,
        },
    ),
    Mutant(
        name="issue-9",
        module="divgrpc.writes.target",
        old="""
            self.folder.sync_names()
            self._recover(is_synced=is_synced)
        """,
        new="""
            self._recover(is_synced=is_synced)
        """,
        reason="writes follow a LAYOUT that a writer has renamed, but not synced before it ended",
        changes={
            "builds": 0,
            "durability": "sync",
            "faults": [],
            "focus": Focus("writes.layout:WritesFolder._publish:os.rename", ("after",), 3),
            "has_power": True,
            "kills": 0,
            "merged_rows": 6,
            "readers": 0,
            "renewals": [],
            "snapshots": 0,
            "writes": 12,
        },
    ),
    Mutant(
        name="issue-10",
        module="divgrpc.writes.log",
        old="""
            sync_folder(path.parent)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        """,
        new="""
            self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        """,
        reason="writes are in a file whose name a writer has not synced before it ended",
        changes={
            "builds": 0,
            "durability": "sync",
            "faults": [],
            "focus": Focus("writes.log:LogWriter._begin:os.rename", ("after",), 4),
            "has_power": True,
            "kills": 0,
            "log_bytes": 512,
            "merged_rows": 10**9,
            "readers": 0,
            "renewals": [],
            "snapshots": 0,
            "writes": 12,
        },
    ),
    Mutant(
        name="issue-11",
        module="divgrpc.writes.committer",
        old="""
            sync_pointer(self._index.path)
        """,
        new="",
        reason="writes follow a build that ended before it synced CURRENT",
        changes={
            "builds": 1,
            "durability": "sync",
            "faults": [],
            "focus": Focus("storage.generations:write_pointer:os.rename", ("after",)),
            "has_power": True,
            "renewals": [],
            "writes": 24,
        },
    ),
    Mutant(
        name="issue-12",
        module="divgrpc.storage.generations",
        old="""
            if any(entry.parent == folder and entry.is_dir() for entry in stale):
        """,
        new="""
            if any(entry.parent == folder and entry.is_dir() for entry in stale) and False:
        """,
        reason="a generation is removed that a loss of power makes the current one again",
        # A build ends right after it has renamed CURRENT, and the next one or a renewal sweeps.
        changes={
            "builds": 3,
            "faults": [],
            "focus": Focus("storage.generations:write_pointer:os.rename", ("after",), 2),
            "has_power": True,
            "kills": 0,
            "readers": 0,
            "renewals": ["retrain"] * 6,
            "snapshots": 0,
            "writes": 12,
        },
    ),
    Mutant(
        name="issue-13",
        module="divgrpc.writes.layout",
        old="""
            # failed, the next layout would seem to have lost it.
            self.sync_names()
        """,
        new="""
            # failed, the next layout would seem to have lost it.
            if old_info is None:
                self.sync_names()
        """,
        reason="a second layout follows a first one that was not synced, and seems to have lost it",
        changes={
            "builds": 0,
            "durability": "sync",
            "faults": [],
            "focus": Focus("writes.layout:WritesFolder.sync_names", ("error",), 3),
            "has_power": True,
            "kills": 0,
            "readers": 0,
            "renewals": [],
            "snapshots": 0,
            "writes": 12,
        },
    ),
    Mutant(
        name="issue-14",
        module="divgrpc.writes.log",
        old="""
            if not self._is_synced:
                # Set first, because a record may be appended while the file is synced.
        """,
        new="""
            self._check()
            if not self._is_synced:
                # Set first, because a record may be appended while the file is synced.
        """,
        reason="records before a failed append are never synced",
    ),
    Mutant(
        name="issue-15",
        module="divgrpc.writes.log",
        old="""
            self._size = 0
            os.rename(draft, path)
        """,
        new="""
            os.rename(draft, path)
        """,
        reason="a file of the log that failed to begin hides records of the file before",
    ),
)
MUTANTS: Final = {mutant.name: mutant for mutant in _LIST}
