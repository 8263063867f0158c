"""Curves as SVG for a page: its ink, its font, colours that a page may change in the dark.

Text stays text and takes the page's font. Every colour is one of a page's variables with the light
one to fall back on, so that a drawing is right outside a page too. The same curves give the same
bytes.
"""

import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal
from xml.sax.saxutils import escape

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

# The hues of Okabe and Ito (2008), which the colour-blind tell apart, darkened to stand on white.
COLOURS: Final = (
    "#0072b2",
    "#c44e00",
    "#00805f",
    "#a8508c",
    "#8a6d00",
    "#2f8fc4",
    "#4b4f58",
    "#b3202a",
)
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "*", "p")
FILLS: Final[Sequence[Literal["full", "none", "left", "bottom", "right", "top"]]] = (
    "full",
    "none",
    "left",
    "bottom",
    "right",
    "top",
)
INK: Final = "#1c2028"
FAINT: Final = "#5b6370"
LINE: Final = "#dcdfe5"
PAPER: Final = "#ffffff"
_NAMES: Final = {
    INK: "currentColor",
    FAINT: f"var(--faint, {FAINT})",
    LINE: f"var(--line, {LINE})",
    PAPER: f"var(--paper, {PAPER})",
    **{colour: f"var(--series-{n}, {colour})" for n, colour in enumerate(COLOURS, 1)},
}
_HEAD: Final = """\
<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" \
viewBox="0 0 {width:g} {height:g}" role="img" style="stroke-linejoin: round">
<title>{title}</title>
"""
# What becomes of matplotlib's SVG, in order.
_SUBSTITUTIONS: Final[Sequence[tuple[str, str | Callable[[re.Match[str]], str]]]] = (
    (r"(?s)<!--.*?-->", ""),
    # Names of groups that every drawing has: ids must be one of a kind in a page.
    (r'<g id="[^"]*"', "<g"),
    # The page's font, not the one that widths were measured in.
    (r"font: [^;\"]*?([\d.]+px) [^;\"]*", r"font-size: \1"),
    (r"font-family: [^;\"]*;? ?", ""),
    (r"#[0-9a-f]{6}\b", lambda found: _NAMES.get(found[0], found[0])),
    # What nobody sees: turns by nothing, spaces, more than hundredths of a point.
    (r' transform="rotate\(-?0 [^"]*"', ""),
    (r"\n\s*", "\n"),
    (r' (?:d|x|y|transform)="[^"]*"', lambda found: re.sub(r"(\.\d\d)\d+", r"\1", found[0])),
)
# At 72 to the inch; small enough that text can be read where a telephone halves it.
_WIDTH, _HEIGHT, _LEGEND_ROW = 480, 330, 21
_LEGEND_COLUMNS: Final = 4
_STYLE: Final[Any] = {  # matplotlib types its keys one by one
    "axes.axisbelow": True,
    "axes.edgecolor": FAINT,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.labelsize": 13,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "font.size": 12,
    "grid.color": LINE,
    "legend.frameon": False,
    "legend.handletextpad": 0.4,
    "legend.columnspacing": 1.2,
    "lines.linewidth": 1.8,
    "lines.markersize": 7,
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.color": FAINT,
    "ytick.labelcolor": INK,
}
_RING: Final[Any] = {"marker": "o", "markersize": 13, "markerfacecolor": "none"}
_SPAN_LEAST: Final = 0.1
# A little above 1, for markers.
_HIGHEST: Final = 1.02
_H_GUIDES: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


@dataclass(frozen=True, slots=True)
class Curve:
    """Points (x, y) of one method, joined in their order, with words at the first and the last.

    `look` picks colour and marker, `fill` how the marker is filled; curves that share one share its
    line of the legend. What is not finite is left out.
    """

    name: str
    points: Sequence[tuple[float, float]]
    look: int = 0
    fill: int = 0
    ends: tuple[str, str] = ("", "")


@dataclass(frozen=True, slots=True)
class Spots:
    """Points (x, y) of a plane that look alike; `look` picks the colour, `fill` as in `Curve`."""

    name: str
    points: Sequence[tuple[float, float]]
    look: int
    marker: str
    fill: int = 0
    size: float = 6


def trade_off(curves: Sequence[Curve], title: str) -> str:
    """Return curves of accuracy P (y) against diversity D (x), with faint lines of equal h."""
    with _style():
        drawing, axes = _axes("D, diversity of what is relevant", "P, share that is relevant")
        for curve in curves:
            _plot(axes, curve, joined=True)
        _guide(axes)
        _legend(drawing, _method_keys(curves))
        return to_svg(drawing, title)


