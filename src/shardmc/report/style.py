"""The style of all figures: colours that the page can replace by dark ones, axes, and compact SVG."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec
from xml.etree import ElementTree

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import Formatter, MaxNLocator

from shardmc.names import shown_text

if TYPE_CHECKING:
    from matplotlib.typing import RcKeyType

P = ParamSpec("P")

COLORS: Mapping[str, str] = {
    "ink": "#1c2127",
    "muted": "#5d6671",
    "rule": "#c9d0d8",
    "combined": "#0b5fa5",
    "before": "#d0661a",
    "after": "#4aa3d6",
    "good": "#0a7a5c",
    "alarm": "#b3261e",
}
"""Colours by their meaning, on white. In a page each is a CSS variable of the same name, which a dark page changes.

Everyone can tell blue from orange, with any kind of colour vision. No figure relies on colour alone.
"""

DARK: Mapping[str, str] = {
    "ink": "#e7eaef",
    "muted": "#a3adb9",
    "rule": "#3b4551",
    "combined": "#74bbf5",
    "before": "#f0a25a",
    "after": "#4189b8",
    "good": "#53c7a4",
    "alarm": "#ff8d80",
}
"""The same colours on a dark page."""

RC: dict[RcKeyType, object] = {
    "font.size": 8.5,
    "font.family": ["sans-serif"],
    "text.color": COLORS["ink"],
    "text.parse_math": False,  # a parameter may be called "$x$"
    "axes.edgecolor": COLORS["muted"],
    "axes.labelcolor": COLORS["muted"],
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.unicode_minus": True,
    "xtick.color": COLORS["muted"],
    "ytick.color": COLORS["muted"],
    "xtick.major.size": 3.0,
    "ytick.major.size": 3.0,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "lines.linewidth": 1.4,
    "lines.solid_capstyle": "butt",
    "legend.frameon": False,
    "figure.facecolor": "white",
    "savefig.dpi": 150,
    "svg.fonttype": "none",  # text stays text: it can be searched and read aloud, and has the page's font
    "svg.hashsalt": "shardmc",
}

_DIGITS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_SVG = "{http://www.w3.org/2000/svg}"
_HREF = "{http://www.w3.org/1999/xlink}href"
_NUMBER = re.compile(r"-?\d+\.\d+")
_LINE_TO = re.compile(r"(?<=\d) L (?=[-\d])")  # points after a first one are lines in any case


class SharedFigure(Figure):
    """A figure that notebooks show as SVG, without pyplot's global state."""

    def _repr_svg_(self) -> str:
        return _draw(self, transparent=False)


def styled(plot: Callable[P, Figure]) -> Callable[P, Figure]:
    """Let a function draw its figure in the shared style."""

    @wraps(plot)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with matplotlib.rc_context(RC):
            return plot(*args, **kwargs)

    return drawn


class TickLabels(Formatter):
    """Tick labels with as many decimals as the ticks need: 0.05, 1,200, 3·10⁻⁷."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return self.format_ticks([x])[0]

    def format_ticks(self, values: Sequence[float]) -> list[str]:  # type: ignore[override]
        """Labels of all ticks of an axis, in one format."""
        ticks = np.asarray(values, float)
        largest = float(np.abs(ticks).max(initial=0.0))
        step = float(np.diff(np.sort(ticks)).min()) if len(ticks) > 1 else largest
        power = 0
        if largest > 0 and not 1e-3 <= largest < 1e6:
            power = math.floor(math.log10(largest))
        places = _decimals(step / 10.0**power)
        ending = f"·10{str(power).translate(_DIGITS)}" if power else ""
        return ["0" if x == 0 else f"{x / 10.0**power:,.{places}f}".replace("-", "−") + ending for x in ticks]


def _decimals(step: float) -> int:
    """Number of decimals that distinguishes numbers `step` apart, such as 2.5 and 5, or 0.025 and 0.05."""
    if not step > 0:
        return 0
    places = max(0, -math.floor(math.log10(step) + 1e-9))
    return places if math.isclose(round(step, places), step, rel_tol=1e-6) else places + 1


def tidy_axis(axes: Axes, which: str = "x", ticks: int = 4) -> None:
    """A few labelled ticks at round numbers."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(MaxNLocator(ticks, steps=[1, 2, 2.5, 5, 10], min_n_ticks=2))
    axis.set_major_formatter(TickLabels())


