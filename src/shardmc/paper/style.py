"""The style of the paper's figures: colours for all kinds of colour vision, and a line style for each method."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

# The palette of Okabe and Ito.
BLACK, ORANGE, SKY, GREEN, BLUE, RED, PURPLE = (
    "#000000",
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
)

METHODS: dict[str, dict[str, Any]] = {
    "posterior": {"color": BLACK, "linestyle": "-", "linewidth": 2.2},
    "CMC": {"color": RED, "linestyle": (0, (5, 2)), "linewidth": 1.5},
    "AR": {"color": BLUE, "linestyle": (0, (3, 1.5)), "linewidth": 1.6},
    "WS": {"color": PURPLE, "linestyle": (0, (1, 1)), "linewidth": 1.7},
    "MP": {"color": GREEN, "linestyle": "-.", "linewidth": 1.5},
    "shardmc": {"color": ORANGE, "linestyle": (0, (6, 2, 1, 2)), "linewidth": 1.8},
}
"""Line of each method. The posterior is drawn below the others."""

_SETTINGS: Any = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "legend.fontsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "shardmc",
    "svg.fonttype": "path",
}


@contextmanager
def printed() -> Iterator[None]:
    """Fonts and lines for a printed page, while figures are drawn and saved."""
    import matplotlib as mpl

    with mpl.rc_context(_SETTINGS):
        yield


def canvas(rows: int, columns: int, width: float = 7.2, height: float = 2.3) -> tuple[Canvas, Any]:
    """A figure and its panels (rows, columns), `height` inches per row, without pyplot's global state."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def legend_above(figure: Canvas, panel: Any, columns: int = 6) -> None:
    """One legend for all panels, above them."""
    handles, labels = panel.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside upper center",
        ncols=min(len(labels), columns),
        frameon=False,
        fontsize=9,
    )
