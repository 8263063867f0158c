"""How the page shows a point: its title, its picture and its attributes."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from divgrpc.types.records import AttributeValue, Record
from divgrpc_client.formats.titles import Id

if TYPE_CHECKING:
    from divgrpc_client.formats.pictures import Pictures

_TITLE_LENGTH_MAX: Final = 400
_VALUE_LENGTH_MAX: Final = 60


@dataclass(frozen=True, slots=True)
class Looks:
    """Where titles and pictures of points come from.

    titles: titles by id, from a file.
    attribute: name of the attribute that is the title; empty for none.
    has_payload_titles: whether payloads are the titles. Of a payload that is a JSON object with a
        text `title`, this text is the title.
    pictures: pictures by id, None for none.
    """

    titles: Mapping[Id, str] = field(default_factory=dict)
    attribute: str = ""
    has_payload_titles: bool = False
    pictures: "Pictures | None" = None

    def title(self, record: Record) -> str:
        """Return the title of a point, shortened if it is long; empty if it has none."""
        title = self.titles.get(record.id, "")
        if self.attribute:
            title = _text(record.attributes.get(self.attribute))
        elif self.has_payload_titles:
            title = _payload_title(record.payload)
        return _short(" ".join(title.split()), _TITLE_LENGTH_MAX)

    def facts(self, record: Record, quota_attributes: Sequence[str] = ()) -> list[tuple[str, str]]:
        """Return names and values of the attributes that the title does not show.

        quota_attributes: names of attributes that come first in any case.
        """
        attributes = {**dict.fromkeys(quota_attributes), **record.attributes}
        return [
            (name, "no value" if _is_missing(value) else _short(_text(value), _VALUE_LENGTH_MAX))
            for name, value in attributes.items()
            if name in quota_attributes or not (name == self.attribute or _is_missing(value))
        ]


def _payload_title(payload: bytes) -> str:
    text = payload.decode(errors="replace")
    if text.startswith("{"):
        try:
            content: Any = json.loads(text)
        except ValueError:
            return text
        title = content.get("title")
        return title if isinstance(title, str) else text
    return text


def _is_missing(value: AttributeValue) -> bool:
    return value is None or value == ()


def _text(value: AttributeValue) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_text, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else str(value)


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1].rstrip()}…"
