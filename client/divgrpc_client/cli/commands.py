"""Commands of the command line: each reads its input, calls the server and shows the result.

The docstring of a command is its help text.
"""

import argparse
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from divgrpc.errors import InvalidArgumentError, UnavailableError
from divgrpc.search.results import ResultT, joined
from divgrpc.types import Progress
from divgrpc_client.cli import session, where
from divgrpc_client.cli.options import options_in, with_extra
from divgrpc_client.cli.quotas import quotas_of
from divgrpc_client.client import Client
from divgrpc_client.formats import json_output
from divgrpc_client.formats.column_files import read_columns, with_types
from divgrpc_client.formats.documents import Documents, read_build, read_documents
from divgrpc_client.formats.files import pick_rows, read_column, read_ids, read_lists, read_vectors
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
    from divgrpc_client.reports.showing import EvaluationReport

# Number of rows of a file that one call sends. Every call has its own deadline.
_ROWS_AT_A_TIME: Final = 1_000
# Number of rows per call if near-copies are listed. One row may have thousands of near-copies, and
# the response holds the ids of all.
_ROWS_WITH_COPIES: Final = 100
# Maximum number of attempts to query a whole file. An attempt fails if the index is replaced before
# the last row of the file is answered.
_ROUNDS_MAX: Final = 4

# Options of `query` that are arguments of the client, by the same names.
_QUERY_FLAGS: Final = ("min_sequence", "paged", "page_token", "allow_partial")


def build(arguments: argparse.Namespace) -> None:
    """Build an index named NAME from the rows of FILE and serve it.

    Examples:
      divgrpc build images vectors.npy
      divgrpc build images data.npz --key train --categories y --subtopics leaf
      divgrpc build images base.fvecs --replace --hash-family lsh_div --n-tables 20
      divgrpc build news tfidf.npz --hash-family auto     scipy's sparse rows stay sparse
      divgrpc build news train.svm --categories labels --metric inner_product
      divgrpc build shoes shoes.jsonl     a line of JSON per point: id, vector, attributes, payload
      divgrpc build shoes vectors.npy --columns shoes.csv

    An index built with labels can predict labels for new documents (divgrpc predict):

      divgrpc build papers --features train.txt --label-model leml --label-names names.txt
      divgrpc build papers --features X.npz --labels Y.npz --label-model leml --hierarchy edges.txt
    """
    path, vectors, fields = read_build(arguments)
    if arguments.columns is not None:
        fields |= _columns(arguments)
    if arguments.ids is not None:
        fields["ids"] = read_ids(arguments.ids, path)
    for name in ("categories", "subtopics"):
        if (source := getattr(arguments, name)) is not None:
            fields[name] = read_column(source, path)
    with session.connect(arguments) as client, session.bar(arguments) as progress:
        info = client.build(
            arguments.name,
            vectors,
            replace=arguments.replace,
            progress=progress,
            timeout=arguments.timeout,
            **fields,
            **options_in(arguments, BuildOptions),
        )
    _show(arguments, info, "built")


