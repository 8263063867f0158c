"""Draws charts with matplotlib as SVG images that follow the reader's light or dark scheme.

Equal curves give equal bytes.
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "*", "p")
FILLS: Final = ("full", "none", "left", "bottom", "right", "top")


@dataclass(frozen=True, slots=True)
class Palette:
    """The colours of one scheme: page, text, secondary text, grid lines, and each series."""

    paper: str
    ink: str
    faint: str
    line: str
    series: Sequence[str]


# Hues of Okabe and Ito (2008), which colour-blind readers can tell apart. They are darkened for a
# white page and lightened for a dark page.
LIGHT: Final = Palette(
    *("#ffffff", "#1c2028", "#5b6370", "#dcdfe5"),
    ("#0072b2", "#c44e00", "#00805f", "#a8508c", "#8a6d00", "#2f8fc4", "#4b4f58", "#b3202a"),
)
DARK: Final = Palette(
    *("#14171c", "#e6e8ec", "#a2a9b5", "#343a45"),
    ("#4ea6e6", "#f28c45", "#35c79d", "#dc92c4", "#e0c341", "#9ad4f5", "#b9bec8", "#f1747c"),
)
# Sizes in points, 72 per inch.
_WIDTH, _HEIGHT, _LEGEND_ROW = 480, 330, 21
# Maximum length of a name in a legend of two columns.
_LEGEND_LETTERS: Final = 34
# Minimum span of an axis of shares. A smaller span would exaggerate negligible differences.
_SPAN_MIN: Final = 0.1
_EQUAL_H: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
# Minimum time in a chart. A coarse clock may measure 0, which a logarithmic axis cannot show.
_MICROSECONDS_MIN: Final = 0.1
_SIZES: Final = (4.0, 10.0)


@dataclass(frozen=True, slots=True)
class Curve:
    """The points (x, y) of one method, in order; points that are not finite are left out.

    `look` selects the colour and the marker, and `fill` selects how the marker is filled. Curves
    with the same name share one entry of the legend.
    """

    name: str
    points: Sequence[tuple[float, float]]
    look: int = 0
    fill: int = 0


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart as an SVG document, with its title."""

    title: str
    svg: str


Paint: TypeAlias = Callable[[Axes], Sequence[Line2D]]


def trade_off(curves: Sequence[Curve], title: str) -> Chart:
    """Draw accuracy P (y axis) against diversity D (x axis); markers grow along each curve.

    Faint lines connect points of equal harmonic mean h. Neither axis goes beyond 1.
    """

    def paint(axes: Axes) -> Sequence[Line2D]:
        axes.set(xlabel="D, diversity of the relevant results", ylabel="P, share relevant")
        for curve in curves:
            points = _finite(curve.points)
            axes.plot(*points, color=_colour(curve.look), zorder=3)
            sizes = np.linspace(*_SIZES, len(points.T)) if len(points.T) > 1 else [np.mean(_SIZES)]
            for size, point in zip(sizes, points.T, strict=False):
                axes.plot(*point, **_marker(curve), markersize=size, clip_on=False)
        _draw_equal_h(axes)
        return _legend_of(curves)

    return draw(paint, title)


def h_against_time(
    curves: Sequence[Curve], fills: Sequence[str], front: Sequence[tuple[float, float]], title: str
) -> Chart:
    """Draw h (y axis) against the median time in microseconds (x axis), and ring `front` points.

    `fills` has the legend's names for the fillings of markers, in the order of `FILLS`.
    """

    def paint(axes: Axes) -> Sequence[Line2D]:
        axes.set(xlabel="median time of a query", ylabel="h", xscale="log")
        ring: Any = {"marker": "o", "markersize": 13, "fillstyle": "none", "linestyle": "none"}
        ring["color"] = LIGHT.faint
        for points, style in (*((curve.points, _marker(curve)) for curve in curves), (front, ring)):
            x, y = _finite(points)
            axes.plot(np.maximum(x, _MICROSECONDS_MIN), y, **style)
        _name_times(axes)
        keys = _legend_of([Curve(c.name, c.points, c.look) for c in curves])
        keys += [
            Line2D([], [], label=name, **_marker(Curve(name, (), 6, n)) | {"marker": "o"})
            for n, name in enumerate(fills)
        ]
        if front:
            keys.append(Line2D([], [], label="Pareto front", **ring))
        return keys

    return draw(paint, title)


def lines(
    curves: Sequence[Curve],
    x: str,
    y: str,
    title: str,
    *,
    x_scale: Literal["linear", "log2"] = "linear",
    log_y: bool = False,
) -> Chart:
    """Draw curves as lines, with the axis labels `x` and `y`."""

    def paint(axes: Axes) -> Sequence[Line2D]:
        axes.set(xlabel=x, ylabel=y, yscale="log" if log_y else "linear")
        keys = []
        for curve in curves:
            colour = _colour(curve.look)
            axes.plot(*_finite(curve.points), color=colour, zorder=3)
            keys.append(Line2D([], [], label=curve.name, color=colour))
        if x_scale == "log2":
            axes.set_xscale("log", base=2)
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        if log_y:
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        else:
            axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        return keys

    return draw(paint, title)