def no_y_axis(axes: Axes) -> None:
    """Hide the y axis: the shape of a density matters, not its height."""
    axes.yaxis.set_visible(False)
    axes.spines["left"].set_visible(False)


def draw_curves(axes: Axes, curves: Sequence[tuple[np.ndarray, np.ndarray]], **line: object) -> None:
    """Draw many curves as one line with gaps, which is one element of the SVG."""
    if not curves:
        return
    gap = np.array([np.nan])
    x = np.concatenate([part for x, _ in curves for part in (x, gap)])
    y = np.concatenate([part for _, y in curves for part in (y, gap)])
    axes.plot(x, y, **line)  # type: ignore[arg-type]


def to_svg(figure: Figure, title: str, name: str) -> str:
    """The figure as an SVG element for a page.

    Colours become CSS variables, and fonts are those of the page. Identifiers start with `name`, so that a page can
    have many figures. What a browser does not need is left out.

    Parameters
    ----------
    figure
        A figure in the shared style.
    title
        What the figure shows, for readers who cannot see it.
    name
        A name that is unique in the page.
    """
    root = ElementTree.fromstring(_draw(figure, transparent=True))
    known = {color: f"var(--{meaning})" for meaning, color in COLORS.items()}
    clean = ElementTree.Element(
        "svg", {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": title}
    )
    width = float(root.attrib["viewBox"].split()[2])
    clean.set("style", f"--natural:{width:.0f}px")
    for child in root:
        _copy(child, clean, known, name)
    return ElementTree.tostring(clean, encoding="unicode", short_empty_elements=True)


def _draw(figure: Figure, *, transparent: bool) -> str:
    target = io.StringIO()
    with matplotlib.rc_context(RC):
        figure.savefig(
            target, format="svg", transparent=transparent, metadata={"Date": None, "Creator": None}
        )
    return shown_text(target.getvalue())  # XML has no place for control characters, and names may have some


def _copy(
    element: ElementTree.Element, parent: ElementTree.Element, colors: Mapping[str, str], name: str
) -> None:
    tag = element.tag.removeprefix(_SVG) if isinstance(element.tag, str) else ""
    if tag in ("", "metadata", "style") or (tag == "g" and len(element) == 0):
        return
    attributes = {}
    for key, value in element.attrib.items():
        if key == "style":
            value = _restyle(value, colors)
        elif key in ("d", "x", "y", "transform", "width", "height"):
            value = " ".join(_NUMBER.sub(lambda m: f"{float(m[0]):.1f}".removesuffix(".0"), value).split())
            value = value if "C" in value or "Q" in value else _LINE_TO.sub(" ", value)
        elif key == "id":
            if tag == "g":
                continue
            value = f"{name}-{value}"
        elif key == _HREF:
            key, value = "href", value.replace("#", f"#{name}-")
        elif key == "clip-path":
            value = value.replace("#", f"#{name}-")
        if value and not (key == "transform" and value.startswith("rotate(-0 ")):
            attributes[key] = value
    if tag == "path" and attributes.get("style") == "fill:none":
        return  # the invisible background of figure and axes
    styles = {child.attrib.get("style", "") for child in element}
    if tag == "g" and len(element) > 2 and len(styles) == 1 and all(c.tag == f"{_SVG}use" for c in element):
        # Marks of one kind share one style.
        attributes["style"] = _restyle(styles.pop(), colors)
        for child in element:
            child.attrib.pop("style", None)
    # A group without attributes is not needed: its children move up.
    copy = parent if tag == "g" and not attributes else ElementTree.SubElement(parent, tag, attributes)
    if tag in ("text", "tspan"):
        copy.text = element.text
    for child in element:
        _copy(child, copy, colors, name)


def _restyle(style: str, colors: Mapping[str, str]) -> str:
    kept = []
    for declaration in style.split(";"):
        key, _, value = (part.strip() for part in declaration.partition(":"))
        if key not in ("", "font-family", "stroke-linecap") or value == "round":
            kept.append(f"{key}:{colors.get(value, value)}")
    return ";".join(kept)