def h_against_time(
    curves: Sequence[Curve],
    fills: Sequence[str],
    front: Sequence[tuple[float, float]],
    title: str,
) -> str:
    """Return points of h (y) against microseconds (x, log), and the Pareto front as a step line.

    `fills` names what the fillings of the markers mean; `front` are the points on the front.
    """
    with _style():
        drawing, axes = _axes("median time of a query", "h")
        axes.set_xscale("log")
        for curve in curves:
            _plot(axes, curve, joined=False)
        if front:
            x, y = zip(*sorted(front), strict=True)
            # On to the edge: beyond its last point more time brings no more h.
            far = max(p[0] for c in curves for p in c.points) if curves else x[-1]
            axes.step([*x, far], [*y, y[-1]], where="post", color=INK, linewidth=1, zorder=1)
            axes.plot(x, y, color=INK, linewidth=0, **_RING)
        _name_times(axes)
        keys = _method_keys(curves)
        keys += [_key(name, INK, "o", FILLS[n % len(FILLS)]) for n, name in enumerate(fills)]
        if front:
            keys.append(Line2D([], [], color=INK, linewidth=1, label="Pareto front", **_RING))
        _legend(drawing, keys)
        return to_svg(drawing, title)


def against(curves: Sequence[Curve], x: str, y: str, title: str) -> str:
    """Return curves of figures, named `y`, against what `x` names, on a logarithmic scale."""
    with _style():
        drawing, axes = _axes(x, y)
        axes.set_xscale("log")
        for curve in curves:
            _plot(axes, curve, joined=True)
        places = sorted({point[0] for curve in curves for point in curve.points})
        axes.set_xticks(places, [f"{place:g}" for place in places])
        axes.xaxis.set_minor_formatter(NullFormatter())
        _legend(drawing, _method_keys(curves), columns=2)
        return to_svg(drawing, title)


def nines(curves: Sequence[Curve], y: str, title: str) -> str:
    """Return curves of a figure, named `y`, against percentiles (x), a step for each nine."""
    with _style():
        drawing, axes = _axes("percentile", y)
        axes.set_xscale("log")
        axes.set_yscale("log")
        tail = [
            Curve(c.name, [(1 / (1 - p / 100), v) for p, v in c.points], c.look) for c in curves
        ]
        _lines(axes, tail)
        places = {1: "0", 2: "50", 10: "90", 100: "99"}
        places |= {10**n: f"99.{'9' * (n - 2)}" for n in range(3, 7)}
        far = max((x for c in tail for x, _ in c.points), default=1)
        axes.set_xticks([x for x in places if x <= far], [t for x, t in places.items() if x <= far])
        axes.xaxis.set_minor_formatter(NullFormatter())
        _legend(drawing, _line_keys(curves))
        return to_svg(drawing, title)


def over_time(curves: Sequence[Curve], y: str, title: str, *, log: bool = False) -> str:
    """Return curves of a figure, named `y`, against seconds."""
    with _style():
        drawing, axes = _axes("second", y)
        axes.set_yscale("log" if log else "linear")
        _lines(axes, curves)
        if not log:
            axes.set_ylim(bottom=0)
        _legend(drawing, _line_keys(curves))
        return to_svg(drawing, title)


def plane(spots: Sequence[Spots], title: str) -> str:
    """Return points where they lie, later ones on top; a unit is as long across as up."""
    with _style():
        drawing, axes = _axes("", "")
        axes.set_aspect("equal")
        axes.set_xticks([])
        axes.set_yticks([])
        keys = []
        for level, each in enumerate(spots):
            look: Any = {"marker": each.marker, "fillstyle": FILLS[each.fill]}
            x, y = zip(*each.points, strict=True) if each.points else ((), ())
            colour = _colour(each.look)
            axes.plot(
                x, y, color=colour, linestyle="none", markersize=each.size, zorder=3 + level, **look
            )
            keys.append(_key(each.name, colour, **look))
        _legend(drawing, keys)
        return to_svg(drawing, title)


def to_svg(drawing: Drawing, title: str) -> str:
    """Return a drawing as an <svg> element that fits a page, with its title for screen readers."""
    sink = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    # Ids come of the salt and of what they name: two drawings in a page must not share one.
    with mpl.rc_context({"svg.hashsalt": title, "svg.fonttype": "none"}):
        drawing.savefig(sink, format="svg", metadata=nothing)
    text = sink.getvalue()
    width, height = 72 * drawing.get_size_inches()
    head = _HEAD.format(width=width, height=height, title=escape(title))
    # The first definitions are a style for every element, which would be every one of the page.
    body = text[text.index("</defs>") + len("</defs>") :]
    for pattern, put in _SUBSTITUTIONS:
        body = re.sub(pattern, put, body)
    return head + body.strip()


