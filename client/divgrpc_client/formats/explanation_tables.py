"""Tables that explain results, and that report how diverse they are."""

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
from rich.markup import escape
from rich.table import Table

from divgrpc.types import Explanation, QueryResult, Refusal, Report
from divgrpc_client.formats import tables

# Maximum number of displaced points that a table shows for each query.
_DISPLACED_SHOWN: Final = 10


def show(answer: QueryResult, rows: range) -> None:
    """Print the explanations and the report of a result, if it has them.

    rows: the numbers of its rows in the file of queries.
    """
    out = tables.console()
    if answer.explanations:
        out.print(_results(answer, rows))
        grid, left_out = _displaced(answer, rows)
        if grid.row_count:
            out.print(grid)
        if left_out:
            out.print(f"{left_out:,} more displaced points: --json lists them", style="dim")
    if answer.report is not None:
        out.print(_report(answer.report))


def _results(answer: QueryResult, rows: range) -> Table:
    heads = [">relevance term", ">penalty", "nearest earlier result"]
    has_refusals = any(one.refusals for one in answer.explanations)
    heads += ["better, but refused"] if has_refusals else []
    grid = tables.table(">row", ">rank", ">id", ">plain rank", *heads, title="why each result")
    for place, (row, explanation) in enumerate(zip(rows, answer.explanations, strict=True)):
        for rank in range(len(explanation.plain_ranks)):
            grid.add_row(
                "" if rank else str(row),
                str(rank + 1),
                escape(str(answer.ids[place, rank])),
                str(explanation.plain_ranks[rank]),
                # Adding zero turns -0.0 into 0.0.
                f"{explanation.relevance_terms[rank] + 0.0:.4f}",
                f"{explanation.penalties[rank] + 0.0:.4f}",
                _near(explanation.caused_by[rank], explanation.distances[rank]),
                *([_held_back(explanation, rank)] if has_refusals else []),
            )
    return grid


def _held_back(explanation: Explanation, rank: int) -> str:
    """Return which point quotas refused when a result was picked, and why."""
    place = int(explanation.held_back[rank])
    refusal = explanation.refusal(place)
    if refusal is None:
        return ""
    return escape(f"{explanation.displaced_ids[place]}: {refusal_words(refusal)}")


def refusal_words(refusal: Refusal) -> str:
    """Return why quotas refused a point, as a clause in the past tense."""
    value = f"the group without {refusal.attribute}"
    if refusal.value is not None:
        value = f"{refusal.attribute} = {refusal.value}"
    clauses = {
        "max": f"{value} was full",
        "min": f"the remaining places were needed for {value}",
        "groups": f"{value} would have been one group too many",
    }
    return clauses.get(refusal.rule, "no further results would have met all quotas")


def _displaced(answer: QueryResult, rows: range) -> tuple[Table, int]:
    """Return a table of displaced points, and the number of those that it leaves out."""
    heads = [">displaced id", ">score", ">plain rank", ">lost to", "it is near"]
    has_refusals = any(one.refusals for one in answer.explanations)
    heads += ["refused because"] if has_refusals else []
    grid = tables.table(">row", *heads, title="more relevant points that are no results")
    left_out = 0
    for place, (row, explanation) in enumerate(zip(rows, answer.explanations, strict=True)):
        count = len(explanation.displaced_ids)
        left_out += max(0, count - _DISPLACED_SHOWN)
        for number in range(min(count, _DISPLACED_SHOWN)):
            winner = answer.ids[place, explanation.displaced_by[number]]
            cause = explanation.displaced_caused_by[number]
            grid.add_row(
                "" if number else str(row),
                escape(str(explanation.displaced_ids[number])),
                f"{explanation.displaced_scores[number]:.4f}",
                str(explanation.displaced_plain_ranks[number]),
                escape(str(winner)),
                _near(cause, explanation.displaced_distances[number]),
                *([_because(explanation.refusal(number))] if has_refusals else []),
            )
    return grid, left_out


def _because(refusal: Refusal | None) -> str:
    return "" if refusal is None else escape(refusal_words(refusal))


def _report(measures: Report) -> Table:
    grid = tables.table("mean over queries", ">results", ">plain results", title="report")
    for name, values, plain_values in _lines(measures):
        grid.add_row(name, _mean(values), _mean(plain_values))
    return grid


def _lines(
    measures: Report,
) -> Iterator[tuple[str, npt.NDArray[np.float64], npt.NDArray[np.float64]]]:
    yield "mean distance of pairs", measures.mean_distances, measures.plain_mean_distances
    yield "least distance of pairs", measures.least_distances, measures.plain_least_distances
    yield "score", measures.mean_scores, measures.plain_mean_scores
    yield "objective J, lower is better", measures.objectives, measures.plain_objectives
    for name, values in measures.entropies.items():
        yield f"entropy of {escape(name)}", values, measures.plain_entropies[name]


def _mean(values: npt.NDArray[np.float64]) -> str:
    numbers = values[~np.isnan(values)]
    return f"{numbers.mean():.4f}" if len(numbers) else "-"


def _near(cause: object, distance: float) -> str:
    return "" if np.isnan(distance) else f"{escape(str(cause))} at {distance:.4f}"
