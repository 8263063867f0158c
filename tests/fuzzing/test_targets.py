"""A bounded run of each target of the fuzzer, with the same inputs in each run.

`make fuzz` runs the targets with atheris, which looks for inputs that reach new code.
"""

import pytest

from fuzzing.mutants import run
from fuzzing.targets import FRAMES, TARGETS, Target, corpus_of


@pytest.mark.parametrize("name", TARGETS)
def test_kept_inputs_are_read_or_refused(name: str) -> None:
    for data in corpus_of(name):
        TARGETS[name].run(data)


@pytest.mark.parametrize("name", TARGETS)
def test_changed_inputs_are_read_or_refused(name: str) -> None:
    target = TARGETS[name]
    for data in (*target.seeds, b""):
        target.run(data)
    run(name, count=600, seed=0)


def test_frames_are_targets() -> None:
    assert set(FRAMES) < TARGETS.keys()


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
