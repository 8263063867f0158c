"""Commands that write to an index: upsert, delete, compact and retrain.

The docstring of a command is its help text.
"""

import argparse
from pathlib import Path
from typing import Any, Final, get_args

from divgrpc.errors import InvalidArgumentError, invalid
from divgrpc.types import Progress, WriteMode, WriteResult
from divgrpc_client.cli import session
from divgrpc_client.cli.options import add_conditions, add_file, add_flags, add_name
from divgrpc_client.cli.where import add_filter, filter_of, typed_ids
from divgrpc_client.formats import json_output
from divgrpc_client.formats.column_files import read_columns
from divgrpc_client.formats.documents import Documents, read_documents, read_label_matrix
from divgrpc_client.formats.files import read_column, read_ids, read_vectors
from divgrpc_client.formats.record_files import has_records, read_records
from divgrpc_client.formats.sparse_text import SVMLIGHT, widened
from divgrpc_client.messages.vectors import PointVectors
from divgrpc_client.messages.writes import check_write_id
from divgrpc_protos.arrays import row_count, take

# Number of rows that one call writes, as a whole or not at all.
_ROWS_AT_A_TIME: Final = 1_000
# Seconds until a write fails. The first write to a server starts a process.
_SECONDS: Final = 30.0


def add_upsert(verb: argparse.ArgumentParser) -> None:
    """Add the arguments of `upsert`."""
    add_file(verb, nargs="?")
    add_flags(
        verb,
        ("--ids", "SOURCE", "Take one id per row from a file, as divgrpc build does."),
        (
            *("--columns", "CSV"),
            "Take attributes, and ids from a column `id`, from a .csv file with one line per row.",
        ),
        ("--features", "FILE", "Read documents with labels before features, instead of FILE."),
        ("--labels", "FILE", "Read labels from a matrix (rows, L); nonzeros are labels."),
        ("--categories", "SOURCE", "Take one category per row, -1 for none; SOURCE as for --ids."),
        ("--subtopics", "SOURCE", "Take one sub-topic per row, -1 for none; SOURCE as for --ids."),
    )
    verb.set_defaults(split=None)
    verb.add_argument(
        "--mode",
        choices=get_args(WriteMode),
        default="upsert",
        help="Fail if a point exists (insert_only) or does not (update_only; default upsert).",
    )
    add_conditions(verb)