def time_words(microseconds: float) -> str:
    """Return a time as text in s, ms or µs, rounded to at most three significant digits.

    From 1,000 s on, the time is rounded to whole seconds.
    """
    if microseconds >= 1e9:
        return f"{microseconds / 1e6:,.0f} s"
    for unit, size in (("s", 1e6), ("ms", 1e3), ("µs", 1.0)):
        # A time that rounds to 1,000 of a unit is written in the next unit.
        if microseconds >= 0.9995 * size:
            return f"{microseconds / size:.3g} {unit}"
    return f"{microseconds:.2g} µs"


def draw(paint: Paint, title: str) -> Chart:
    """Return the chart that `paint` draws; `paint` returns the entries of the legend.

    The matplotlib settings of the machine have no effect. `paint` uses the colours of `LIGHT`.
    """
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_style())
        canvas = Canvas(layout="constrained")
        keys = paint(canvas.add_subplot())
        longest = max((len(str(key.get_label())) for key in keys), default=0)
        columns = 2 if longest <= _LEGEND_LETTERS else 1
        rows = -(-len(keys) // columns)
        canvas.set_size_inches(_WIDTH / 72, (_HEIGHT + rows * _LEGEND_ROW) / 72)
        if keys:
            canvas.legend(handles=keys, loc="outside lower center", ncols=columns)
        sink = io.StringIO()
        absent = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        canvas.savefig(sink, format="svg", metadata={**absent, "Title": title})
    return Chart(
        title, sink.getvalue().replace("<defs>", f"<style>{_dark_style()}</style>\n <defs>", 1)
    )


def _dark_style() -> str:
    """Return CSS rules that replace the colours of `LIGHT` by those of `DARK` on a dark page."""
    pairs = [(getattr(LIGHT, n), getattr(DARK, n)) for n in ("paper", "ink", "faint", "line")]
    rules = (
        f'[style*="{part}: {light}"] {{ {part}: {dark} !important }}'
        for light, dark in (*pairs, *zip(LIGHT.series, DARK.series, strict=True))
        for part in ("fill", "stroke")
    )
    return f"@media (prefers-color-scheme: dark) {{ {' '.join(rules)} }}"


def _style() -> Any:  # noqa: ANN401  # matplotlib types its keys one by one
    ink = ("axes.labelcolor", "text.color", "xtick.labelcolor", "ytick.labelcolor")
    faint = ("axes.edgecolor", "xtick.color", "ytick.color")
    return {
        **dict.fromkeys(ink, LIGHT.ink),
        **dict.fromkeys(faint, LIGHT.faint),
        **dict.fromkeys(("axes.spines.right", "axes.spines.top", "legend.frameon"), False),
        **dict.fromkeys(("axes.facecolor", "figure.facecolor"), "none"),
        "axes.axisbelow": True,
        "axes.grid": True,
        "axes.labelsize": 13,
        "font.size": 12,
        "grid.color": LIGHT.line,
        "legend.handletextpad": 0.4,
        "legend.columnspacing": 1.2,
        "lines.linewidth": 1.8,
        "lines.markersize": 7,
        "svg.fonttype": "none",  # a fifth of the bytes of outlines
        "svg.hashsalt": "divgrpc",
        "text.parse_math": False,
    }


def _finite(points: Sequence[tuple[float, float]]) -> npt.NDArray[np.float64]:
    """Return the coordinates (2, n) of the points that are finite."""
    array = np.array(points, np.float64).reshape(-1, 2)
    return array[np.isfinite(array).all(axis=1)].T


def _colour(look: int) -> str:
    return LIGHT.series[look % len(LIGHT.series)]


def _marker(curve: Curve) -> dict[str, Any]:
    return {
        "color": _colour(curve.look),
        "marker": MARKERS[curve.look % len(MARKERS)],
        "fillstyle": FILLS[curve.fill % len(FILLS)],
        "markerfacecoloralt": LIGHT.paper,
        "linestyle": "none",
        "zorder": 4,
    }


def _legend_of(curves: Sequence[Curve]) -> list[Line2D]:
    by_name = {curve.name: curve for curve in curves}
    return [Line2D([], [], label=name, **_marker(c)) for name, c in by_name.items()]


def _draw_equal_h(axes: Axes) -> None:
    axes.autoscale_view()
    left, right = _share_limits(*axes.get_xlim())
    bottom, top = _share_limits(*axes.get_ylim())
    axes.set(xlim=(left, right), ylim=(bottom, top))
    d, p = np.linspace(max(left, 1e-6), right, 60), np.linspace(max(bottom, 1e-6), top, 60)
    h = 2 * d * p[:, None] / (d + p[:, None])
    lines = axes.contour(d, p, h, _EQUAL_H, colors=LIGHT.faint, linestyles=":", linewidths=0.8)
    axes.clabel(lines, fmt="h %g", fontsize=10, zorder=1)


def _share_limits(low: float, high: float) -> tuple[float, float]:
    """Return limits for an axis of shares, at least `_SPAN_MIN` apart and at most 1."""
    margin = max(0.0, _SPAN_MIN - (high - low)) / 2
    high = min(high + margin, 1.0)
    return min(low - margin, high - _SPAN_MIN), high


def _name_times(axes: Axes) -> None:
    low, high = axes.get_xlim()
    steps = (1.0, 2.0, 5.0) if high / low < 200 else (1.0,)
    labels = [n for n in range(-4, 12) for step in steps if low <= step * 10.0**n <= high]
    # A scale with a single label would be unreadable, so a linear locator is used instead.
    axes.xaxis.set_major_locator(LogLocator(subs=steps) if len(labels) > 1 else MaxNLocator(4))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: time_words(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())
