"""What each command of the command line does: read, call, show."""

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from divgrpc.errors import InvalidArgumentError, UnavailableError
from divgrpc.search.results import ResultT, joined
from divgrpc.types import EvaluateLabelRow, EvaluateRow, Progress
from divgrpc_client.client import Client
from divgrpc_client.formats import json_output, label_inputs
from divgrpc_client.formats.extras import extra
from divgrpc_client.formats.files import pick_rows, read_column, read_lists, read_vectors
from divgrpc_client.formats.sparse_text import SVMLIGHT, widened
from divgrpc_client.messages.options import (
    BuildOptions,
    GridOptions,
    LabelGridOptions,
    PredictOptions,
    QueryOptions,
)
from divgrpc_protos.arrays import Matrix, row_count, take

if TYPE_CHECKING:
    from divgrpc_client.reports.evaluation_command import EvaluationReport

# A person waits longer than a service, which has the client's shorter default.
TIMEOUT_SECONDS: Final = 30.0
# Rows of a file per call; every call has its own deadline.
_ROWS_AT_A_TIME: Final = 1_000
# Rows per call if near-copies are listed: a message holds the ids of thousands of them per row.
_ROWS_WITH_COPIES: Final = 100
# Number of times a file is queried from its start if the index is replaced meanwhile.
_ROUNDS_MAX: Final = 4

Tell: TypeAlias = Callable[[Progress], None]


def build(arguments: argparse.Namespace) -> None:
    """Index the rows of a file."""
    path, vectors, fields = label_inputs.read_build(arguments)
    columns = {
        name: None if source is None else read_column(source, path)
        for name in ("ids", "categories", "subtopics")
        for source in [getattr(arguments, name)]
    }
    with _client(arguments) as client, _bar(arguments) as progress:
        info = client.build(
            arguments.name,
            vectors,
            ids=columns["ids"],
            categories=columns["categories"],
            subtopics=columns["subtopics"],
            replace=arguments.replace,
            progress=progress,
            timeout=arguments.timeout,
            **fields,
            **_given(arguments, BuildOptions),
        )
    if arguments.json:
        json_output.show(info)
    else:
        from divgrpc_client.formats import tables

        tables.built(info)


def query(arguments: argparse.Namespace) -> None:
    """Ask an index about the rows of a file."""
    path = Path(arguments.file)
    queries = _read(path, arguments)
    rows = pick_rows(arguments.rows, row_count(queries))
    queries = take(queries, rows.start, rows.stop)
    shows_copies = getattr(arguments, "list_collapsed", False)
    if not arguments.json and "list_collapsed" not in arguments:
        # The table counts the near-copies of each result.
        arguments.list_collapsed = True
    with _client(arguments) as client:
        if path.suffix in SVMLIGHT and arguments.dims is None:
            queries = widened(queries, client.get_index(arguments.name).dims)
        result = _ask(arguments, client.query, QueryOptions, queries)
    if arguments.json:
        json_output.show_result(result, rows)
    else:
        from divgrpc_client.formats import tables

        tables.result(result, rows, shows_copies=shows_copies)


def predict(arguments: argparse.Namespace) -> None:
    """Give the documents of a file labels."""
    path = Path(arguments.file)
    documents, _ = label_inputs.read_documents(path, arguments)
    documents, numbers = label_inputs.split(arguments, documents)
    rows = pick_rows(arguments.rows, row_count(documents))
    documents = take(documents, rows.start, rows.stop)
    with _client(arguments) as client:
        if label_inputs.is_text(path):
            info = client.get_index(arguments.name)
            documents = label_inputs.for_index(path, arguments, documents, numbers[rows], info.dims)
        result = _ask(arguments, client.predict_labels, PredictOptions, documents, "documents")
    if arguments.json:
        json_output.show_labels(result, rows)
    else:
        from divgrpc_client.formats import tables

        tables.labels(result, rows)


def evaluate(arguments: argparse.Namespace) -> None:
    """Try a grid of settings on the rows of a file."""
    report = _report(arguments)
    path = Path(arguments.file)
    queries = _read(path, arguments)
    categories = None if arguments.categories is None else read_column(arguments.categories, path)
    relevant = None if arguments.relevant is None else read_lists(Path(arguments.relevant))
    with _client(arguments) as client:
        if path.suffix in SVMLIGHT and arguments.dims is None:
            queries = widened(queries, client.get_index(arguments.name).dims)
        with _bar(arguments, "queries") as progress:
            rows = list(
                client.evaluate(
                    arguments.name,
                    queries,
                    categories,
                    relevant=relevant,
                    folds=arguments.folds,
                    set_default=arguments.set_default,
                    per_query=arguments.per_query,
                    progress=progress,
                    timeout=arguments.timeout,
                    **_given(arguments, GridOptions),
                )
            )
        # First, so that they are not lost where the page cannot be written.
        _show(arguments, rows)
        if report is not None:
            report.write(client, rows, queries, categories=categories, relevant=relevant)


