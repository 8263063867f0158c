"""Selects candidates greedily within quotas, by the rule of any selector that picks one by one.

A quota bounds how many picks may count for a value of an attribute. Each pair of an attribute and a
bounded value has a number, and each candidate has a list of the numbers that it counts for.

If the quotas are about one attribute with one value per point, the selections that can be completed
are the independent sets of a matroid, lower bounds included. A pick is then possible if its value
has room, and if the places that are left suffice for the values that still need results. With more
attributes, these conditions are necessary but may lead to a dead end. The caller then starts again
with `Follow`: a list of candidates that completes the picks, by signature (the set of the numbers
that a candidate counts for). A candidate whose signature is in the list may be picked. For another
one, `pick_within` stops and asks the caller, who changes the list or refuses the signature.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from divgrpc.kernels.greedy import add_pick
from divgrpc.kernels.jit import allocating, kernel
from divgrpc.kernels.pairwise import COPY, COUNTED_COPY, PICK, far_from, is_kept
from divgrpc.kernels.stepwise import add_pivot, add_roots_of

# How `apart` of a candidate follows from its distances from the picks: their sum, their minimum,
# the sum of their square roots, or the logarithm of the candidate's remainder (`max_sum_dpp`).
BY_SUM = 0
BY_LEAST = 1
BY_ROOTS = 2
BY_VOLUME = 3

# Places in `progress`: numbers of picks, of near-copies among the picks, of near-copies of picks,
# of pivots, and the candidate that `pick_within` asks about.
PICKS = 0
FILLERS = 1
COPIES = 2
PIVOTS = 3
ASKED = 4
PROGRESS_SIZE = 5

# A value of `verdicts`.
REFUSED = 1

# Why a candidate is refused: a value has as many picks as it may have; the picks that are left are
# needed for another value; there are as many groups as there may be; or no further picks meet all
# quotas together.
BY_MAX = 0
BY_MIN = 1
BY_GROUPS = 2
BY_ALL = 3

Int64s = npt.NDArray[np.int64]
UInt8s = npt.NDArray[np.uint8]


class QuotaBounds(NamedTuple):
    """The bounds of quotas on n values of A attributes, and the values of m candidates.

    starts: (m + 1,); candidate i counts for values[starts[i] : starts[i + 1]].
    values: numbers of values, from 0 to n - 1; those of one candidate differ.
    lows, highs: (n,) bounds on the number of picks that count for a value.
    attributes: (n,) number of the attribute that each value belongs to, from 0 to A - 1.
    single: (A,) whether candidates count for at most one value of the attribute.
    groups: maximum number of values that picks count for; 0 for no limit.
    """

    starts: Int64s
    values: Int64s
    lows: Int64s
    highs: Int64s
    attributes: Int64s
    single: UInt8s
    groups: int


class Follow(NamedTuple):
    """Candidates that complete the picks, by signature; all arrays are empty if there are none.

    signatures: (m,) number of the signature of each candidate.
    room: (s,) how many further candidates of each signature the completion has.
    verdicts: (s,) REFUSED for a signature that no completion of the picks has.
    """

    signatures: Int64s
    room: Int64s
    verdicts: UInt8s


class QuotaState(NamedTuple):
    """What `pick_within` remembers; all numbers are 0 at first, but `remainders` are 1.

    picks: (k,) places of the picks. gains: (k,) float32, minus the value of each pick, or of a
        near-copy its distance.
    apart: (m,) float32 or float64. closed: (m,) whether a candidate is a pick or a near-copy.
    standing: (m,) as in `pairwise`; empty if near-copies are kept.
    counts: (n,) number of picks that count for each value. tight: (n,) and needs: (A,) are scratch
        memory.
    opened: (1,) number of values that picks count for.
    progress: (PROGRESS_SIZE,).
    factor, remainders: (m, k) and (m,) float64 for BY_VOLUME, else empty.
    """

    picks: Int64s
    gains: npt.NDArray[np.float32]
    apart: npt.NDArray[np.floating[Any]]
    closed: UInt8s
    standing: npt.NDArray[np.int8]
    counts: Int64s
    tight: UInt8s
    needs: Int64s
    opened: Int64s
    progress: Int64s
    factor: npt.NDArray[np.float64]
    remainders: npt.NDArray[np.float64]

    @classmethod
    def of_counts(cls, values: int, attributes: int) -> "QuotaState":
        """Return the state before the first of picks that are known, with counts alone."""
        none, bytes_, floats = np.empty(0, np.int64), np.empty(0, np.uint8), np.empty(0)
        return cls(
            picks=none,
            gains=np.empty(0, np.float32),
            apart=floats,
            closed=bytes_,
            standing=np.empty(0, np.int8),
            counts=np.zeros(values, np.int64),
            tight=np.zeros(values, np.uint8),
            needs=np.zeros(attributes, np.int64),
            opened=np.zeros(1, np.int64),
            progress=none,
            factor=np.empty((0, 0)),
            remainders=floats,
        )


@allocating
def number_values(numbers):
    """Return the different ones of m numbers, and where and how often each occurs.

    These are the different numbers (n,), ascending, the place (m,) of each number among them, and
    how often each of them occurs (n,).
    """
    m, size = numbers.shape[0], 16
    while size < 2 * m:
        size *= 2
    # `table` has the numbers in the order of first appearance, by their hashes.
    table, keys = np.full(size, -1, np.int64), np.empty(m, np.int64)
    places, n_keys, mask = np.empty(m, np.int64), 0, size - 1
    for i in range(m):
        mixed = np.uint64(numbers[i]) * np.uint64(0x9E3779B97F4A7C15)
        slot = np.int64(mixed >> np.uint64(32)) & mask
        while table[slot] >= 0 and keys[table[slot]] != numbers[i]:
            slot = (slot + 1) & mask
        if table[slot] < 0:
            table[slot], keys[n_keys] = n_keys, numbers[i]
            n_keys += 1
        places[i] = table[slot]
    order, ranks = np.argsort(keys[:n_keys]), np.empty(n_keys, np.int64)
    for rank in range(n_keys):
        ranks[order[rank]] = rank
    counts = np.zeros(n_keys, np.int64)
    for i in range(m):
        places[i] = ranks[places[i]]
        counts[places[i]] += 1
    return keys[:n_keys][order], places, counts


@allocating
def pick_within(
    points, rows, costs, distances, weights, relevance, how, similarity, unit, copy_limit, bounds,
    follow, selection, state,
):  # fmt: skip
    """Pick until there are len(weights) picks or none is possible; return whether it asks.

    Step i picks the candidate of smallest relevance * cost - weights[i] * apart, the first one if
    several have this value. `rows` (count,) int32, `costs` and `distances` (count,) float32 are in
    the order of distances; `costs` and `weights` (k,) have the type of `state.apart`. `how` is
    BY_SUM to BY_VOLUME; `similarity` and `unit` are as in `max_sum_dpp.determinant`.

    Near-copies within `copy_limit` are picked only if no other candidate is possible, the nearest
    first. `bounds`: `QuotaBounds`; `follow`: `Follow`; `state`: `QuotaState`, in which a call goes
    on where the last one has stopped.
    """
    count, k, progress = len(rows), len(weights), state.progress
    collapses, follows = copy_limit >= 0, follow.signatures.shape[0] > 0
    while progress[PICKS] < k:
        step = progress[PICKS]
        n_tight = _mark_tight(bounds, state, k - step)
        best, least = -1, state.apart[0]
        for i in range(count):
            if state.closed[i] or not _is_possible(i, n_tight, bounds, follow, state):
                continue
            value = relevance * costs[i] - weights[step] * state.apart[i]
            if best < 0 or value < least:
                best, least = i, value
        is_original = best < 0 or not collapses
        if not (is_original or is_kept(points, rows, best, copy_limit, state.standing, selection)):
            state.closed[best] = 1
            continue
        if best < 0:
            best = _nearest_copy(count, n_tight, bounds, follow, state)
            if best < 0:
                return False
            least = distances[best]
            progress[FILLERS] += 1
        elif follows and not follow.room[follow.signatures[best]]:
            progress[ASKED] = best
            return True
        _count(best, bounds, follow, state)
        state.picks[step], state.gains[step], state.closed[best] = best, -least, 1
        progress[PICKS] += 1
        if how == BY_VOLUME and step + 1 < k:
            progress[PIVOTS] = add_pivot(
                points, rows, best, unit, similarity, state.factor, progress[PIVOTS],
                state.remainders, state.apart,
            )  # fmt: skip
        if collapses or (how != BY_VOLUME and step + 1 < k):
            far_from(points, rows, count, best, selection, selection.far)
            _add_pick(selection.far, count, how, step, state.apart)
        if collapses:
            state.standing[best] = PICK
            progress[COPIES] += _close_copies(selection.far, count, copy_limit, state)
    return False


@kernel
def _mark_tight(bounds, state, left):
    """Mark values that the next pick must count for if the quotas are to be met in `left` picks.

    Returns how many of its values must be marked: one of each attribute whose points have one value
    each, and every marked one of other attributes.
    """
    state.needs[:] = 0
    n_values, n_tight = bounds.lows.shape[0], 0
    for v in range(n_values):
        if state.counts[v] < bounds.lows[v]:
            state.needs[bounds.attributes[v]] += bounds.lows[v] - state.counts[v]
    for v in range(n_values):
        need = max(0, bounds.lows[v] - state.counts[v])
        a = bounds.attributes[v]
        if bounds.single[a]:
            state.tight[v] = need > 0 and state.needs[a] >= left
        else:
            state.tight[v] = need >= left
            n_tight += need >= left
    for a in range(bounds.single.shape[0]):
        n_tight += bounds.single[a] and state.needs[a] >= left
    return n_tight


@kernel
def _is_possible(i, n_tight, bounds, follow, state):
    """Return whether the bounds of its own values let a candidate be the next pick."""
    n_met, is_new = 0, False
    for j in range(bounds.starts[i], bounds.starts[i + 1]):
        v = bounds.values[j]
        if state.counts[v] >= bounds.highs[v]:
            return False
        is_new = state.counts[v] == 0
        n_met += state.tight[v]
    if follow.signatures.shape[0]:
        return follow.verdicts[follow.signatures[i]] != REFUSED
    if bounds.groups and is_new and state.opened[0] >= bounds.groups:
        return False
    return n_met == n_tight


@kernel
def explain_refusals(picks, target, places, steps, bounds, state, rules, values):
    """Write why quotas refused candidates; the picks are to become `target`.

    picks: (n,) positions of the picks in their order. places, steps: (r,) positions of the
        candidates, and the numbers of the picks before which they are refused. `state`: a new
        `QuotaState`.
    rules, values: (r,) the outputs: BY_MAX to BY_ALL, and the number of the value that the rule is
        about, -1 for BY_ALL.
    """
    for step in range(picks.shape[0]):
        _mark_tight(bounds, state, target - step)
        for r in range(places.shape[0]):
            if steps[r] == step:
                rules[r], values[r] = _refusal_of(places[r], bounds, state)
        for j in range(bounds.starts[picks[step]], bounds.starts[picks[step] + 1]):
            state.counts[bounds.values[j]] += 1


@kernel
def _refusal_of(i, bounds, state):
    """Return why the next pick cannot be candidate i, and the number of the value."""
    start, stop = bounds.starts[i], bounds.starts[i + 1]
    for j in range(start, stop):
        if state.counts[bounds.values[j]] >= bounds.highs[bounds.values[j]]:
            return BY_MAX, bounds.values[j]
    for v in range(bounds.lows.shape[0]):
        if not state.tight[v]:
            continue
        a, is_met = bounds.attributes[v], False
        for j in range(start, stop):
            same = bounds.values[j] == v
            if bounds.single[a]:
                same = bounds.attributes[bounds.values[j]] == a and state.tight[bounds.values[j]]
            is_met |= same
        if not is_met:
            return BY_MIN, v
    return (BY_GROUPS, bounds.values[start]) if bounds.groups else (BY_ALL, np.int64(-1))


@kernel
def _nearest_copy(count, n_tight, bounds, follow, state):
    """Return the nearest near-copy that is possible, or -1."""
    for i in range(count if state.standing.shape[0] else 0):
        is_copy = COPY <= state.standing[i] <= COUNTED_COPY
        if not is_copy or not _is_possible(i, n_tight, bounds, follow, state):
            continue
        if not follow.signatures.shape[0] or follow.room[follow.signatures[i]]:
            return i
    return -1


@kernel
def _count(best, bounds, follow, state):
    """Count a pick."""
    for j in range(bounds.starts[best], bounds.starts[best + 1]):
        state.opened[0] += state.counts[bounds.values[j]] == 0
        state.counts[bounds.values[j]] += 1
    if follow.signatures.shape[0]:
        follow.room[follow.signatures[best]] -= 1


@kernel
def _add_pick(far, count, how, step, apart):
    """Update `apart` with the distances of the candidates from a new pick."""
    if how == BY_ROOTS:
        add_roots_of(far, count, apart)
    elif how != BY_VOLUME:
        add_pick(far, count, how == BY_LEAST and step > 0, apart)


@kernel
def _close_copies(far, count, limit, state):
    """Close the near-copies of a pick; return how many of them were not yet counted."""
    copies = 0
    for i in range(count):
        if far[i] <= limit and state.standing[i] < PICK:
            copies += state.standing[i] < COUNTED_COPY
            state.standing[i] = COUNTED_COPY
            state.closed[i] = 1
    return copies