def upsert(arguments: argparse.Namespace) -> None:
    """Insert the points of FILE into an index, or replace the points that have their ids.

    FILE is one that divgrpc build reads. Its points need ids. The attributes must be among those
    that the index has. A point that is replaced loses what the command leaves out: attributes,
    payload, labels, category and sub-topic. An index takes labels, categories and sub-topics if it
    was built with some.

    The points of a .jsonl or .parquet file may all lack vectors. Then they keep their vectors, and
    also all else that the command leaves out. They must exist, unless the index was built with
    --vectors-optional. In such an index, a `vector` of null is a point without one.

    Rows are written 1,000 at a time, each thousand as a whole or not at all; if the command fails,
    it can be repeated. With --if-sequence, all rows must fit one message.

    Examples:
      divgrpc upsert shoes new-shoes.jsonl
      divgrpc upsert shoes prices.jsonl --if-sequence 7
      divgrpc upsert shoes prices.jsonl --write-id prices-of-may
      divgrpc upsert shoes vectors.npy --ids ids.txt
      divgrpc upsert news tfidf.npz --ids ids.txt        scipy's sparse rows
      divgrpc upsert news more.svm --ids ids.txt
      divgrpc upsert shoes vectors.npy --columns shoes.csv --mode update_only
      divgrpc upsert images data.npz --key train --ids id --categories y --subtopics leaf
      divgrpc upsert papers X.npy --ids ids.txt --labels Y.npz
    """
    documents, fields = _read(arguments)
    count, rows, result = len(fields["ids"]), 0, WriteResult(0, 0, 0)
    step = _ROWS_AT_A_TIME if arguments.if_sequence is None else max(1, count)
    # The longest name first, so that nothing is written if it is too long.
    check_write_id(_name_of(arguments.write_id, max(0, count - 1) // step * step))
    with session.connect(arguments) as client, session.bar(arguments) as progress:
        info = client.get_index(arguments.name, timeout=arguments.timeout)
        vectors = documents
        if isinstance(documents, Documents):
            if documents.is_text:
                documents = documents.for_index(info, arguments)
            vectors, fields["labels"] = documents.rows, documents.labels
        elif Path(arguments.file).suffix in SVMLIGHT and arguments.dims is None:
            vectors = widened(documents, info.dims)
        if info.labels is not None and arguments.labels is None:
            # Files of single points may lack the last labels.
            fields["labels"] = widened(fields["labels"], info.labels.label_count)
        if info.id_kind == "string":
            fields["ids"] = list(map(str, fields["ids"]))
        types = {a.name: a.type for a in info.attributes if a.name in fields["attributes"]}
        for start in range(0, count, step):
            stop = min(count, start + step)
            result = client.upsert(
                arguments.name,
                fields["ids"][start:stop],
                _cut(vectors, start, stop),
                attributes={n: c[start:stop] for n, c in fields["attributes"].items()},
                attribute_types=types,
                payloads=fields["payloads"] and fields["payloads"][start:stop],
                **_annotations(fields, start, stop),
                mode=arguments.mode,
                if_sequence=arguments.if_sequence,
                write_id=_name_of(arguments.write_id, start),
                timeout=arguments.timeout or _SECONDS,
            )
            rows += result.rows
            if progress is not None:
                progress(Progress("writing", stop, count))
    _show(arguments, "written", WriteResult(result.generation, result.sequence, rows))


def add_delete(verb: argparse.ArgumentParser) -> None:
    """Add the arguments of `delete`."""
    add_name(verb)
    verb.add_argument("ids", metavar="ID", nargs="*", help="The ids of the points.")
    add_filter(verb)
    add_conditions(verb)


def delete(arguments: argparse.Namespace) -> None:
    """Delete points by their ids, by conditions, or those that both select.

    divgrpc rm deletes a whole index.

    Examples:
      divgrpc delete shoes a-17 b-4
      divgrpc delete shoes --where 'price>500'
      divgrpc delete shoes a-17 --if-sequence 7
    """
    condition = filter_of(arguments)
    if not arguments.ids and condition is None:
        raise InvalidArgumentError("ids", "ids are required, or conditions in --where or --filter")
    with session.connect(arguments) as client:
        ids = None
        if arguments.ids:
            info = client.get_index(arguments.name, timeout=arguments.timeout)
            ids = typed_ids(arguments.ids, info.id_kind, "ids")
        result = client.delete(
            arguments.name,
            ids,
            filter=condition,
            if_sequence=arguments.if_sequence,
            write_id=arguments.write_id,
            timeout=arguments.timeout or _SECONDS,
        )
    _show(arguments, "deleted", result)


def add_compact(verb: argparse.ArgumentParser) -> None:
    """Add the arguments of `compact`."""
    add_name(verb)
    help_text = "Also remove deleted and replaced points from the disk."
    verb.add_argument("--vacuum", action="store_true", help=help_text)


def compact(arguments: argparse.Namespace) -> None:
    """Merge the writes to an index into the arrays that searches read.

    Merges happen by themselves. After many writes, this command has one done at once. Answers stay
    the same.

    Deleted and replaced points stay on the disk until --vacuum removes them. It copies all other
    points into a new generation. Queries and writes go on meanwhile. The disk needs room for both
    generations.

    Examples:
      divgrpc compact shoes
      divgrpc compact shoes --vacuum
    """
    with session.connect(arguments) as client, session.bar(arguments, "points") as progress:
        has_merged = client.compact(
            arguments.name,
            vacuum=arguments.vacuum,
            progress=progress,
            timeout=arguments.timeout,
        )
    value = {"name": arguments.name, "merged": has_merged}
    outcome = "merged" if has_merged else "nothing to merge"
    json_output.show_or_write(value, f"{arguments.name}: {outcome}", as_json=arguments.json)


def add_retrain(verb: argparse.ArgumentParser) -> None:
    """Add the arguments of `retrain`."""
    add_name(verb)


def retrain(arguments: argparse.Namespace) -> None:
    """Build an index anew from its points.

    Build fits hash functions, cells and searches to the points that it has. When most points are
    new, others may suit them better. This command makes a new generation, as a build with the same
    parameters would. Queries and writes go on meanwhile. The disk needs room for both generations.
    A command that is interrupted, or whose --timeout has passed, leaves the index as it was.

    Examples:
      divgrpc retrain shoes
    """
    with session.connect(arguments) as client, session.bar(arguments, "points") as progress:
        is_retrained = client.retrain(arguments.name, progress=progress, timeout=arguments.timeout)
    value = {"name": arguments.name, "retrained": is_retrained}
    reason = "it has no points, or none was written or deleted since it was built"
    outcome = "retrained" if is_retrained else f"not retrained: {reason}"
    json_output.show_or_write(value, f"{arguments.name}: {outcome}", as_json=arguments.json)


def _name_of(write_id: str | None, start: int) -> str | None:
    """Return the name of the write of the rows from `start` on, which is the same in each run."""
    return f"{write_id}:{start}" if write_id and start else write_id


def _cut(vectors: Any, start: int, stop: int) -> Any:  # noqa: ANN401  # a matrix, `PointVectors` or None
    """Return the vectors of some points."""
    if vectors is None or isinstance(vectors, PointVectors):
        return vectors and vectors[start:stop]
    return take(vectors, start, stop)


def _annotations(fields: dict[str, Any], start: int, stop: int) -> dict[str, Any]:
    """Return labels, categories and sub-topics of some rows; None for what the files lack."""
    labels = fields["labels"]
    return {
        "labels": None if labels is None else take(labels, start, stop),
        **{name: column[start:stop] for name, column in fields["topics"].items()},
    }


def _read(arguments: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """Return vectors, documents or None, and ids, attributes and so on by name."""
    if (arguments.file is None) == (arguments.features is None):
        raise InvalidArgumentError("file", "set either FILE or --features")
    path = Path(arguments.file or arguments.features)
    vectors, fields = _read_points(arguments, path)
    if arguments.columns is not None:
        ids, attributes = read_columns(Path(arguments.columns))
        fields |= {"ids": ids, "attributes": attributes}
    if arguments.ids is not None:
        fields["ids"] = read_ids(arguments.ids, path)
    if fields["ids"] is None:
        raise invalid(
            "ids", f"must be given, because {path} has none: name a file of ids with --ids"
        )
    topics = {"categories": arguments.categories, "subtopics": arguments.subtopics}
    fields["topics"] |= {
        name: read_column(source, path) for name, source in topics.items() if source is not None
    }
    _check_counts(vectors, fields)
    if not len(fields["ids"]):
        raise InvalidArgumentError("file", f"{path} has no points, so there is nothing to write")
    return vectors, fields


def _read_points(arguments: argparse.Namespace, path: Path) -> tuple[Any, dict[str, Any]]:
    """Return vectors, documents or None, and what else the file has."""
    fields: dict[str, Any] = {"ids": None, "attributes": {}, "payloads": None, "labels": None}
    fields["topics"] = {}
    if arguments.features is not None:
        documents = read_documents(path, arguments)
        return documents, fields | {"labels": documents.labels}
    if arguments.labels is not None:
        fields["labels"] = read_label_matrix(Path(arguments.labels))
    if not has_records(path):
        base, dims = arguments.index_base, arguments.dims
        return read_vectors(path, arguments.key, base=base, dims=dims), fields
    points = read_records(path, needs_vectors=False)
    fields |= {"ids": points.ids, "attributes": points.attributes, "payloads": points.payloads}
    fields["topics"] = dict(points.annotations)
    labels = fields["topics"].pop("labels", None)
    if arguments.labels is None:
        fields["labels"] = labels
    return points.rows, fields


def _check_counts(vectors: Any, fields: dict[str, Any]) -> None:  # noqa: ANN401  # as of `_read`
    """Raise `InvalidArgumentError` unless there is one vector, and so on, for each id."""
    count = len(fields["ids"])
    rows = vectors.rows if isinstance(vectors, Documents) else vectors
    vector_count = count
    if rows is not None:
        vector_count = rows.rows if isinstance(rows, PointVectors) else row_count(rows)
    if vector_count != count:
        rule = "must be as many as the vectors"
        raise invalid("ids", f"{rule}, got {count} for {vector_count} vectors")
    counts = {name: len(column) for name, column in fields["topics"].items()}
    if fields["labels"] is not None:
        counts["labels"] = row_count(fields["labels"])
    for name, size in counts.items():
        if size != count:
            raise invalid(name, f"must have one row per id, {count}, got {size}")


def _show(arguments: argparse.Namespace, verb: str, result: WriteResult) -> None:
    value = {
        "name": arguments.name,
        "generation": result.generation,
        "sequence": result.sequence,
        "rows": result.rows,
    }
    points = "point" if result.rows == 1 else "points"
    text = f"{result.rows} {points} {verb}, write {result.sequence}"
    json_output.show_or_write(value, text, as_json=arguments.json)
