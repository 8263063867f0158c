"""Answers the questions of the page through a client."""

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, cast, get_args

import numpy as np

from divgrpc.errors import IndexChangedError, InvalidArgumentError
from divgrpc.parameters.query import DEFAULT_DIVERSITY, DEFAULT_K
from divgrpc.types import IndexInfo, Metric, QueryResult, Selector
from divgrpc.types.hits import Hit
from divgrpc.types.records import Record
from divgrpc_client.client import Client
from divgrpc_client.explorer.comparison import Comparison, PointDistances, distinct_values
from divgrpc_client.explorer.looks import Looks
from divgrpc_client.explorer.questions import K_MAX, Question, read_id, read_question
from divgrpc_client.formats.titles import Id
from divgrpc_protos.arrays import Matrix, row_count, take

# Nearness ranks are known of this many points.
_RANKED: Final = 200
# The dials of the curve.
_DIALS: Final = tuple(step / 10 for step in range(11))
# Maximum number of near-copies that a result shows.
_COPIES_SHOWN: Final = 30
_THUMBNAIL_PIXELS: Final = 320
# One request for points asks for about this many bytes of vectors and payloads.
_READ_BYTES: Final = 2_000_000
_PAYLOAD_BYTES_MAX: Final = 65_536
_READ_POINTS: Final = 1_000
_PLAIN: Final[dict[str, Any]] = {
    "diversity": 0,
    "selector": "nearest",
    "keep_duplicates": True,
}
# Warnings that say less than the shortfalls of a quota.
_SHORTFALL_CODES: Final = ("QUOTA_INFEASIBLE", "FEWER_THAN_K_FOUND")
_SCORES: Final[Mapping[str, str]] = {
    "cosine": "cosine",
    "inner_product": "inner product",
    "euclidean": "squared distance",
}


