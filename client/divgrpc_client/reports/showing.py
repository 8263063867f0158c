"""Results to look at: lists of several methods side by side, with what the caller knows of points.

A server has vectors and ids; titles, pictures and the points' categories come from files of the
caller's.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from divgrpc.errors import IndexChangedError, InvalidArgumentError
from divgrpc.types import EvaluateRow
from divgrpc_client.client import Client
from divgrpc_client.formats.evaluation_tables import method, setting
from divgrpc_client.formats.files import read_column
from divgrpc_client.messages.vectors import VectorsLike, as_matrix
from divgrpc_client.reports.evaluation import h
from divgrpc_client.reports.page import Result, ResultList, ResultLists, data_uri
from divgrpc_protos.arrays import row_count, take

# As large as a page shows them.
THUMBNAIL_PIXELS: Final = 64
_SUFFIXES: Final = (".png", ".jpg", ".jpeg")
_NUMBERED: Final = re.compile(r"(\d+)\t(.*)")
_OPTIONS: Final = (
    "k",
    "diversity",
    "selector",
    "variant",
    "search",
    "hash_limit",
    "candidates_limit",
    "max_distance",
    "sampling",
    "seed",
    "rounding",
)


@dataclass(frozen=True, slots=True)
class Looks:
    """What points look like, by id: a title, a picture as a data URI ("" for none), a category."""

    titles: Mapping[int, str] = field(default_factory=dict)
    thumbnail: Callable[[int], str] | None = None
    categories: Mapping[int, int] = field(default_factory=dict)


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
    """Ask `count` of the queries again, and return what each method finds for them.

    Shown are the plain nearest and every other method of `rows` at the dial, search and limits with
    the greatest h, all at the smallest k. Queries stand as far apart as they can. A result is wrong
    where the query's `relevant` ids do not have it, or where its category, if `looks` knows it, is
    not the query's of `categories`. Raises `IndexChangedError` where another generation answers.
    """
    matrix = as_matrix("queries", queries, one_row=True)
    total = row_count(matrix)
    numbers = np.unique(np.linspace(0, total - 1, min(count, total)).astype(int)).tolist()
    query_categories = None if categories is None else np.asarray(categories)
    sections = []
    for number in numbers:
        category = None if query_categories is None else int(query_categories[number])
        right = None if relevant is None else {int(point) for point in np.asarray(relevant[number])}
        heading = f"Query {number}" + ("" if category is None else f", category {category}")
        query = take(matrix, number, number + 1)
        lists = []
        for row in _best(rows):
            options: dict[str, Any] = {name: getattr(row.parameters, name) for name in _OPTIONS}
            answer = client.query(index, query, timeout=timeout, **options)
            if answer.generation != row.generation:
                raise IndexChangedError(f"index {index!r} was replaced since it was evaluated")
            ids = answer.ids[0]
            results = [_result(int(i), looks, category, right) for i in ids if i >= 0]
            judged = right is not None or (category is not None and bool(looks.categories))
            lists.append(ResultList(setting(row), _caption(results, judged=judged), results))
        sections.append(ResultLists(heading, lists))
    return sections


def _best(rows: Sequence[EvaluateRow]) -> list[EvaluateRow]:
    """Return the best row of each method at the smallest k; choices go before settings."""
    k = min((row.parameters.k for row in rows), default=0)
    candidates = [row for row in rows if row.parameters.k == k]
    best: dict[str, EvaluateRow] = {}
    for row in [row for row in candidates if row.by_fold] or candidates:
        name = method(row)
        if name not in best or h(row) > h(best[name]):
            best[name] = row
    return sorted(best.values(), key=lambda row: row.parameters.selector != "nearest")


def _result(point: int, looks: Looks, category: int | None, right: set[int] | None) -> Result:
    title = looks.titles.get(point, "")
    image = "" if looks.thumbnail is None else looks.thumbnail(point)
    if right is not None:
        wrong = point not in right
    else:
        wrong = category is not None and looks.categories.get(point, category) != category
    return Result(
        text=title or ("" if image else f"id {point}"),
        image=image,
        alt="" if title else f"id {point}",
        wrong=wrong,
    )


def _caption(results: Sequence[Result], *, judged: bool) -> str:
    if not judged:
        return f"{len(results)} results"
    return f"{sum(not result.wrong for result in results)} of {len(results)} relevant"


def read_titles(path: Path) -> dict[int, str]:
    """Return a title for each id from a text file.

    Either every line is an id, a tabulator and a title, or a line's number, from 0 up, is the id.
    """
    try:
        # Not `splitlines`, to which some characters inside a title are ends of lines.
        lines = path.read_text(encoding="utf-8-sig").removesuffix("\n").split("\n")
    except (OSError, ValueError) as error:
        raise InvalidArgumentError("titles", f"{path} cannot be read as text: {error}") from None
    if lines == [""]:
        return {}
    numbered = [_NUMBERED.fullmatch(line) for line in lines]
    if all(numbered):
        return {int(match[1]): match[2] for match in numbered if match}
    return dict(enumerate(lines))


def read_point_categories(path: Path) -> dict[int, int]:
    """Return a category for each id, from a file such as `read_titles` reads."""
    try:
        return {point: int(text) for point, text in read_titles(path).items() if text.strip()}
    except ValueError as error:
        raise InvalidArgumentError(
            "point_categories", f"{path} must hold whole numbers: {error}"
        ) from None


def read_thumbnails(path: Path) -> Callable[[int], str]:
    """Return what gives an id's picture as a data URI, "" where there is none.

    `path` is a folder of <id>.png or .jpg, or an .npy (n, height, width[, 3]) whose rows are ids,
    of uint8 or of shares 0 to 1.
    """
    if path.is_dir():
        return lambda point: _from_folder(path, point)
    array = read_column(str(path), path) if path.suffix == ".npy" else np.empty(0)
    if (
        array.ndim not in (3, 4)
        or array.shape[3:] not in ((), (3,))
        or array.dtype.kind not in "uf"
    ):
        raise InvalidArgumentError(
            "thumbnails",
            f"{path} must be a folder of <id>.png or .jpg, or an .npy of (n, height, width) or "
            "(n, height, width, 3), of uint8 or shares 0 to 1",
        )
    return lambda point: (
        _small(Image.fromarray(_shades(array[point]))) if point < len(array) else ""
    )


def _shades(image: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    shades = image if image.dtype == np.uint8 else np.rint(255 * np.clip(image, 0, 1))
    return shades.astype(np.uint8)


def _from_folder(folder: Path, point: int) -> str:
    paths = [folder / f"{point}{suffix}" for suffix in _SUFFIXES]
    path = next((path for path in paths if path.exists()), None)
    if path is None:
        return ""
    try:
        with Image.open(path) as image:
            return _small(image.convert("RGB"))
    except (OSError, UnidentifiedImageError) as error:
        raise InvalidArgumentError("thumbnails", f"{path} is no picture: {error}") from None


def _small(image: Image.Image) -> str:
    image.thumbnail((THUMBNAIL_PIXELS, THUMBNAIL_PIXELS))
    return data_uri(image)
