"""The figures of a report with their captions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from shardmc.check.agreement import LEVEL
from shardmc.posterior import Posterior
from shardmc.report.choice import shards_to_draw, worst_first, worst_pair
from shardmc.report.densities import plot_marginals, plot_pair
from shardmc.report.forest import hides_intervals, plot_certificate, plot_forest, plot_ridges
from shardmc.report.shards import outlying, plot_chains, plot_shards
from shardmc.report.style import to_svg

FIRST = 12
"""Parameters whose marginals are always shown."""
_SHARDS = 24
_CURVES = 2_000  # curves of shards for all other parameters together
_FOREST = 40  # rows of one forest plot
_RIDGES = 16  # rows of one ridge plot


@dataclass(frozen=True)
class Picture:
    """A figure of the page with its caption."""

    name: str
    title: str
    svg: Markup
    caption: str = ""


def picture(name: str, title: str, figure: Figure, caption: str = "") -> Picture:
    """A figure ready for the page; `name` is unique in it."""
    return Picture(name, title, Markup(to_svg(figure, title, name)), caption)


def certificate_picture(posterior: Posterior) -> Picture | None:
    """Errors of the coordinates that may be most wrong."""
    if posterior.certificate is None:
        return None
    shown = min(len(posterior.names), 30)
    some = (
        f" Shown are the {shown} that may be most wrong of the {len(posterior.names)} that were sampled."
        if shown < len(posterior.names)
        else ""
    )
    caption = (
        "Estimates ± two standard errors, on the unconstrained scale. Values in the shaded band are within bounds. A "
        "diamond marks an estimate outside the band." + some
    )
    return picture("certificate", "How wrong each parameter may be", plot_certificate(posterior), caption)


def forest_pictures(posterior: Posterior, order: Sequence[str]) -> list[Picture]:
    """Forest plots of all parameters in the given order, at most forty in each."""
    chunks = [order[start : start + _FOREST] for start in range(0, len(order), _FOREST)]
    caption = "Mean (dot), 50 % interval (thick line) and 95 % interval (thin line), on the natural scale."
    found = []
    for k, chunk in enumerate(chunks):
        figure = plot_forest(posterior, chunk)
        hidden = (
            " Where no line is visible, the interval is narrower than the dot."
            if hides_intervals(figure)
            else ""
        )
        found.append(picture(f"forest-{k}", _span("Estimates", k, len(chunks)), figure, caption + hidden))
    return found


def _span(title: str, part: int, parts: int) -> str:
    return title if parts == 1 else f"{title}, part {part + 1} of {parts}"


def marginal_pictures(posterior: Posterior) -> tuple[list[Picture], list[Picture]]:
    """Marginals of the coordinates that may be most wrong, and simpler ones of all the others."""
    order = worst_first(posterior)
    first = []
    for k in order[:FIRST]:
        figure = plot_marginals(posterior, [k], shards=_SHARDS, legend=False)
        first.append(picture(f"marginal-{k}", f"Marginal density of {posterior.names[k]}", figure))
    rest = order[FIRST:]
    # To keep the page small: the more coordinates, the fewer shards for each.
    shards = int(np.clip(_CURVES // max(len(rest), 1), 4, _SHARDS))
    chunks = [rest[start : start + _RIDGES] for start in range(0, len(rest), _RIDGES)]
    title = "Marginal densities"
    return first, [
        picture(f"ridges-{k}", _span(title, k, len(chunks)), plot_ridges(posterior, chunk, shards=shards))
        for k, chunk in enumerate(chunks)
    ]


def marginal_key(posterior: Posterior) -> list[tuple[str, str]]:
    """The legend of the marginals: (colour, text)."""
    drawn, total = len(shards_to_draw(posterior, _SHARDS)), posterior.shards.num_shards
    shards = (
        f"{drawn} of {total:,} shards"
        if drawn < total
        else f"{total} shards"
        if total > 1
        else "the one shard"
    )
    lines = [("combined", "combined posterior"), ("before", f"{shards}, as sampled")]
    if posterior.shard is not None:
        polished = ", and polished" if posterior.polished is not None and posterior.polished.rounds else ""
        lines.append(("after", f"the same, moved by the combiner{polished}"))
    return lines


def pair_picture(posterior: Posterior) -> Picture | None:
    """The pair of coordinates that may be most wrong."""
    pair = worst_pair(posterior)
    if pair is None or np.isfinite(posterior.theta[:, list(pair)]).all(axis=1).sum() < 2:
        return None
    names = " and ".join(posterior.names[k] for k in pair)
    why = (
        "the two parameters with the largest weights in the worst combination"
        if posterior.certificate is not None
        else "the most correlated pair"
    )
    mode = " The cross is the mode of all rows." if posterior.mode is not None else ""
    caption = f"{names}: {why}. Dots are draws. The lines enclose 50 % and 95 % of the draws.{mode}"
    return picture("pair", f"Joint density of {names}", plot_pair(posterior, pair), caption)


def agreement_picture(posterior: Posterior) -> Picture | None:
    """Disagreement of the shards."""
    q = posterior.shards.disagreement
    if q is None or not np.isfinite(q).any():
        return None
    beyond, missing = outlying(posterior), int((~np.isfinite(q)).sum())
    said = (
        f"{len(beyond)} of {len(q):,} shards disagree: {', '.join(map(str, beyond[:6]))}"
        f"{', …' if len(beyond) > 6 else ''}."
        if len(beyond)
        else "No shard stands out."
    )
    without = f" {missing} shards have no mode and are left out." if missing else ""
    caption = (
        "Distance of each shard's mode from the mode of all rows, against its expected value if all rows follow one "
        f"model (line, with a 95 % band). {said}{without} A diamond marks a shard that the check reports. If all rows "
        f"follow one model, it reports a shard with probability {LEVEL:g}."
    )
    return picture("agreement", "Do the shards agree?", plot_shards(posterior), caption)


def chain_picture(posterior: Posterior) -> Picture:
    """Diagnostics of the shards' chains."""
    caption = "Each shard's own chains, before combining: its worst coordinate. The grey line is the median."
    return picture("chains", "Chains of the shards", plot_chains(posterior), caption)


def all_or_nothing(build: Callable[[Posterior], Picture | None], posterior: Posterior) -> list[Picture]:
    """A list with the picture, or an empty one."""
    found = build(posterior)
    return [] if found is None else [found]
