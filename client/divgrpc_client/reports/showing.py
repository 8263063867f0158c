"""Writes the page of `divgrpc evaluate --report`, with results of several methods side by side.

A server returns ids and scores. The titles, images and categories of points come from the user's
files.
"""

import argparse
import datetime as dt
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

import divgrpc
from divgrpc.errors import IndexChangedError, InvalidArgumentError
from divgrpc.types import EvaluateRow
from divgrpc_client.client import Client
from divgrpc_client.formats.evaluation_tables import method, setting
from divgrpc_client.formats.pictures import read_pictures
from divgrpc_client.formats.titles import Id, read_titles
from divgrpc_client.messages.vectors import VectorsLike, as_matrix
from divgrpc_client.reports.evaluation import best_of_each, write_report
from divgrpc_client.reports.page import Result, ResultList, ResultLists, data_uri
from divgrpc_protos.arrays import Matrix, row_count, take

# Maximum width and height of a thumbnail, the size at which a page shows thumbnails.
THUMBNAIL_PIXELS: Final = 64
_COUNT: Final = 4
_OPTIONS: Final = (
    *("k", "diversity", "selector", "variant", "rounding", "search", "hash_limit"),
    *("candidates_limit", "max_distance", "sampling", "seed"),
)


@dataclass(frozen=True, slots=True)
class Looks:
    """How points are shown: titles, images as data URIs ("" for none) and categories, by id."""

    titles: Mapping[Id, str] = field(default_factory=dict)
    thumbnail: Callable[[Id], str] | None = None
    categories: Mapping[Id, int] = field(default_factory=dict)


def side_by_side(
    client: Client,
    index: str,
    queries: VectorsLike,
    rows: Sequence[EvaluateRow],
    looks: Looks,
    *,
    count: int = 4,
    categories: npt.ArrayLike | None = None,
    relevant: Sequence[npt.ArrayLike] | None = None,
    timeout: float | None = None,
) -> list[ResultLists]:
    """Repeat `count` of the queries, and return the results of each method for them.

    Every method of `rows` is shown at the diversity, search and limits with the greatest h, at the
    smallest k. If `rows` has choices by folds, only these are considered. Plain nearest neighbours
    come first. The queries are spread evenly over all queries. If `relevant` is given, a result is
    wrong if it is not among the query's `relevant` ids. Otherwise it is wrong if its category in
    `looks` is known and differs from the query's category in `categories`. Raises
    `IndexChangedError` if another generation of the index answers.
    """
    matrix = as_matrix("queries", queries, one_row=True)
    total = row_count(matrix)
    k = min((row.parameters.k for row in rows), default=0)
    candidates = [row for row in rows if row.parameters.k == k]
    choices = [row for row in candidates if row.by_fold and not row.is_default]
    best = best_of_each(choices or candidates, method)
    best.sort(key=lambda row: row.parameters.selector != "nearest")
    sections = []
    for number in np.unique(np.linspace(0, total - 1, min(count, total)).astype(int)).tolist():
        category = None if categories is None else int(np.asarray(categories)[number])
        ids: set[Id] | None = None
        if relevant is not None:
            ids = set(np.asarray(relevant[number]).tolist())
        lists = []
        for row in best:
            query = take(matrix, number, number + 1)
            answer = client.query(index, query, timeout=timeout, **_options(row))
            if answer.generation != row.generation:
                raise IndexChangedError(f"index {index!r} was replaced since it was evaluated")
            results = [_result(hit.id, looks, category, ids) for hit in answer[0]]
            caption = f"{len(results)} results"
            if ids is not None or (category is not None and looks.categories):
                relevant_count = sum(not result.wrong for result in results)
                caption = f"{relevant_count} of {len(results)} relevant"
            lists.append(ResultList(setting(row), caption, results))
        heading = f"Query {number}" + ("" if category is None else f", category {category}")
        sections.append(ResultLists(heading, lists))
    return sections


