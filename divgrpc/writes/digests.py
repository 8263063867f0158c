"""Digests of write requests, which tell a repeated request from another one of the same name."""

from collections.abc import Iterator
from hashlib import blake2b

from divgrpc.columns.ids import as_ids, as_integers, encode_texts, is_texts
from divgrpc.columns.writer import check_payloads
from divgrpc.errors import ConditionFailedError
from divgrpc.vectors import SparseRows, as_rows
from divgrpc.writes.annotation_arguments import bytes_of
from divgrpc.writes.point_files import items_of
from divgrpc.writes.requests import Delete, Upsert
from divgrpc.writes.state import State


def digest_of(request: Upsert | Delete) -> str:
    """Return 16 hexadecimal digits for what a request writes, whatever its name and `if_sequence`.

    Raises `InvalidArgumentError` for a request that cannot be read.
    """
    summary = blake2b(digest_size=8)
    for part in _parts(request):
        summary.update(len(part).to_bytes(8, "little"))
        summary.update(part)
    return summary.hexdigest()


def first_result(request: Upsert | Delete, state: State) -> tuple[int, int]:
    """Return sequence number and rows of the write that has the name of a request.

    Raises `ConditionFailedError` if that was another write.
    """
    sequence, count, digest = state.requests[request.write_id]
    if digest and digest != digest_of(request):
        other = f"write {sequence} has the name {request.write_id!r} and other contents"
        raise ConditionFailedError("write_id", f"{other}; give each write a name of its own")
    return sequence, count


def _parts(request: Upsert | Delete) -> Iterator[bytes]:
    if isinstance(request, Delete):
        yield repr(request.condition).encode(errors="surrogatepass")
        if request.ids is not None:
            yield from _ids(request.ids)
        return
    yield request.mode.encode()
    yield from _ids(request.ids)
    if request.vectors is not None:
        vectors = as_rows("vectors", request.vectors, None)
        if isinstance(vectors, SparseRows):
            yield f"sparse {vectors.dims}".encode()
            yield vectors.indptr.tobytes()
        yield from (items.tobytes() for items in items_of(vectors).values())
    if request.has_vector is not None:
        yield b"has_vector" + request.has_vector.tobytes()
    columns = (request.columns or {}).items()
    for attribute, column in sorted(columns, key=lambda item: item[0].name):
        yield f"{attribute.name} {len(column.words)}".encode()
        yield from (word.encode() for word in column.words)
        yield column.values.tobytes()
        yield column.ends.tobytes()
    if request.payloads is not None:
        yield b"payloads"
        yield from check_payloads(request.payloads, len(as_ids(request.ids)))
    yield from bytes_of(request.annotations)


def _ids(ids: object) -> Iterator[bytes]:
    """Yield the number of ids, and the ids."""
    several = as_ids(ids)
    yield str(len(several)).encode()
    if is_texts(several):
        yield from encode_texts(several)
    else:
        yield as_integers(several, "ids").tobytes()
