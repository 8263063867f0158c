"""A question that the page asks, read from the query of a URL."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from divgrpc.errors import invalid
from divgrpc.types.quotas import Quota
from divgrpc.types.records import IdKind
from divgrpc_client.formats.titles import Id

# Maximum number of results of a list on the page.
K_MAX: Final = 100
_NAMES: Final = ("like", "row", "k", "diversity", "selector", "keep_duplicates", "max_each")


@dataclass(frozen=True, slots=True)
class Question:
    """A query and its options.

    like: id of the stored point that is the query, None if the query is a row of the file.
    row: number of the row, from 0.
    k: number of results.
    options: further options of `Client.query`.
    """

    like: Id | None
    row: int
    k: int
    options: Mapping[str, Any]

    @property
    def quotas(self) -> tuple[Quota, ...]:
        """The quotas; empty if there are none."""
        quotas: tuple[Quota, ...] = self.options.get("quotas", ())
        return quotas


def read_question(values: Mapping[str, str], id_kind: IdKind, rows: int) -> Question:
    """Return the question in the values of a URL.

    rows: number of rows of the file of queries, 0 if there is none.

    Raises `InvalidArgumentError` with the name of the value. The server checks the options.
    """
    for name in values:
        if name not in _NAMES:
            raise invalid(name, f"is unknown; the page asks with {', '.join(_NAMES)}")
    if ("like" in values) == ("row" in values):
        raise invalid("like", "or row must say which point or row is the query")
    like, row = None, 0
    if "like" in values:
        like = read_id(values["like"], id_kind, "like")
    else:
        row = _whole(values, "row", 0, rows - 1)
    options: dict[str, Any] = {}
    if "diversity" in values:
        options["diversity"] = _dial(values["diversity"])
    if "selector" in values:
        options["selector"] = values["selector"]
    if "keep_duplicates" in values:
        options["keep_duplicates"] = bool(_whole(values, "keep_duplicates", 0, 1))
    if "max_each" in values:
        # Where quotas leave few results, they say more than an error.
        quotas = tuple(map(_max_each, values["max_each"].split(",")))
        options |= {"quotas": quotas, "on_infeasible": "relax"}
    return Question(like, row, _whole({"k": "10", **values}, "k", 1, K_MAX), options)


def read_id(text: str, id_kind: IdKind, field: str) -> Id:
    """Return an id in the type of the ids of an index; raises `InvalidArgumentError`."""
    if id_kind == "string":
        return text
    if not re.fullmatch(r"-?[0-9]{1,19}", text, re.ASCII):
        raise invalid(field, f"must be an integer in this index, got {text!r:.80}")
    return int(text)


def _whole(values: Mapping[str, str], name: str, least: int, most: int) -> int:
    text = values[name]
    if not re.fullmatch(r"[0-9]{1,9}", text, re.ASCII) or not least <= int(text) <= most:
        raise invalid(name, f"must be a whole number from {least} to {most}, got {text!r:.80}")
    return int(text)


def _max_each(text: str) -> Quota:
    name, _, count = text.rpartition("=")
    if not name:
        form = "must be ATTRIBUTE=N, such as brand=2, with commas between several"
        raise invalid("max_each", f"{form}, got {text!r:.80}")
    return Quota(name, max_each=_whole({"max_each": count}, "max_each", 1, K_MAX))


def _dial(text: str) -> float | str:
    if text == "auto":
        return text
    try:
        return float(text)
    except ValueError:
        raise invalid("diversity", f"must be a number or auto, got {text!r:.80}") from None
