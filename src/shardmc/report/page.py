"""One self-contained HTML page that says whether to trust a posterior, with figures and captions; and a short form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2
import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from shardmc.check.advice import MEASURED_BY
from shardmc.check.agreement import LEVEL
from shardmc.check.check import ordered
from shardmc.guards.files import write_file
from shardmc.names import shown_text
from shardmc.posterior import Posterior
from shardmc.posterior.result import summary_by_name
from shardmc.report import tables
from shardmc.report.choice import shards_to_draw, worst_first, worst_pair
from shardmc.report.densities import plot_marginals, plot_pair
from shardmc.report.forest import hides_intervals, plot_certificate, plot_forest, plot_ridges
from shardmc.report.numbers import as_text, count, duration, fixed, probability, trimmed
from shardmc.report.shards import outlying, plot_chains, plot_shards
from shardmc.report.style import COLORS, DARK, to_svg
from shardmc.types import Finding

if TYPE_CHECKING:
    import pandas as pd


FIRST = 12
"""Parameters whose marginals are always shown."""
_SHARDS = 24  # of one marginal density
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
        f" The figure shows the {shown} of {len(posterior.names)} sampled parameters that may be most wrong."
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
        f"{len(beyond)} of {len(q):,} shards {'disagrees' if len(beyond) == 1 else 'disagree'}: "
        f"{', '.join(map(str, beyond[:6]))}{', …' if len(beyond) > 6 else ''}."
        if len(beyond)
        else "No shard stands out."
    )
    without = (
        f" {missing} shard{' has no mode and is' if missing == 1 else 's have no mode and are'} left out."
        if missing
        else ""
    )
    caption = (
        "Distance of each shard's mode from the mode of all rows, against its expected value if all rows follow one "
        f"model (line, with a 95 % band). {said}{without} A diamond marks a shard that the check reports. If all rows "
        f"follow one model, the probability that it reports any shard at all is {LEVEL:g}."
    )
    return picture("agreement", "Do the shards agree?", plot_shards(posterior), caption)


def chain_picture(posterior: Posterior) -> Picture:
    """Diagnostics of the shards' chains."""
    caption = "Each shard's own chains, before combining: its worst coordinate. The grey line is the median."
    return picture("chains", "Chains of the shards", plot_chains(posterior), caption)


def _if_any(picture: Picture | None) -> list[Picture]:
    """A list with the picture, or an empty one if there is none."""
    return [] if picture is None else [picture]


_ROWS = 25  # rows of the summary table that are always shown
_NOTEBOOK_ROWS = 10
_CENTERED = "_centered is "  # in the note on an intercept that is sampled under another name


@dataclass(frozen=True)
class Headline:
    """The verdict as the page shows it: a CSS class for its colour, a mark, a word, a sentence, and advice."""

    kind: str
    mark: str
    word: str
    sentence: str
    advice: str = ""


def write_report(posterior: Posterior, path: str | Path) -> Path:
    """Write one self-contained HTML page about a posterior.

    The verdict comes first. Then follow the findings, the estimates, what the combination did to the shards, whether
    the shards agree, how their chains mixed, what the run cost, and how to repeat it.

    Parameters
    ----------
    posterior
        What `fit` or `load` returned.
    path
        The file to write. If it is a folder, the file in it is called `report.html`. An earlier page is replaced once
        the new one is complete. A link at this place is replaced, not followed.

    Returns
    -------
    Path
        The file that was written.
    """
    path = Path(path)
    # A link called report.html may lead to a folder, but it is the name of a page.
    if path.is_dir() and not (path.is_symlink() and path.suffix == ".html"):
        path = path / "report.html"
    write_file(path, render(posterior).encode())
    return path


