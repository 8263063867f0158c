"""The options that restrict points: --where, --filter, --exclude-ids, --like and pages.

--where has a condition in one of these forms:

    price<20              one of = != < <= > >=
    brand in acme,globex  one of several values
    brand exists          the point has a value
    brand absent          the point has no value

A value is true, false, a number, or a time such as 2026-01-31 or 2026-01-31T12:00:00Z. Any other
value is a text. Double quotes make a text of any value, with the escapes of JSON.
"""

import argparse
import json
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from divgrpc.errors import invalid
from divgrpc.types.filters import Condition, Field, Filter, FilterLike
from divgrpc.types.records import IdKind
from divgrpc_client.cli.options import add_flags
from divgrpc_client.client import Client

_NAME: Final = r"\s*(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
_COMPARISON: Final = re.compile(_NAME + r"\s*(?P<sign>!=|<=|>=|=|<|>)\s*(?P<value>.+)", re.DOTALL)
_LIST: Final = re.compile(_NAME + r"\s+in\s+(?P<values>.+)", re.DOTALL)
_PRESENCE: Final = re.compile(_NAME + r"\s+(?P<word>exists|absent)\s*")
_ITEM: Final = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[^,"]*)\s*(?:,|$)', re.DOTALL)
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)?)?")
_WORDS: Final[dict[str, bool]] = {"true": True, "false": False}
_COMPARISONS: Final[dict[str, Callable[[Field, Any], Condition]]] = {
    "=": lambda field, value: field == value,
    "!=": lambda field, value: field != value,
    "<": lambda field, value: field < value,
    "<=": lambda field, value: field <= value,
    ">": lambda field, value: field > value,
    ">=": lambda field, value: field >= value,
}
_EXAMPLES: Final = "price<20, 'brand in acme,globex' or 'brand exists'"


def add_filter(verb: argparse.ArgumentParser) -> None:
    """Add --where and --filter to a command."""
    verb.add_argument(
        "--where",
        metavar="CONDITION",
        action="append",
        help=f"Select points that pass the condition, such as {_EXAMPLES}. May be repeated; "
        "all conditions must pass. Quotes make a text of a number: 'size=\"42\"'.",
    )
    text = "Select points that pass the filter in a JSON file, in the form of Qdrant's filters."
    add_flags(verb, ("--filter", "FILE", text))


def add_restriction(verb: argparse.ArgumentParser) -> None:
    """Add --where, --filter, --exclude-ids and --like to a command."""
    add_filter(verb)
    texts = "Do not return these points.", "Query with the vectors of these points, without FILE."
    for flag, text in zip(("--exclude-ids", "--like"), texts, strict=True):
        verb.add_argument(flag, metavar="ID", nargs="+", help=text)


def add_pages(verb: argparse.ArgumentParser) -> None:
    """Add --already-shown, --paged and --page-token to a command."""
    text = "Take account of these points, which were shown before: results differ from them."
    verb.add_argument("--already-shown", metavar="ID", nargs="+", help=text)
    add_flags(
        verb,
        ("--paged", "", "Show page 1 of several, and the token of page 2. Needs one query row."),
        (
            "--page-token",
            "TOKEN",
            "Show the next page of the same query; TOKEN is of the page before.",
        ),
    )


def filter_of(arguments: argparse.Namespace) -> FilterLike:
    """Return the filter of --where and --filter, or None.

    Raises `InvalidArgumentError` with the field where or filter.
    """
    conditions: list[Any] = [parse_condition(text) for text in arguments.where or ()]
    if arguments.filter is not None:
        conditions.append(_from_file(Path(arguments.filter)))
    if len(conditions) == 1:
        (condition,) = conditions
        result: FilterLike = condition
        return result
    return {"must": conditions} if conditions else None


def ids_of(
    client: Client, arguments: argparse.Namespace, *options: str
) -> list[list[int] | list[str] | None]:
    """Return the ids of some options in the type of the ids of the index; None if not set.

    Raises `InvalidArgumentError` with the option as its field.
    """
    texts = [getattr(arguments, option) for option in options]
    if not any(texts):
        return [None for _ in options]
    kind = client.get_index(arguments.name, timeout=arguments.timeout).id_kind
    return [
        None if ids is None else typed_ids(ids, kind, option)
        for ids, option in zip(texts, options, strict=True)
    ]


def typed_ids(texts: list[str], kind: IdKind, field: str) -> list[int] | list[str]:
    """Return ids of the command line as the ids of an index; raises `InvalidArgumentError`."""
    if kind == "string":
        return texts
    for text in texts:
        if not re.fullmatch(r"[+-]?[0-9]+", text):
            raise invalid(field, f"must be integers in this index, got {text!r}")
    return list(map(int, texts))


def parse_condition(text: str) -> Condition:
    """Return the condition in a text; raises `InvalidArgumentError` with the field where."""
    if match := _PRESENCE.fullmatch(text):
        exists = Field(match["name"]).exists()
        return exists if match["word"] == "exists" else Filter(must_not=(exists,))
    if match := _COMPARISON.fullmatch(text):
        (value,) = _values(match["value"], text, most=1)
        return _COMPARISONS[match["sign"]](Field(match["name"]), value)
    if match := _LIST.fullmatch(text):
        return Field(match["name"]).is_in(_values(match["values"], text))
    raise invalid("where", f"must be a condition such as {_EXAMPLES}, got {text!r:.80}")


def _values(text: str, condition: str, most: int | None = None) -> list[Any]:
    """Return the values in a text that commas separate; a single value may have commas."""
    if most == 1 and not text.startswith('"'):
        return [value_of_text(text.strip())]
    values, place = [], 0
    while place < len(text):
        match = _ITEM.match(text, place)
        if match is None or not match[1].strip():
            rule = "must have values with commas between them, and quotes around both ends"
            raise invalid("where", f"{rule} or around none, got {condition!r:.80}")
        values.append(value_of_text(match[1].strip()))
        place = match.end()
    if most is not None and len(values) > most:
        raise invalid("where", f"must have one value, or `in`, got {condition!r:.80}")
    return values


def value_of_text(text: str) -> Any:  # noqa: ANN401  # a text, a bool, a number or a time
    """Return the value in a text of the command line; raises `InvalidArgumentError`."""
    if text.startswith('"'):
        try:
            return json.loads(text)
        except ValueError:
            raise invalid("where", f"must have texts as in JSON, got {text:.80}") from None
    if text in _WORDS:
        return _WORDS[text]
    if _TIME.fullmatch(text):
        try:
            return datetime.fromisoformat(text)
        except ValueError:
            return text
    for kind in (int, float):
        try:
            number: int | float = kind(text)
        except ValueError:
            continue
        if number == number and "_" not in text:  # noqa: PLR0124  # nan is a text
            return number
    return text


def _from_file(path: Path) -> dict[str, Any]:
    """Return the dictionary in a JSON file."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise invalid("filter", f"must be a file of JSON: {path}: {error}") from None
    if not isinstance(content, dict):
        rule = "must hold an object with must, should or must_not"
        raise invalid("filter", f"{rule}, {path} does not")
    return content