class Explorer:
    """Plain and diverse results of one index, side by side.

    client: a client of the server that has the index.
    name: the index.
    looks: how points are shown.
    queries: (rows, dims) queries of the user, None for none.
    timeout: seconds for each call, None for the client's timeout.

    Methods may be called from any thread. They raise what the client raises, and
    `InvalidArgumentError` for values that are wrong.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        looks: Looks,
        queries: Matrix | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        self._client, self._name, self._looks, self._queries = client, name, looks, queries
        self._timeout = timeout
        self._rows = 0 if queries is None else row_count(queries)
        self._rng = np.random.default_rng()

    def describe(self) -> dict[str, Any]:
        """Return what the page needs to know of the index."""
        info = self._info()
        default, metric = info.query_default, cast(Metric, info.parameters["metric"])
        return {
            "name": self._name,
            "facts": f"{info.rows:,} points of {info.dims:,} dimensions, {metric}",
            "score": _SCORES[metric],
            "greater_is_nearer": metric != "euclidean",
            "rows": self._rows,
            "has_pictures": self._looks.pictures is not None,
            "collapses": info.duplicate_threshold is not None,
            "attributes": [attribute.name for attribute in info.attributes],
            "selectors": [word for word in get_args(Selector) if word != "nearest"],
            "selector": _default_selector(info),
            "diversity": DEFAULT_DIVERSITY if default is None else default.diversity,
            "k": DEFAULT_K,
            "k_max": K_MAX,
        }

    def random_id(self) -> dict[str, str]:
        """Return the id of a random point, in a dictionary with the key id."""
        info = self._info()
        ids: list[Id] = []
        if info.id_kind == "int64":
            # Most indexes have the ids 0, 1, 2 and so on.
            numbers = self._rng.integers(0, max(1, info.rows), 50).tolist()
            ids = _with_vectors(self._read(dict.fromkeys(numbers), info, parts="vectors"))
        if not ids:
            # Text ids are in no order of their meaning, so the first ones are a sample.
            pages = self._client.scroll(
                self._name,
                with_vectors=True,
                with_attributes=False,
                with_payload=False,
                page_size=_points_per_read(info, has_payloads=False),
                timeout=self._timeout,
            )
            ids = next(filter(None, map(_with_vectors, pages)), [])
        if not ids:
            raise InvalidArgumentError("name", f"index {self._name!r} has no points with a vector")
        return {"id": str(ids[int(self._rng.integers(len(ids)))])}

    def answer(self, values: Mapping[str, str]) -> dict[str, Any]:
        """Return both lists for the question in the values of a URL."""
        info, question = self._question(values)
        plain, diverse, ranks = self._lists(info, question)
        copies: list[list[Id]] = [
            diverse.collapsed(0, place).tolist() for place in range(len(diverse[0]))
        ]
        points: list[Id] = [hit.id for hit in (*plain[0], *diverse[0])]
        points += [point for row in copies for point in row[:_COPIES_SHOWN]]
        points += [] if question.like is None else [question.like]
        records = self._read(dict.fromkeys(points), info)
        by_id = {record.id: record for record in records}
        comparison = Comparison(
            *(plain[0], diverse[0], copies, ranks),
            PointDistances(records, cast(Metric, info.parameters["metric"])),
            next(iter(diverse.explanations), None),
            diverse.parameters.duplicate_threshold,
        )
        keywords = [a.name for a in info.attributes if a.type == "keyword"]
        keywords = [name for name in keywords if name != self._looks.attribute]
        quota_attributes = [quota.attribute for quota in question.quotas]
        return {
            "query": self._subject(question, by_id),
            "diversity": _dial(diverse),
            "warnings": _warnings(diverse, len(quota_attributes)),
            "quotas": [(quota.attribute, quota.max_each) for quota in question.quotas],
            "plain": self._side(comparison, "plain", by_id, keywords, quota_attributes),
            "diverse": self._side(comparison, "diverse", by_id, keywords, quota_attributes),
        }

    def _lists(
        self, info: IndexInfo, question: Question
    ) -> tuple[QueryResult, QueryResult, dict[Id, int]]:
        """Return plain results, diverse results, and ranks by nearness as `Comparison` has them."""
        selector = question.options.get("selector", _default_selector(info))
        explains = selector != "qp_relax"
        plain = self._query(question, {**_PLAIN, "k": question.k})
        shown = {"k": question.k, "list_collapsed": True, "explain": explains}
        diverse = ranked = self._query(question, {**question.options, **shown})
        if explains:
            places = diverse.explanations[0].plain_ranks.tolist()
            ranks = {hit.id: rank for hit, rank in zip(diverse[0], places, strict=True)}
        else:
            ranked = self._query(question, {**_PLAIN, "k": max(question.k, _RANKED)})
            ranks = {hit.id: rank for rank, hit in enumerate(ranked[0], 1)}
        if len({result.generation for result in (plain, diverse, ranked)}) > 1:
            raise IndexChangedError(f"index {self._name!r} was replaced meanwhile: ask again")
        return plain, diverse, ranks

    def curve(self, values: Mapping[str, str]) -> dict[str, Any]:
        """Return the mean score and the mean distance between results at several dials."""
        info, question = self._question(values)
        results = [
            self._query(question, {**question.options, "k": question.k, "diversity": dial})
            for dial in _DIALS
        ]
        points = dict.fromkeys(hit.id for result in results for hit in result[0])
        records = self._read(points, info, parts="vectors")
        distances = PointDistances(records, cast(Metric, info.parameters["metric"]))
        comparisons = (Comparison((), result[0], (), {}, distances) for result in results)
        return {
            "points": [
                {"diversity": dial, **comparison.figures(comparison.diverse)}
                for dial, comparison in zip(_DIALS, comparisons, strict=True)
            ]
        }

    def picture(self, text: str) -> bytes | None:
        """Return the picture of the point with this id as a PNG, None if it has none."""
        pictures = self._looks.pictures
        if pictures is None:
            return None
        info = self._info()
        point = read_id(text, info.id_kind, "id")
        # Only points of the index have pictures, whatever other files there are.
        records = self._client.get(
            self._name, cast(Sequence[int], [point]), with_payload=False, timeout=self._timeout
        )
        if not len(records):
            return None
        image = pictures.thumbnail(point, records[0].attributes, _THUMBNAIL_PIXELS)
        if image is None:
            return None
        sink = io.BytesIO()
        image.save(sink, format="PNG")
        return sink.getvalue()

    def _info(self) -> IndexInfo:
        return self._client.get_index(self._name, timeout=self._timeout)

    def _question(self, values: Mapping[str, str]) -> tuple[IndexInfo, Question]:
        info = self._info()
        return info, read_question(values, info.id_kind, self._rows)

    def _query(self, question: Question, options: Mapping[str, Any]) -> QueryResult:
        rows = None
        if question.like is None:
            rows = take(cast(Matrix, self._queries), question.row, question.row + 1)
        return self._client.query(
            self._name, rows, like=question.like, timeout=self._timeout, **options
        )

    def _read(
        self,
        points: Iterable[Id],
        info: IndexInfo,
        parts: Literal["vectors", "all"] = "all",
    ) -> list[Record]:
        """Return stored points with vectors and, for `all`, what the page shows of them."""
        ids = list(points)
        shows_payloads = parts == "all" and self._looks.has_payload_titles
        step = _points_per_read(info, has_payloads=shows_payloads)
        pages = [
            self._client.get(
                self._name,
                cast(Sequence[int], ids[start : start + step]),
                with_vectors=True,
                with_attributes=parts == "all",
                with_payload=shows_payloads,
                timeout=self._timeout,
            )
            for start in range(0, len(ids), step)
        ]
        return [record for page in pages for record in page]

    def _subject(self, question: Question, by_id: Mapping[Id, Record]) -> dict[str, Any]:
        if question.like is None:
            return {"row": question.row, "id": None, "title": f"Row {question.row}", "facts": []}
        return {"row": None, **self._point(question.like, by_id)}

    def _point(
        self, point: Id, by_id: Mapping[Id, Record], quota_attributes: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Return what the page shows of a point; of a point that was deleted, only its id."""
        record = by_id.get(point)
        return {
            "id": str(point),
            "title": "" if record is None else self._looks.title(record),
            "facts": [] if record is None else self._looks.facts(record, quota_attributes),
        }

    def _side(
        self,
        comparison: Comparison,
        side: Literal["plain", "diverse"],
        by_id: Mapping[Id, Record],
        keywords: Sequence[str],
        quota_attributes: Sequence[str],
    ) -> dict[str, Any]:
        """Return one of both lists: a card for each result, and figures of the list."""
        hits: Sequence[Hit] = comparison.plain
        reasons = comparison.plain_reasons
        copies: Sequence[Sequence[Id]] = [() for _ in hits]
        if side == "diverse":
            hits, reasons = comparison.diverse, comparison.diverse_reasons
            copies = comparison.copies
        cards = [
            self._point(hit.id, by_id, quota_attributes)
            | {"score": hit.score, "state": state, "reason": reason, "copies": len(ids)}
            | {"copies_shown": [self._point(copy, by_id) for copy in ids[:_COPIES_SHOWN]]}
            for hit, (state, reason), ids in zip(hits, reasons(), copies, strict=True)
        ]
        attributes = [by_id[hit.id].attributes for hit in hits if hit.id in by_id]
        figures = comparison.figures(hits) | {"values": distinct_values(attributes, keywords)}
        return {"results": cards, "figures": figures}