def render(posterior: Posterior) -> str:
    """The page as text."""
    frame = summary_by_name(posterior)
    names = [str(name) for name in frame.index]
    worst = [posterior.names[k] for k in worst_first(posterior)]
    summary = tables.summary_table(posterior, frame)
    by_error = tables.summary_table(posterior, frame, worst) if tables.has_errors(posterior) else None
    first, others = marginal_pictures(posterior)
    forests = forest_pictures(posterior, names)
    page = (
        _environment()
        .get_template("page.html.jinja")
        .render(
            posterior=posterior,
            headline=headline(posterior),
            facts=_facts(posterior, frame),
            what=_what(posterior, len(names)),
            model=tables.model_pairs(posterior),
            unexamined=posterior.not_examined.removeprefix("Not examined: "),
            findings=_findings(posterior.findings),
            summary=summary.part(0, _ROWS),
            summary_rest=summary.part(_ROWS),
            by_error=None if by_error is None else by_error.part(0, _ROWS),
            by_error_rest=None if by_error is None else by_error.part(_ROWS),
            predictive=tables.predictive_table(posterior),
            combinations=tables.combination_table(posterior),
            polishing=tables.polishing_table(posterior),
            certificate=_if_any(certificate_picture(posterior)),
            forests=forests,
            marginals=first,
            ridges=others,
            num_ridges=len(posterior.names) - len(first),
            key=marginal_key(posterior),
            pair=_if_any(pair_picture(posterior)),
            shard_figures=[*_if_any(agreement_picture(posterior)), chain_picture(posterior)],
            shards=tables.shard_table(posterior),
            stages=tables.stages(posterior),
            total_time=duration(sum(posterior.seconds.values())),
            total_passes=trimmed(sum(posterior.passes.values()), 3),
            run=tables.run_pairs(posterior),
            priors=tables.prior_table(posterior),
            versions=", ".join(f"{name} {version}" for name, version in posterior.versions.items()),
            call=tables.call(posterior.plan, posterior.regression, posterior.adjusted),
            light=COLORS,
            dark=DARK,
        )
    )
    return shown_text(page)  # names may be part of every sentence on it


def repr_html(posterior: Posterior) -> str:
    """The verdict and the summary table as a piece of HTML, for notebooks.

    Parameters
    ----------
    posterior
        What `fit` or `load` returned.
    """
    summary = tables.summary_table(posterior, summary_by_name(posterior))
    return shown_text(
        _environment()
        .get_template("notebook.html.jinja")
        .render(
            headline=headline(posterior),
            what=_what(posterior, len(summary.rows)),
            model=posterior.model,
            explained=[note for note in posterior.notes if _CENTERED in note],
            polished=posterior.polished,
            adjusted=posterior.adjusted,
            summary=summary.part(0, _NOTEBOOK_ROWS),
            more=max(0, len(summary.rows) - _NOTEBOOK_ROWS),
            warnings=sum(f.level != "note" for f in posterior.findings),
        )
    )


def headline(posterior: Posterior) -> Headline:
    """The verdict in words."""
    certificate = posterior.certificate
    if certificate is None:
        sentence = "The distance of these draws from the posterior was not measured."
        advice = MEASURED_BY
        return Headline("none", "○", "Not certified", sentence, advice)
    kind = certificate.verdict.replace(" ", "-")
    word, _, rest = certificate.sentence.partition(": ")
    if not rest:
        word, rest = certificate.verdict.capitalize(), certificate.sentence
    return Headline(
        kind, tables.MARKS[certificate.verdict], word, rest[:1].upper() + rest[1:], certificate.advice
    )


def _what(posterior: Posterior, many: int) -> str:
    """Numbers of draws, parameters, shards and rows, in one line."""
    shards = posterior.shards.num_shards
    return (
        f"{count(posterior.num_draws)} draws of {many} parameter{'s' if many > 1 else ''} "
        f"from {count(shards)} shard{'s' if shards > 1 else ''} of {count(posterior.plan.rows)} rows"
    )


def _facts(posterior: Posterior, frame: pd.DataFrame) -> list[tuple[str, str]]:
    """The most important numbers."""
    ess, r_hat = frame["ess"].to_numpy(float), frame["r_hat"].to_numpy(float)
    facts = [
        ("draws", count(posterior.num_draws)),
        ("smallest ESS", count(_extreme(ess, np.fmin))),
        ("largest R-hat of all draws", fixed(_extreme(r_hat, np.fmax), 3)),
        ("shards" if posterior.shards.num_shards > 1 else "shard", count(posterior.shards.num_shards)),
    ]
    certificate = posterior.certificate
    if certificate is not None:
        worst = _extreme(np.abs(certificate.mean_error), np.fmax)
        far = certificate.sd_ratio[np.argmax(np.nan_to_num(np.abs(np.log(certificate.sd_ratio))))]
        facts += [
            ("max mean error", f"{fixed(worst, 2)} sd"),
            ("worst sd ratio", fixed(float(far), 2)),
            ("shape test, p", probability(certificate.stein.p_value)),
        ]
    if posterior.seconds:
        facts.append(("time", duration(sum(posterior.seconds.values()))))
    return facts


def _extreme(values: np.ndarray, reduce: np.ufunc) -> float:
    return float(reduce.reduce(values)) if len(values) else float("nan")


def _findings(found: Sequence[Finding]) -> list[dict[str, object]]:
    """Findings, most serious first, with their numbers as text."""
    return [
        {
            "level": finding.level,
            "check": finding.check,
            "message": finding.message,
            "advice": finding.advice,
            "numbers": [(str(key), as_text(value)) for key, value in finding.values.items()],
        }
        for finding in ordered(found)
    ]


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("shardmc.report", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
