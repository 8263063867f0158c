"""Processes of a server are killed under load, which `support.loads.kill_rounds` makes.

`make crash` makes 1,000 rounds.
"""

import itertools
import time
from collections import Counter
from functools import partial

import grpc
import pytest

from divgrpc_client.rpc.errors import Failure, rpc_error
from support.loads import kill_rounds
from support.loads.history import Caller
from support.loads.kill_rounds import EXCUSED, MOMENTS, Journal, Kill
from support.loads.killed_server import VICTIMS

# On a busy machine, a round takes longer, and there are fewer.
ROUNDS, SECONDS, SEED = 14, 30.0, 5


def test_no_kill_loses_a_write_or_a_call_of_others() -> None:
    """Every answer has the bytes of the model at its version, and nothing is left over."""
    figures = kill_rounds.run(ROUNDS, SEED, seconds=SECONDS)
    print(kill_rounds.report(figures))  # noqa: T201  # seeds and figures of a test that fails
    assert figures.faults == []
    assert figures.rounds.total() >= 1
    assert figures.answers >= 50


def test_each_role_is_killed_at_each_moment() -> None:
    rounds = list(itertools.islice(kill_rounds.schedule(0), len(VICTIMS) * len(MOMENTS)))
    assert {victim for victim, _ in rounds[: len(VICTIMS)]} == set(VICTIMS)
    assert set(Counter(victim for victim, _ in rounds).values()) == {len(MOMENTS)}
    free_victims = [victim for victim in VICTIMS if victim not in ("builder", "evaluator")]
    assert {(victim, moment) for victim in free_victims for moment in MOMENTS} <= set(rounds)
    assert rounds == list(itertools.islice(kill_rounds.schedule(0), len(rounds)))


@pytest.mark.parametrize("victim", VICTIMS)
def test_calls_that_a_kill_does_not_excuse_are_lost(victim: str) -> None:
    """A call is excused if it ran while its role was down, and if it ended as UNAVAILABLE."""
    journal, caller, now = Journal(), StillCaller(), time.monotonic()
    for kind in MOMENTS:
        journal.make(kind, "caller", caller, partial(fail, "UNAVAILABLE"))
    assert len(journal.lost) == len(MOMENTS)
    journal.kills.append(Kill(victim, "query", now))
    for kind in MOMENTS:
        journal.make(kind, "caller", caller, partial(fail, "UNAVAILABLE"))
    assert len(journal.lost) == 2 * len(MOMENTS) - len(EXCUSED[victim])
    assert sum(journal.calls[kind, victim] for kind in MOMENTS) == len(EXCUSED[victim])
    count = len(journal.lost)
    journal.make("query", "caller", caller, partial(fail, "INTERNAL"))
    journal.kills[-1].end = now
    journal.make("query", "caller", caller, partial(fail, "UNAVAILABLE"))
    assert len(journal.lost) == count + 2
    assert journal.make("query", "caller", caller, lambda: None)
    assert len(journal.lost) == count + 2


def fail(code: str) -> None:
    raise rpc_error(Failure(grpc.StatusCode[code], "", "", "Query", "", 0.0))


class StillCaller(Caller):
    """A caller without connections."""

    def __init__(self) -> None:
        pass

    def reconnect(self) -> None:
        """Do nothing."""
