"""Checks of the fields of parameter dataclasses, by type hints and by check functions.

A check also converts a valid value to a plain Python int, float or str, because numpy's integers
can overflow and numpy's types cannot be written as JSON. For an invalid value, the check raises
`InvalidArgumentError` with the name of the field.
"""

import dataclasses
import math
import numbers
import operator
from collections.abc import Callable
from types import NoneType
from typing import Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

from divgrpc.errors import invalid
from divgrpc.parameters.suggestions import refuse_word

# A function of an object, the name of a field and its value. Raises an error for an invalid value.
Check: TypeAlias = Callable[[object, str, Any], None]


class FieldChecks:
    """Checks all fields of a dataclass.

    Fields with a `Literal` or bool hint are checked by their hint. Any other field is checked by
    the function of the same name in `checks`, if there is one. A field may be None if its hint
    allows None. Default values are not checked, because that would noticeably slow down small
    queries.
    """

    def __init__(self, **checks: Check) -> None:
        self._checks = checks
        self._fields: list[tuple[str, Any, bool, Check]] = []

    def __call__(self, owner: object) -> None:
        """Check the fields of an object; all calls must pass objects of the same class."""
        self._fields = self._fields or self._fields_of(type(owner))
        for field, default, may_be_none, check in self._fields:
            value = getattr(owner, field)
            if value is not default and (value is not None or not may_be_none):
                check(owner, field, value)

    def _fields_of(self, kind: type) -> list[tuple[str, Any, bool, Check]]:
        """Return each field's name, its default, whether it may be None, and its check."""
        checks = []
        defaults = {field.name: field.default for field in dataclasses.fields(kind)}
        for field, hint in get_type_hints(kind).items():
            members = get_args(hint)
            plain = members[0] if NoneType in members and len(members) == 2 else hint
            check = check_bool if plain is bool else self._checks.get(field)
            if get_origin(plain) is Literal:
                check = _one_of(get_args(plain))
            if check is not None:
                checks.append((field, defaults[field], NoneType in members, check))
        return checks


def _one_of(choices: tuple[str, ...]) -> Check:
    def check(owner: object, field: str, value: Any) -> None:  # noqa: ANN401  # whatever a caller passes
        if not isinstance(value, str) or value not in choices:
            refuse_word(field, value, choices)
        if type(value) is not str:
            object.__setattr__(owner, field, choices[choices.index(value)])

    return check


def check_bool(_: object, field: str, value: Any) -> None:  # noqa: ANN401  # whatever a caller passes
    """Check a truth value."""
    if not isinstance(value, bool):
        raise invalid(field, f"must be true or false, got {value!r}")


def whole(low: int, high: int) -> Check:
    """Return a check that a value is an integer from `low` to `high`."""

    def check(owner: object, field: str, value: Any) -> None:  # noqa: ANN401  # whatever a caller passes
        if type(value) is int and low <= value <= high:
            return
        try:
            number = operator.index(value)
        except TypeError:
            number = None
        # Refuse bools, which Python would accept as integers because bool is a subclass of int.
        if number is None or isinstance(value, bool):
            raise invalid(field, f"must be a whole number, got {value!r}")
        if not low <= number <= high:
            raise invalid(field, f"must be between {low} and {high}, got {number}")
        object.__setattr__(owner, field, number)

    return check


def real(words: str, holds: Callable[[float], bool]) -> Check:
    """Return a check that a value is a finite number for which `holds` is true.

    `words` describe the valid range in error messages.
    """

    def check(owner: object, field: str, _: Any) -> None:  # noqa: ANN401  # whatever a caller passes
        if not holds(number := check_number(owner, field)):
            raise invalid(field, f"must be {words}, got {number}")

    return check


def check_number(owner: object, field: str, *, exception: float | None = None) -> float:
    """Check that a field is a finite number or equals `exception`; store and return it as float."""
    value = getattr(owner, field)
    if type(value) is float and value and math.isfinite(value):
        return value
    # Check the type first, because float() would also convert strings and bools.
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise invalid(field, f"must be a number, got {value!r}")
    # Adding 0.0 turns -0.0 into 0.0, so that equal parameters look equal in responses.
    try:
        number = float(value) + 0.0
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) and number != exception:
        raise invalid(field, f"must be finite, got {number}")
    object.__setattr__(owner, field, number)
    return number
