"""Shows a diagnosis as text for people."""

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from divgrpc.types import CopyShare, DefaultEffect, Diagnosis, Interval, ValueCopies
from divgrpc_client.formats.tables import console, table

_SETTINGS = {
    "diversity": "the dial alone",
    "duplicate_threshold": "collapsing alone",
    "both": "both, as by default",
}
_PARAMETERS = {"diversity": "dial", "duplicate_threshold": "collapsing"}
_SWITCHES = {"diversity": "diversity=0", "duplicate_threshold": "keep_duplicates=True"}


def show(diagnosis: Diagnosis, name: str) -> None:
    """Print the answer, the advice with its reasons, and the figures."""
    out = console()
    out.print(Text(_answer(diagnosis, name), style="bold"))
    for advice in diagnosis.advice:
        parameter = _PARAMETERS.get(advice.parameter, advice.parameter)
        word = "on" if advice.use else f"off, with {_SWITCHES.get(advice.parameter, '')}"
        line = f"\n{parameter} ({advice.parameter} {advice.value:.3g}): {word}\n  {advice.reason}"
        out.print(Text(line))
    for part in _tables(diagnosis):
        out.print()
        out.print(part)
    sampling = f"{diagnosis.sampled:,} of {diagnosis.rows:,} points were sampled"
    out.print(Text(f"\n{sampling}, and {diagnosis.queries:,} of them were used as queries."))


def _answer(diagnosis: Diagnosis, name: str) -> str:
    if not diagnosis.results:
        return f"{name} has too few points to say whether it crowds."
    copies = diagnosis.results - diagnosis.different
    word = "crowds" if diagnosis.is_crowded else "does not crowd"
    return (
        f"{name} {word}: of the {diagnosis.results:.3g} nearest points, "
        f"{copies:.2g} are near-copies of nearer ones."
    )


def _tables(diagnosis: Diagnosis) -> Iterator[Table]:
    measure = "squared distance" if diagnosis.metric == "euclidean" else "cosine"
    shares = table(measure, ">points with a near-copy", ">95 %", ">near-copies of a point")
    shares.title = "Near-copies"
    for share in diagnosis.shares:
        is_default = share.threshold == diagnosis.default_threshold
        threshold = f"{share.threshold:.4g}{' (default)' if is_default else ''}"
        shares.add_row(threshold, *_share(share), f"{share.copies:.3g}")
    yield shares
    for attribute in dict.fromkeys(copies.attribute for copies in diagnosis.by_value):
        yield _values(diagnosis, attribute)
    effects = table("defaults", ">different results", ">farther apart", ">less relevant")
    effects.title = "What the defaults change"
    for effect in diagnosis.effects:
        effects.add_row(*_effect(effect))
    yield effects


def _values(diagnosis: Diagnosis, attribute: str) -> Table:
    """Return the shares of the points with each value, at three thresholds."""
    thresholds = [share.threshold for share in diagnosis.shares]
    places = {0, len(thresholds) - 1}
    if diagnosis.default_threshold in thresholds:
        places.add(thresholds.index(diagnosis.default_threshold))
    names = [f">at {thresholds[place]:.4g}" for place in sorted(places)]
    values = table(attribute, ">sampled", *names)
    values.title = f"Points with a near-copy, by {attribute}"
    for copies in diagnosis.by_value:
        if copies.attribute == attribute:
            values.add_row(*_value(copies, sorted(places)))
    return values


def _value(copies: ValueCopies, places: list[int]) -> Iterator[str]:
    yield "(none)" if copies.value is None else str(copies.value)
    yield f"{copies.sampled:,}"
    for place in places:
        yield _percent(copies.shares[place].share.value)


def _share(share: CopyShare) -> tuple[str, str]:
    return _percent(share.share.value), _ends(share.share)


def _effect(effect: DefaultEffect) -> tuple[str, str, str, str]:
    name = _SETTINGS.get(effect.setting, effect.setting)
    figures = [f"{_percent(e.value)} ({_ends(e)})" for e in (effect.gain, effect.loss)]
    return name, f"{effect.different:.3g}", figures[0], figures[1]


def _ends(interval: Interval) -> str:
    return f"{_percent(interval.low)} to {_percent(interval.high)}"


def _percent(share: float) -> str:
    return f"{round(100 * share, 1) + 0.0:.1f} %"
