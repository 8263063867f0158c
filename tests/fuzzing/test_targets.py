"""A bounded run of each target of the fuzzer, with the same inputs in each run.

`make fuzz` runs the targets with atheris, which looks for inputs that reach new code.
"""

import random
from typing import Final

import pytest

from fuzzing.targets import TARGETS, Target, corpus_of
from support.requests.mutators import change_bytes

_MUTANTS: Final = 600


@pytest.mark.parametrize("name", TARGETS)
def test_kept_inputs_are_read_or_refused(name: str) -> None:
    for data in corpus_of(name):
        TARGETS[name].run(data)


@pytest.mark.parametrize("name", TARGETS)
def test_changed_inputs_are_read_or_refused(name: str) -> None:
    target = TARGETS[name]
    for data in (*target.seeds, b""):
        target.run(data)
    draw = random.Random(name)
    pool = [*target.seeds, *corpus_of(name)]
    for _ in range(_MUTANTS):
        data = draw.choice(pool)
        for _ in range(draw.choice((1, 1, 2, 4))):
            data = change_bytes(draw, data)
        target.run(data)


def test_seeds_are_valid() -> None:
    """Most seeds are read without an error, so that mutants reach more than the first check."""
    for name, target in TARGETS.items():
        if name not in ("layout", "page_token"):
            assert target.seeds, name
            for data in target.seeds:
                target.read(data)


def test_other_errors_are_defects() -> None:
    def fail(data: bytes) -> None:
        raise KeyError(data)

    target = Target(fail, (b"",), lambda error: isinstance(error, ValueError))
    with pytest.raises(KeyError):
        target.run(b"x")
