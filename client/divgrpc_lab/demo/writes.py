"""The third part of the demonstration: points are deleted and added while queries run.

One thread sends "more like this" queries without a pause. Meanwhile the copies of one image after
the other are deleted and then added again. A query follows each write and must show its effect.
"""

import itertools
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np
from rich.console import Console

from divgrpc.types import IntArray
from divgrpc_client.client import Client
from divgrpc_lab.demo.copies import COPIES, Copies
from divgrpc_lab.demo.queries import K

INDEX: Final = "written"
_TEXT: Final = """
3. Writes during searches. While one thread sends queries, another deletes the copies of
   {images} images and adds them again, one image after the other. A query follows each write.

{writes} writes of {copies} points: {write_ms:.2f} ms (median) until they are stored and searched.
{answers:,} queries in that time: {query_ms:.2f} ms (median).
Deleted points that a later query returned, and added points that it did not return: {errors}.
Of the {images} queries, answered as before the writes: {same}."""


def show(out: Console, client: Client, target: str, copies: Copies) -> int:
    """Delete and add points during searches, print figures, and return the number of errors.

    The index has all copies, without labels. The id of a copy is its row.
    """
    client.build(INDEX, copies.vectors)
    rows, errors = copies.rows, 0
    before = _nearest(client, copies, rows)
    write_ms: list[float] = []
    with _queries(target, copies) as query_ms:
        for row in rows.tolist():
            ids = np.arange(row, row + COPIES)
            write_ms.append(_milliseconds(client.delete, INDEX, ids))
            errors += int(np.isin(_nearest(client, copies, ids[:1]), ids).any())
            write_ms.append(_milliseconds(client.upsert, INDEX, ids, copies.vectors[ids]))
            errors += int(_nearest(client, copies, ids[:1])[0, 0] not in ids)
    same = (_nearest(client, copies, rows) == before).all(axis=1).sum()
    text = _TEXT.format(
        images=len(rows),
        writes=len(write_ms),
        copies=COPIES,
        write_ms=statistics.median(write_ms),
        answers=len(query_ms),
        query_ms=statistics.median(query_ms),
        errors=errors,
        same=same,
    )
    out.print(text, soft_wrap=True)
    return errors


def _nearest(client: Client, copies: Copies, rows: IntArray) -> IntArray:
    """Return the ids (len(rows), K) of the results of a default query for each row."""
    return np.asarray(client.query(INDEX, copies.vectors[rows], k=K).ids, dtype=np.int64)


def _milliseconds(call: Callable[..., object], *arguments: object) -> float:
    begin = time.perf_counter()
    call(*arguments)
    return (time.perf_counter() - begin) * 1e3


@contextmanager
def _queries(target: str, copies: Copies) -> Iterator[list[float]]:
    """Send queries in a thread, and yield their times in milliseconds, a list that grows."""
    times: list[float] = []
    is_over = threading.Event()

    def send() -> None:
        with Client(target, timeout=10.0) as client:
            order = np.random.default_rng(2).permutation(len(copies.images))
            for row in itertools.cycle(order.tolist()):
                if is_over.is_set():
                    return
                times.append(_milliseconds(client.query, INDEX, copies.vectors[row]))

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield times
    finally:
        is_over.set()
        thread.join()