@contextmanager
def _style() -> Iterator[None]:
    """Draw in our way, whatever the machine's own settings of matplotlib are."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        yield


def _axes(x: str, y: str) -> tuple[Drawing, Axes]:
    drawing = Drawing(figsize=(_WIDTH / 72, _HEIGHT / 72), dpi=72, layout="constrained")
    axes = drawing.add_subplot()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return drawing, axes


def _plot(axes: Axes, curve: Curve, *, joined: bool) -> None:
    points = [point for point in curve.points if np.isfinite(point).all()]
    if not points:
        return
    x, y = zip(*points, strict=True)
    axes.plot(
        x,
        y,
        color=_colour(curve.look),
        marker=_marker(curve.look),
        fillstyle=FILLS[curve.fill % len(FILLS)],
        markerfacecoloralt=PAPER,
        linestyle="-" if joined else "none",
        zorder=3,
    )
    for at, word in zip((0, -1), curve.ends, strict=True):
        if word:
            axes.annotate(
                word,
                (x[at], y[at]),
                xytext=(5, 5),
                textcoords="offset points",
                fontsize=10,
                color=_colour(curve.look),
            )


def _lines(axes: Axes, curves: Sequence[Curve]) -> None:
    """Draw curves of very many points, without markers."""
    for curve in curves:
        x, y = zip(*curve.points, strict=True) if curve.points else ((), ())
        axes.plot(x, y, color=_colour(curve.look), zorder=3)
    # Short labels, in numbers that are read without powers.
    plain = FuncFormatter(lambda value, _: f"{value:,g}")
    axes.yaxis.set_major_formatter(plain)
    axes.yaxis.set_minor_formatter(NullFormatter())


def _line_keys(curves: Sequence[Curve]) -> list[Line2D]:
    return [Line2D([], [], color=_colour(curve.look), label=curve.name) for curve in curves]


def _guide(axes: Axes) -> None:
    """Draw where the harmonic mean of P and D is the same."""
    axes.margins(0.08)
    axes.autoscale_view()
    left, right = _wide_enough(*axes.get_xlim())
    bottom, top = _wide_enough(*axes.get_ylim())
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)
    d, p = np.linspace(max(left, 1e-6), right, 60), np.linspace(max(bottom, 1e-6), top, 60)
    h = 2 * d * p[:, None] / (d + p[:, None])
    lines = axes.contour(d, p, h, _H_GUIDES, colors=FAINT, linestyles=":", linewidths=0.8)
    axes.clabel(lines, fmt="h %g", fontsize=10, zorder=1)


def _wide_enough(low: float, high: float) -> tuple[float, float]:
    """Widen a range of shares where it would make much of a difference that hardly matters."""
    lacking = max(0.0, _SPAN_LEAST - (high - low)) / 2
    high = min(high + lacking, _HIGHEST)
    return min(low - lacking, high - _SPAN_LEAST), high


def _name_times(axes: Axes) -> None:
    low, high = axes.get_xlim()
    few = (1.0, 2.0, 5.0) if high / low < 200 else (1.0,)
    inside = [n for n in range(-4, 12) for sub in few if low <= sub * 10.0**n <= high]
    # Less than two would leave nothing to compare with.
    locator = LogLocator(subs=few) if len(inside) > 1 else MaxNLocator(4)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: time_words(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())


def time_words(microseconds: float) -> str:
    """Return a time in the unit that people would use, with two digits or three."""
    for unit, size in (("s", 1e6), ("ms", 1e3), ("µs", 1.0)):
        if microseconds >= size:
            return f"{microseconds / size:.3g} {unit}"
    return f"{microseconds:.2g} µs"


def _method_keys(curves: Sequence[Curve]) -> list[Line2D]:
    names = {curve.name: curve.look for curve in curves}
    return [_key(name, _colour(n), _marker(n), "full") for name, n in names.items()]


def _key(name: str, colour: str, marker: str, fillstyle: Any) -> Line2D:  # noqa: ANN401  # one of FILLS
    return Line2D(
        [],
        [],
        color=colour,
        marker=marker,
        fillstyle=fillstyle,
        markerfacecoloralt=PAPER,
        linestyle="none",
        label=name,
    )


def _legend(drawing: Drawing, keys: Sequence[Line2D], columns: int = _LEGEND_COLUMNS) -> None:
    if not keys:
        return
    rows = -(-len(keys) // columns)
    drawing.set_size_inches(_WIDTH / 72, (_HEIGHT + rows * _LEGEND_ROW) / 72)
    drawing.legend(handles=keys, loc="outside lower center", ncols=columns)


def _colour(look: int) -> str:
    return COLOURS[look % len(COLOURS)]


def _marker(look: int) -> str:
    return MARKERS[look % len(MARKERS)]
