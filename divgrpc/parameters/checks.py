"""Checks of single parameters: what passes is Python's own number or word.

Errors are `InvalidArgumentError` with the field named.
"""

import math
import numbers
import operator

from divgrpc.errors import InvalidArgumentError
from divgrpc.parameters.suggestions import refuse_word


def check_choice(owner: object, field: str, choices: tuple[str, ...]) -> None:
    """Check that a word is one of the choices and leave it as Python's own."""
    value = getattr(owner, field)
    if not isinstance(value, str) or value not in choices:
        refuse_word(field, value, choices)
    if type(value) is not str:
        object.__setattr__(owner, field, choices[choices.index(value)])


def check_integer(owner: object, field: str, low: int, high: int) -> int:
    """Check a whole number and leave it as Python's own: numpy's overflow, and JSON has none."""
    value = getattr(owner, field)
    if type(value) is int and low <= value <= high:
        return value
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    # bool is an int to Python, never to a caller who passes it as a count.
    if number is None or isinstance(value, bool):
        raise InvalidArgumentError(field, f"{field} must be a whole number, got {value!r}")
    if not low <= number <= high:
        raise InvalidArgumentError(field, f"{field} must be between {low} and {high}, got {number}")
    object.__setattr__(owner, field, number)
    return number


def check_number(owner: object, field: str, *, allowed: float | None = None) -> float:
    """Check a finite number, or the one `allowed` that is not, and leave it as Python's own."""
    value = getattr(owner, field)
    if type(value) is float and value and math.isfinite(value):
        return value
    # What float() takes is too much: it reads texts and truth values.
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise InvalidArgumentError(field, f"{field} must be a number, got {value!r}")
    # Minus zero is zero: equal parameters must not differ in an answer that names them.
    try:
        number = float(value) + 0.0
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) and number != allowed:
        raise InvalidArgumentError(field, f"{field} must be finite, got {number}")
    object.__setattr__(owner, field, number)
    return number
