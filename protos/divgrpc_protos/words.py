"""Words of Python to enum values of the contract and back.

The word ``"lsh_sdiv"`` of `hash_family` is ``HASH_FAMILY_LSH_SDIV``. The name of the enum's value 0
gives the prefix, so no table of words is needed.
"""

from functools import cache

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor


@cache
def _words(enum: EnumDescriptor) -> tuple[dict[str, int], dict[int, str]]:
    prefix = next(v.name for v in enum.values if v.number == 0).removesuffix("UNSPECIFIED")
    to_value = {v.name.removeprefix(prefix).lower(): v.number for v in enum.values if v.number != 0}
    return to_value, {number: word for word, number in to_value.items()}


def to_enum(field: FieldDescriptor, word: str) -> int | None:
    """Return the enum value of a word, None if the enum has no such word."""
    return _words(field.enum_type)[0].get(word)


def to_word(field: FieldDescriptor, value: int) -> str | None:
    """Return the word of an enum value; None for the unspecified and for unknown ones."""
    return _words(field.enum_type)[1].get(value)