def _columns(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the ids and attributes of --columns."""
    ids, attributes = read_columns(Path(arguments.columns))
    return {"ids": ids, **with_types(attributes)}


def query(arguments: argparse.Namespace) -> None:
    """Query the index NAME with each row of FILE, or with stored points.

    Examples:
      divgrpc query shoes queries.npy --where 'price<20' --where 'brand in acme,globex'
      divgrpc query shoes --like a-17 b-4 --exclude-ids c-9
      divgrpc query shoes queries.npy --max-each brand=2 --quota source:own=1..3
      divgrpc query shoes queries.npy --group-by brand=5x2   five brands with two results each
      divgrpc query images queries.npy --diversity 0       plain nearest neighbours
      divgrpc query images queries.npy --rows 0:3 -k 20
      divgrpc query images queries.npy --list-collapsed    with the ids of near-copies
      divgrpc query images queries.npy --lose-at-most 0.05
      divgrpc query images queries.npy --rows 0:1 --explain --with-report
      divgrpc query shoes queries.npy --min-sequence 7     fails before write 7
      divgrpc query shoes queries.npy --allow-partial      without shards that are down
      divgrpc query shoes --like a-17 --paged              page 1, and the token of page 2
      divgrpc query shoes --like a-17 --page-token TOKEN   the next page
      divgrpc query images queries.npy --search exact --hash-limit 0 --candidates-limit 0 --json
    """
    condition, limits, queries = where.filter_of(arguments), quotas_of(arguments), None
    if arguments.file is not None and arguments.like is not None:
        raise InvalidArgumentError("like", "FILE and --like: give one of the two")
    if arguments.file is not None:
        matrix = _read_queries(arguments)
        rows = pick_rows(arguments.rows, row_count(matrix))
        queries = take(matrix, rows.start, rows.stop)
    elif arguments.like is not None:
        rows = pick_rows(arguments.rows, len(arguments.like))
        arguments.like = arguments.like[rows.start : rows.stop]
    else:
        raise InvalidArgumentError("file", "FILE is required, or ids of points in --like")
    shows_copies = getattr(arguments, "list_collapsed", False)
    if not arguments.json and "list_collapsed" not in arguments:
        # The table has a column with the number of near-copies of each result.
        arguments.list_collapsed = True
    with session.connect(arguments) as client:
        names = ("like", "exclude_ids", "already_shown")
        ids = dict(zip(names, where.ids_of(client, arguments, *names), strict=True))
        like = ids.pop("like")
        restriction: dict[str, Any] = {**ids, **limits, "filter": condition}
        restriction |= {name: getattr(arguments, name) for name in _QUERY_FLAGS}
        if queries is None:
            fields = options_in(arguments, QueryOptions)
            fields |= restriction | {"timeout": arguments.timeout}
            result = client.query(arguments.name, like=like, **fields)
        else:
            queries = _with_columns_of_index(client, arguments, queries)
            result = _ask(arguments, client.query, QueryOptions, queries, **restriction)
    has_pages = arguments.paged or arguments.page_token is not None
    if arguments.json:
        json_output.show_result(result, rows, has_pages=has_pages)
    else:
        from divgrpc_client.formats import explanation_tables, tables

        tables.result(result, rows, shows_copies=shows_copies)
        explanation_tables.show(result, rows)
        if has_pages:
            tables.next_page(result)


def predict(arguments: argparse.Namespace) -> None:
    """Predict labels for the documents of FILE, from the labels of the index NAME.

    The score of a label is the inner product of its factors with the embedded document. In the mode
    neighbour_vote the score is the label's share of the votes.

    Examples:
      divgrpc predict papers test.txt                     five labels each, with their names
      divgrpc predict papers test.npz --rows 0:3 --top-k 10 --diversity 0.5
      divgrpc predict papers test.txt --diversity 0 --threshold 0.2 --json
      divgrpc predict papers test.txt --mode neighbour_vote --neighbours 20
      divgrpc predict papers test.txt --mode neighbour_vote --where 'year>=2020'
    """
    condition = where.filter_of(arguments)
    documents, rows = _read_documents(arguments, arguments.file)
    with session.connect(arguments) as client:
        documents = _for_index(client, arguments, documents)
        result = _ask(
            arguments,
            client.predict_labels,
            PredictOptions,
            documents.rows,
            "documents",
            filter=condition,
            allow_partial=arguments.allow_partial,
        )
    if arguments.json:
        json_output.show_result(result, rows)
    else:
        from divgrpc_client.formats import tables

        tables.labels(result, rows)


def evaluate(arguments: argparse.Namespace) -> None:
    r"""Try settings on the rows of FILE, and show the accuracy, diversity and time of each.

    Examples:
      divgrpc evaluate images queries.npz --key q --categories y
      divgrpc evaluate images queries.npy --relevant ids.txt --groups topics.npy --csv
      divgrpc evaluate images queries.npy --categories y.npy --selectors greedy mmr --ks 10 20 \
          --searches tables exact --limits 800:200 0:0 --diversities 0.1 0.3 0.5
      divgrpc evaluate images queries.npy --categories y.npy --set-default
      divgrpc evaluate images queries.npy --relevant ids.txt --where 'year>=2020'
      divgrpc evaluate images queries.npy --categories y.npy --report report.html --titles names.txt
    """
    report, condition = _report(arguments), where.filter_of(arguments)
    path = Path(arguments.file)
    queries = _read_queries(arguments)
    categories = None if arguments.categories is None else read_column(arguments.categories, path)
    relevant = None if arguments.relevant is None else read_lists(Path(arguments.relevant))
    groups = None if arguments.groups is None else read_column(arguments.groups, path)
    with session.connect(arguments) as client:
        queries = _with_columns_of_index(client, arguments, queries)
        with session.bar(arguments, "queries") as progress:
            stream = client.evaluate(
                arguments.name,
                queries,
                categories,
                relevant=relevant,
                groups=groups,
                per_query=arguments.per_query,
                filter=condition,
                progress=progress,
                **_choice(arguments),
                **options_in(arguments, GridOptions),
            )
            rows = list(stream)
        # The rows are shown before the report is written, so that they are not lost if writing
        # fails.
        _show_rows(arguments, rows)
        if report is not None:
            report.write(client, rows, queries, categories=categories, relevant=relevant)
        if arguments.set_default and not (arguments.json or arguments.csv):
            _show_default(client, arguments)


def evaluate_labels(arguments: argparse.Namespace) -> None:
    r"""Try settings of divgrpc predict on documents with known labels, and show the results.

    Examples:
      divgrpc evaluate-labels papers --features test.txt
      divgrpc evaluate-labels papers --features X.npz --labels Y.npz --rows :1000 --csv
      divgrpc evaluate-labels papers --features test.txt --selectors nearest greedy mmr \
          --top-ks 5 --modes embedding neighbour_vote --diversities 0.1 0.3 \
          --thresholds none 0.2 0.3
      divgrpc evaluate-labels papers --features test.txt --thresholds 0.1 0.2 0.3 --set-default
    """
    documents, _ = _read_documents(arguments, arguments.features)
    if documents.labels is None:
        raise InvalidArgumentError("labels", "--labels is required if --features is a matrix")
    with session.connect(arguments) as client:
        documents = _for_index(client, arguments, documents)
        with session.bar(arguments, "documents") as progress:
            stream = client.evaluate_labels(
                arguments.name,
                documents.rows,
                cast(Matrix, documents.labels),
                groups=documents.groups,
                per_document=arguments.per_document,
                progress=progress,
                **_choice(arguments),
                **options_in(arguments, LabelGridOptions),
            )
            rows = list(stream)
    _show_rows(arguments, rows)


def ls(arguments: argparse.Namespace) -> None:
    """List the indexes of a server.

    Examples:
      divgrpc ls
      divgrpc ls --target 10.0.0.5:50051 --json
    """
    with session.connect(arguments) as client:
        _show(arguments, client.list_indexes(timeout=arguments.timeout), "indexes")


def info(arguments: argparse.Namespace) -> None:
    """Show the parameters of an index and the reasons for those that Build chose.

    It also shows the recall and the cost of each kind of search, and the size of each array.

    Examples:
      divgrpc info images
      divgrpc info images --json
    """
    with session.connect(arguments) as client:
        _show(arguments, client.get_index(arguments.name, timeout=arguments.timeout), "index")


def rm(arguments: argparse.Namespace) -> None:
    """Delete an index and its files; this cannot be undone.

    Queries that are running still finish.

    Examples:
      divgrpc rm images
    """
    with session.connect(arguments) as client:
        generation = client.delete_index(arguments.name, timeout=arguments.timeout)
    value = {"name": arguments.name, "generation": generation}
    text = f"deleted {arguments.name}, last served as generation {generation}"
    json_output.show_or_write(value, text, as_json=arguments.json)


def warm(arguments: argparse.Namespace) -> int:
    """Compile the search kernels now, so that no process has to compile them when it starts.

    Kernels are compiled once for each release, processor and version of Python, numba and numpy. A
    compilation takes 30 to 45 s on two cores. Without this command, the first Index.build or the
    first start of a server compiles them. Only a computer that searches needs kernels. A client
    needs none.

    The folder of kernels may be copied, because kernels do not depend on where divgrpc is
    installed. They are compiled for the processor of this computer. To compile them for several
    processors, set these variables to the oldest of the processors, both here and where the kernels
    are used:

      NUMBA_CPU_NAME=x86-64-v3 NUMBA_CPU_FEATURES= divgrpc warm

    The command removes those kernels of other releases that no process has loaded for 30 days. Its
    exit code is 1 if the folder cannot be written.

    Examples:
      divgrpc warm                                      into the user's cache folder
      DIVGRPC_KERNEL_CACHE=/srv/kernels divgrpc warm    into a folder that an image keeps
    """
    with with_extra("warm", "compiling kernels", "server"):
        from divgrpc.warmup import warm_ahead
    outcome = warm_ahead(quiet=arguments.quiet or arguments.json)
    if arguments.json:
        json_output.show(outcome.as_dict())
    else:
        source = "were compiled before"
        if outcome.compile_seconds is not None:
            source = f"compiled in {outcome.compile_seconds:.1f} s"
        size = f"{outcome.size_bytes / 1e6:.1f} MB"
        sys.stdout.write(
            f"{outcome.kernels} kernels for {outcome.processor}, {size}, in {outcome.folder}\n"
            f"{source}, loaded in {outcome.load_seconds:.1f} s\n"
        )
    if not outcome.kept:
        sys.stderr.write(
            "divgrpc: the kernels could not be kept: make the folder writable, or name another one "
            "in DIVGRPC_KERNEL_CACHE\n"
        )
    return 0 if outcome.kept else 1


def _read_queries(arguments: argparse.Namespace) -> Matrix:
    base, dims = arguments.index_base, arguments.dims
    return read_vectors(Path(arguments.file), arguments.key, base=base, dims=dims)


def _with_columns_of_index(
    client: Client, arguments: argparse.Namespace, queries: Matrix
) -> Matrix:
    """Widen rows from an svmlight file to the number of columns of the index."""
    if Path(arguments.file).suffix in SVMLIGHT and arguments.dims is None:
        return widened(queries, client.get_index(arguments.name).dims)
    return queries


def _read_documents(arguments: argparse.Namespace, file: str) -> tuple[Documents, range]:
    """Return the documents that --split and --rows select, and their positions.

    Positions count within the split or, without --split, within the file.
    """
    documents = read_documents(Path(file), arguments)
    rows = pick_rows(arguments.rows, len(documents.numbers))
    return documents.taken(rows), rows


def _for_index(client: Client, arguments: argparse.Namespace, documents: Documents) -> Documents:
    if not documents.is_text:
        return documents
    return documents.for_index(client.get_index(arguments.name), arguments)


def _ask(
    arguments: argparse.Namespace,
    method: Callable[..., ResultT],
    options: type,
    matrix: Matrix,
    unit: str = "rows",
    **restriction: Any,  # noqa: ANN401  # of any of these methods
) -> ResultT:
    """Call `method` on blocks of rows, and join the results into one.

    `restriction`: further arguments of `method`. All results come from one generation (one build)
    of the index.
    """
    fields, count = options_in(arguments, options) | restriction, row_count(matrix)
    has_lists = fields.get("list_collapsed") or fields.get("explain")
    step = _ROWS_WITH_COPIES if has_lists else _ROWS_AT_A_TIME
    with session.bar(arguments, unit) if count > step else nullcontext() as progress:
        for _ in range(_ROUNDS_MAX):
            parts: list[ResultT] = []
            # A file without rows still makes one call, so that the server reports the error.
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


def _choice(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments that the methods of both evaluations take besides the grid."""
    return {name: getattr(arguments, name) for name in ("folds", "set_default", "timeout")}


def _report(arguments: argparse.Namespace) -> "EvaluationReport | None":
    """Return the report of --report, with its input files already read; None without --report."""
    if arguments.report is None:
        for option in ("titles", "thumbnails", "point_categories", "show"):
            if getattr(arguments, option) is not None:
                flag = f"--{option.replace('_', '-')}"
                raise InvalidArgumentError(option, f"{flag} is for --report alone")
        return None
    with with_extra("report", "a report", "report"):
        from divgrpc_client.reports.showing import EvaluationReport
    return EvaluationReport(arguments)


def _show(arguments: argparse.Namespace, value: object, table: str) -> None:
    """Print a value as JSON, or with the function of `formats.tables` named `table`."""
    if arguments.json:
        json_output.show(value)
    else:
        from divgrpc_client.formats import tables

        getattr(tables, table)(value)


def _show_default(client: Client, arguments: argparse.Namespace) -> None:
    """Print the default that was stored; a row has limits, also those that are not stored."""
    from divgrpc_client.formats import tables

    default = client.get_index(arguments.name, timeout=arguments.timeout).query_default
    if default is not None:  # the index may have been built again meanwhile
        tables.new_default(default)


def _show_rows(arguments: argparse.Namespace, rows: Any) -> None:  # noqa: ANN401  # rows of either kind
    from divgrpc_client.formats import evaluation_tables

    if arguments.json:
        json_output.show({"rows": rows})
    elif arguments.csv:
        evaluation_tables.show_csv(rows)
    else:
        evaluation_tables.show(rows)