def _options(row: EvaluateRow) -> dict[str, Any]:
    """Return the parameters of a query that repeats those of a row."""
    options = {name: getattr(row.parameters, name) for name in _OPTIONS}
    threshold = row.parameters.duplicate_threshold
    copies = {"keep_duplicates": True} if threshold is None else {"duplicate_threshold": threshold}
    return options | copies | {"n_probes": row.parameters.n_probes or None}


def _result(point: Id, looks: Looks, category: int | None, ids: set[Id] | None) -> Result:
    title = looks.titles.get(point, "")
    image = "" if looks.thumbnail is None else looks.thumbnail(point)
    name = title or f"id {point}"
    wrong = category is not None and looks.categories.get(point, category) != category
    if ids is not None:
        wrong = point not in ids
    return Result(title if image else name, image, alt="" if title else name, wrong=wrong)


def read_point_categories(path: Path) -> dict[Id, int]:
    """Return a category for each id, from a file in the format of `read_titles`."""
    titles = read_titles(path, "point_categories")
    try:
        return {point: int(text) for point, text in titles.items() if text.strip()}
    except ValueError as error:
        raise InvalidArgumentError(
            "point_categories", f"{path} must hold whole numbers: {error}"
        ) from None


def read_thumbnails(path: Path) -> Callable[[Id], str]:
    """Return a function that returns the image of an id as a data URI, "" if there is none.

    `path` is what `read_pictures` takes, but a pattern has no attributes.
    """
    pictures = read_pictures(path)
    if pictures.attributes:
        names = ", ".join(sorted(pictures.attributes))
        raise InvalidArgumentError("thumbnails", f"{path} may have {{id}} alone, got {names}")

    def thumbnail(point: Id) -> str:
        image = pictures.thumbnail(point, {}, THUMBNAIL_PIXELS)
        return "" if image is None else data_uri(image)

    return thumbnail


class EvaluationReport:
    """A report that is written after the evaluation; its input files are read at construction.

    Raises `InvalidArgumentError` for a faulty file, and OSError if the folder of the page cannot be
    created.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._index, self._timeout = arguments.name, arguments.timeout
        self._path = Path(arguments.report)
        titles, pictures, categories = (
            Path(name) if name else None
            for name in (arguments.titles, arguments.thumbnails, arguments.point_categories)
        )
        # Without titles and images, results are shown only if --show is given.
        default_count = _COUNT if titles or pictures else 0
        self._count = default_count if arguments.show is None else arguments.show
        if self._count < 0:
            raise InvalidArgumentError("show", f"--show must be at least 0, got {self._count}")
        self._looks = Looks(
            titles=read_titles(titles) if titles else {},
            thumbnail=read_thumbnails(pictures) if pictures else None,
            categories=read_point_categories(categories) if categories else {},
        )
        self._path.parent.mkdir(parents=True, exist_ok=True)

    def write(
        self,
        client: Client,
        rows: Sequence[EvaluateRow],
        queries: Matrix,
        **judgements: Any,  # noqa: ANN401  # categories and relevant, as `side_by_side` has them
    ) -> None:
        """Query the results that the page shows, and write the page."""
        lists = []
        if self._count:
            lists = side_by_side(
                *(client, self._index, queries, rows, self._looks),
                count=self._count,
                timeout=self._timeout,
                **judgements,
            )
        # The server's machine is not known here.
        index, server = client.get_index(self._index), client.server_info()
        facts = [
            dt.datetime.now(tz=dt.UTC).date().isoformat(),
            f"divgrpc {divgrpc.__version__}, server {server.version}, workers: {server.workers}",
            f"{index.rows:,} points of {index.dims:,} dimensions, {index.parameters['metric']}, "
            f"{index.parameters['hash_family']}",
        ]
        write_report(rows, self._path, index=self._index, facts=facts, lists=lists)
        sys.stderr.write(f"report: {self._path}\n")