def _dial(result: QueryResult) -> float:
    """Return the dial of a result of one row."""
    return float(result.diversities[0] if len(result.diversities) else result.parameters.diversity)


def _default_selector(info: IndexInfo) -> Selector:
    return "greedy" if info.query_default is None else info.query_default.selector


def _warnings(result: QueryResult, quotas: int) -> list[str]:
    """Return the warnings of a result of one row within some quotas as sentences."""
    bounds = "this quota" if quotas == 1 else "these quotas"
    lacks = [
        f"Only {lack.count} of {lack.required} results are possible within {bounds}."
        for lack in result.quota_shortfalls
    ]
    remaining = [w.message for w in result.warnings if not (lacks and w.code in _SHORTFALL_CODES)]
    return lacks + remaining


def _with_vectors(records: Iterable[Record]) -> list[Id]:
    """Return the ids of the points that have vectors, so that they can be queries."""
    return [record.id for record in records if record.vector is not None]


def _points_per_read(info: IndexInfo, *, has_payloads: bool) -> int:
    """Return the number of points that one request reads, so that they fit one message."""
    width = 4 * info.dims
    if info.points == "sparse":
        # Some points have more values than the mean.
        width = 8 * 8 * max(1, info.nonzeros // max(1, info.rows))
    size = width + (_PAYLOAD_BYTES_MAX if has_payloads else 0)
    return min(_READ_POINTS, max(1, _READ_BYTES // size))
