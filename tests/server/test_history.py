"""Every answer under load shows exactly the points that its version names.

Callers write, read, merge and vacuum at the same time. Afterwards the acknowledged writes are put
in the order of their numbers, which gives the points at each number. Each answer is computed again
from these points by a reference implementation, and must have the same bytes.
"""

import itertools
import os
import threading
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, Final

import pytest

from divgrpc.errors import ConditionFailedError, InvalidArgumentError
from divgrpc.types import HashFamily
from support.data.served_index import place
from support.data.write_history import History
from support.data.written_points import TYPES, columns_of
from support.loads.history import OLD, READS, Caller, check_history, random_write, send
from support.processes.running_server import RunningServer

# Loads with different seeds. `make crash` runs one for each hundred rounds.
LOADS: Final = -(-int(os.environ.get("DIVGRPC_CRASH_ROUNDS", "1")) // 100)
WRITERS, READERS, WRITES = 4, 3, 80
# Blocks of so many writes of each writer follow until the reads are enough.
BLOCKS_MAX, READS_MIN, SEQUENCES_MIN, GENERATIONS_MIN = 5, 10, 20, 2


def write_randomly(caller: Caller, numbers: Iterable[int]) -> None:
    for number in numbers:
        write, floor = random_write(caller), caller.history.latest
        write_id = f"{caller.seed}-{number}"
        try:
            result = send(caller, write, write_id)
        except (ConditionFailedError, InvalidArgumentError) as error:
            caller.history.refuse(write, floor, WRITERS, error)
        else:
            caller.history.add(write, floor, result)
            if caller.rng.random() < 0.2:
                # A vacuum may have made another generation since.
                again = send(caller, write, write_id)
                assert (again.sequence, again.rows) == (result.sequence, result.rows)


def merge_until_end(caller: Caller, end: threading.Event) -> None:
    for number in itertools.count():
        caller.client.compact(caller.name, vacuum=number % 5 == 3)
        if end.wait(0.15):
            return


def read_until_end(caller: Caller, end: threading.Event) -> None:
    for number in itertools.count():
        READS[number % len(READS)](caller)
        if end.is_set():
            return


def lacking_reads(callers: list[Caller]) -> list[str]:
    """Return what the reads lack: of each kind, and of versions."""
    reads = [read for caller in callers for read in list(caller.reads)]
    counts = Counter(read.kind for read in reads)
    return [
        name
        for name, number, least in (
            ("reads of each kind", min(counts.values(), default=0), READS_MIN),
            ("sequences", len({read.version.sequence for read in reads}), SEQUENCES_MIN),
            ("generations", len({read.version.generation for read in reads}), GENERATIONS_MIN),
        )
        if number < least
    ]


@pytest.mark.parametrize("family", ["cells", "lsh_div"])
@pytest.mark.parametrize("seed", range(LOADS))
def test_answers_under_load_show_what_was_written(
    server: RunningServer, seed: int, family: HashFamily
) -> None:
    name, history, end = f"history-{family}-{seed}", History(OLD), threading.Event()
    columns = columns_of([*OLD.values()])
    options: Any = {"metric": "euclidean", "hash_family": family, "attribute_types": TYPES}
    place(server, name, columns.pop("vectors"), ids=list(OLD), **columns, **options)
    callers = [
        Caller(server.target, history, name, 100 * seed + number)
        for number in range(WRITERS + READERS)
    ]
    # The first write starts the process that writes.
    write_randomly(callers[-1], range(1))
    with ThreadPoolExecutor(len(callers) + 1) as threads:
        merging = threads.submit(merge_until_end, callers[0], end)
        reading = [threads.submit(read_until_end, caller, end) for caller in callers[WRITERS:]]
        writing = []
        # On a slow machine the reads take longer, and on a fast one the writes end before a vacuum.
        for block in range(BLOCKS_MAX):
            numbers = range(block * WRITES, (block + 1) * WRITES)
            writing += [
                threads.submit(write_randomly, caller, numbers) for caller in callers[:WRITERS]
            ]
            wait(writing)
            if not lacking_reads(callers):
                break
        end.set()
    for action in (*writing, *reading, merging):
        action.result()
    for caller in callers:
        caller.close()
    reads = [read for caller in callers for read in caller.reads]
    check_history(history, reads)
    assert not lacking_reads(callers)