def evaluate_labels(arguments: argparse.Namespace) -> None:
    """Try a grid of predictions on documents whose labels are known."""
    documents, labels, numbers = label_inputs.read_labelled_documents(arguments)
    if labels is None:
        raise InvalidArgumentError("labels", "--labels is required if --features is a matrix")
    chosen = pick_rows(arguments.rows, row_count(documents))
    documents = take(documents, chosen.start, chosen.stop)
    labels = take(labels, chosen.start, chosen.stop)
    with _client(arguments) as client:
        if label_inputs.is_text(path := Path(arguments.features)):
            info = client.get_index(arguments.name)
            documents = label_inputs.for_index(
                path, arguments, documents, numbers[chosen], info.dims
            )
            if arguments.labels is None and info.labels is not None:
                labels = widened(labels, info.labels.label_count)
        with _bar(arguments, "documents") as progress:
            stream = client.evaluate_labels(
                arguments.name,
                documents,
                labels,
                folds=arguments.folds,
                set_default=arguments.set_default,
                per_document=arguments.per_document,
                progress=progress,
                timeout=arguments.timeout,
                **_given(arguments, LabelGridOptions),
            )
            rows = list(stream)
    _show(arguments, rows)


def _show(
    arguments: argparse.Namespace, rows: Sequence[EvaluateRow] | Sequence[EvaluateLabelRow]
) -> None:
    from divgrpc_client.formats import evaluation_tables

    if arguments.json:
        evaluation_tables.show_json(rows)
    elif arguments.csv:
        evaluation_tables.show_csv(rows)
    else:
        evaluation_tables.show(rows)


def _report(arguments: argparse.Namespace) -> "EvaluationReport | None":
    """Read what a report shows, before any work is done."""
    if arguments.report is None:
        for option in ("titles", "thumbnails", "point_categories", "show"):
            if getattr(arguments, option) is not None:
                flag = f"--{option.replace('_', '-')}"
                raise InvalidArgumentError(option, f"{flag} is for --report alone")
        return None
    with extra("report", "a report", "report"):
        from divgrpc_client.reports.evaluation_command import EvaluationReport
    return EvaluationReport(arguments)


def _read(path: Path, arguments: argparse.Namespace) -> Matrix:
    return read_vectors(path, arguments.key, base=arguments.index_base, dims=arguments.dims)


def _ask(
    arguments: argparse.Namespace,
    method: Callable[..., ResultT],
    options: type,
    matrix: Matrix,
    unit: str = "rows",
) -> ResultT:
    """Ask about some rows at a time; the result is of one generation all the same."""
    fields, count = _given(arguments, options), row_count(matrix)
    step = _ROWS_WITH_COPIES if fields.get("list_collapsed") else _ROWS_AT_A_TIME
    shown = _bar(arguments, unit) if count > step else nullcontext()
    with shown as progress:
        for _ in range(_ROUNDS_MAX):
            parts: list[ResultT] = []
            # A file without rows is asked about once, for the server to say what it thinks of it.
            for start in range(0, max(1, count), step):
                if progress is not None:
                    progress(Progress("asking", start, count))
                part = take(matrix, start, min(count, start + step))
                parts.append(method(arguments.name, part, timeout=arguments.timeout, **fields))
                if parts[-1].generation != parts[0].generation:
                    break
            else:
                return joined(parts)
    raise UnavailableError(
        f"index {arguments.name!r} was replaced again and again while it was asked; ask again"
    )


def ls(arguments: argparse.Namespace) -> None:
    """List the indexes."""
    with _client(arguments) as client:
        indexes = client.list_indexes(timeout=arguments.timeout)
    if arguments.json:
        json_output.show(indexes)
    else:
        from divgrpc_client.formats import tables

        tables.indexes(indexes)


def info(arguments: argparse.Namespace) -> None:
    """Show one index."""
    with _client(arguments) as client:
        index = client.get_index(arguments.name, timeout=arguments.timeout)
    if arguments.json:
        json_output.show(index)
    else:
        from divgrpc_client.formats import tables

        tables.index(index)


def rm(arguments: argparse.Namespace) -> None:
    """Delete an index."""
    with _client(arguments) as client:
        generation = client.delete_index(arguments.name, timeout=arguments.timeout)
    if arguments.json:
        json_output.show({"name": arguments.name, "generation": generation})
    else:
        sys.stdout.write(f"deleted {arguments.name}, last served as generation {generation}\n")


def load(arguments: argparse.Namespace) -> int:
    """Put load on a server; returns the exit code."""
    with extra("load", "load", "cli"):
        from divgrpc_client.load import command

    return command.run(arguments)


def _bar(arguments: argparse.Namespace, unit: str = "rows") -> AbstractContextManager[Tell | None]:
    if arguments.json or not sys.stderr.isatty():
        return nullcontext()
    from divgrpc_client.formats import tables

    return tables.bar(unit)


def _client(arguments: argparse.Namespace) -> Client:
    # Tables need rich, and so does the module that shows evaluations in any form.
    if not arguments.json or "csv" in arguments:
        with extra("json", "this command", "cli"):
            import rich  # noqa: F401  # refused here, before the server does anything
    return Client(arguments.target, timeout=TIMEOUT_SECONDS)


def _given(arguments: argparse.Namespace, table: type) -> Any:  # noqa: ANN401  # that TypedDict
    return {name: getattr(arguments, name) for name in table.__annotations__ if name in arguments}
