"""The tables of a report as rows of text: parameters, shards, stages, and how to repeat the run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shardmc.posterior import Adjusted, Plan, Posterior, Regression
from shardmc.report.numbers import (
    DASH,
    aligned,
    as_text,
    count,
    duration,
    fixed,
    like,
    probability,
    significant,
    trimmed,
)
from shardmc.report.shards import outlying, worst_of

if TYPE_CHECKING:
    import pandas as pd

MARKS = {"within": "✓", "off": "✗", "cannot tell": "?"}


@dataclass(frozen=True)
class Table:
    """Headings and rows of text; the first column names the row."""

    head: tuple[str, ...]
    rows: list[tuple[str, ...]]
    words: frozenset[int] = frozenset()
    """Columns of words, aligned left. All others except the first are numbers, aligned right."""
    wide: frozenset[int] = frozenset()
    """Columns that only a wide screen shows."""

    def part(self, start: int, stop: int | None = None) -> Table:
        return Table(self.head, self.rows[start:stop], self.words, self.wide)


def has_errors(posterior: Posterior) -> bool:
    """Whether parameters can be sorted by how wrong they may be."""
    return posterior.certificate is not None and len(posterior.names) > 1


def summary_table(posterior: Posterior, frame: pd.DataFrame, order: Sequence[str] | None = None) -> Table:
    """Rows of `Posterior.summary` with their certificate, in the given order or their own."""
    names = [str(name) for name in frame.index]
    if order is not None:
        names = sorted(names, key=lambda name: order.index(name) if name in order else len(order))
    sd = {name: float(frame.loc[name, "sd"]) for name in names}
    head: list[str] = ["parameter"]
    columns: list[list[str]] = [names]
    for heading in frame.columns[:4]:
        head.append(str(heading).replace("%", " %"))
        columns.append(aligned([like(float(frame.loc[name, heading]), sd[name]) for name in names]))
    head += ["ESS", "R-hat"]
    columns.append([count(float(frame.loc[name, "ess"])) for name in names])
    columns.append([fixed(float(frame.loc[name, "r_hat"]), 3) for name in names])
    if posterior.adjusted is not None:
        head.append("sd before")
        columns.append(aligned([like(float(frame.loc[name, "sd_before"]), sd[name]) for name in names]))
    if posterior.certificate is None:
        return Table(tuple(head), list(zip(*columns, strict=True)))
    errors = _errors(posterior, names)
    head += ["mean error, sd", "sd ratio", "verdict"]
    rows = list(zip(*columns, *zip(*errors, strict=True), strict=True))
    return Table(tuple(head), rows, frozenset({len(head) - 1}), frozenset(range(5, len(head) - 1)))


def _errors(posterior: Posterior, names: Sequence[str]) -> list[tuple[str, str, str]]:
    """Certificate of each parameter as text: error of the mean, ratio of sds, verdict."""
    certificate = posterior.certificate
    assert certificate is not None
    own = {name: k for k, name in enumerate(certificate.names)}
    found = []
    for name in names:
        k = own.get(name)
        if k is None:
            found.append((DASH, DASH, DASH))
            continue
        mean = plus_minus(certificate.mean_error[k], certificate.mean_error_se[k], sign=True)
        sd = plus_minus(certificate.sd_ratio[k], certificate.sd_ratio_se[k])
        verdict = certificate.verdicts[k]
        found.append((mean, sd, f"{MARKS[verdict]} {verdict}"))
    return found


def plus_minus(value: float, se: float, *, sign: bool = False) -> str:
    """An estimate with its standard error.

    >>> plus_minus(0.0312, 0.0049, sign=True), plus_minus(float("nan"), 0.1)
    ('+0.031 ± 0.005', '–')
    """
    if not np.isfinite(value):
        return DASH
    if abs(value) >= 100:
        return f"{significant(value)} ± {significant(se, 2)}"
    return f"{fixed(value, 3, sign=sign)} ± {fixed(se, 3)}"


def combination_table(posterior: Posterior) -> Table | None:
    """The linear combinations with the largest errors; None without a certificate or with one parameter."""
    certificate = posterior.certificate
    if certificate is None or len(posterior.names) < 2:
        return None
    rows = []
    for what, combination, unit in (
        ("mean off by", certificate.shifted, "sd"),
        ("widest", certificate.widest, "× sd"),
        ("narrowest", certificate.narrowest, "× sd"),
    ):
        error = plus_minus(combination.value, combination.se)
        rows.append((what, combination.words.replace("-", "−"), f"{error} {unit}" if error != DASH else DASH))
    return Table(("what", "combination", "measured"), rows, frozenset({1}))


def polishing_table(posterior: Posterior) -> Table | None:
    """The certificate before and after polishing; None if nothing was polished."""
    certificate, polished = posterior.certificate, posterior.polished
    if certificate is None or polished is None or not polished.rounds:
        return None
    rows = []
    for when, measured in (("before", polished.before), ("after", certificate)):
        widths = [c.value for c in (measured.widest, measured.narrowest)]
        rows.append(
            (
                when,
                f"{MARKS[measured.verdict]} {measured.verdict}",
                fixed(float(np.abs(measured.mean_error).max()), 3),
                fixed(_furthest(measured.sd_ratio), 3),
                fixed(measured.shifted.value, 3),
                fixed(_furthest(np.array(widths)), 3),
                probability(measured.stein.p_value),
            )
        )
    head = (
        "draws",
        "verdict",
        "mean error, sd",
        "sd ratio",
        "worst mean error, sd",
        "worst sd ratio",
        "shape test, p",
    )
    return Table(head, rows, frozenset({1}))


def _furthest(ratios: np.ndarray) -> float:
    """The ratio that is furthest from 1."""
    return float(ratios[np.abs(np.log(ratios)).argmax()])


def shard_table(posterior: Posterior, most: int = 8) -> Table:
    """The most conspicuous shards: by disagreement, then divergences, then R-hat."""
    shards = posterior.shards
    r_hat, ess = worst_of(shards.r_hat, np.fmax), worst_of(shards.ess, np.fmin)
    q = np.full(shards.num_shards, np.nan) if shards.disagreement is None else shards.disagreement
    beyond = np.zeros(shards.num_shards, bool)
    beyond[outlying(posterior)] = True
    first = np.where(beyond, np.nan_to_num(q), 0)
    key = (-np.nan_to_num(q), -np.nan_to_num(r_hat), -np.asarray(shards.divergences, float), -first)
    rows = [
        (
            f"shard {i}",
            count(float(shards.size[i])),
            shards.sampler[i] or DASH,
            fixed(float(shards.acceptance[i]), 2),
            count(float(shards.divergences[i])),
            count(float(ess[i])),
            fixed(float(r_hat[i]), 3),
            fixed(float(q[i]), 1) if abs(q[i]) < 1e5 or not np.isfinite(q[i]) else significant(float(q[i])),
        )
        for i in np.lexsort(key)[:most]
    ]
    head = (
        "shard",
        "rows" if posterior.groups is None else "groups",
        "sampler",
        "acceptance",
        "divergences",
        "smallest ESS",
        "largest R-hat",
        "disagreement Q",
    )
    return Table(head, rows, frozenset({2}))


@dataclass(frozen=True)
class StageRow:
    """One stage of a run: its time, its share of the total time in percent, and how often it evaluated all rows."""

    name: str
    time: str
    percent: float
    passes: str


def stages(posterior: Posterior) -> list[StageRow]:
    """The stages in the order in which they ran."""
    total = sum(posterior.seconds.values()) or 1.0
    names = list(dict.fromkeys([*posterior.seconds, *posterior.passes]))
    counts = aligned([trimmed(posterior.passes.get(name, float("nan")), 3) for name in names])
    return [
        StageRow(
            name,
            duration(posterior.seconds.get(name, float("nan"))),
            round(100 * posterior.seconds.get(name, 0.0) / total, 1),
            passes,
        )
        for name, passes in zip(names, counts, strict=True)
    ]


def model_pairs(posterior: Posterior) -> list[tuple[str, str]]:
    """What was fitted to which rows, and when."""
    regression, origin = posterior.regression, posterior.origin
    found = [("formula", regression.formula)] if regression is not None else [("model", posterior.model)]
    if regression is not None:
        found += [("family", regression.family_in_words), ("response", regression.response)]
        found += [(role, str(column)) for role, column in regression.roles.items()]
    dropped = regression.dropped_rows if regression is not None else 0
    rows = count(posterior.plan.rows) + (
        f" ({count(dropped)} with missing values were dropped)" if dropped else ""
    )
    found += [("data", origin["data"])] if "data" in origin else []
    found += [("rows", rows)]
    return [*found, ("date", origin["date"])] if "date" in origin else found


_LABELS = {
    "shards": "shards",
    "draws_per_shard": "draws of each shard",
    "kept_rows": "rows kept in every shard",
    "sampler": "sampler",
    "combiner": "combiner",
    "method": "method",
    "precision": "precision",
    "precision_reason": "why this precision",
    "nodes": "nodes of quadrature",
    "nodes_of_correction": "nodes that correct them at the mode",
    "appended_rows": "appended rows",
    "seed": "seed",
}


def run_pairs(posterior: Posterior) -> list[tuple[str, str]]:
    """How the run computed what it did, as far as a reader may want to know."""
    plan = posterior.plan.to_dict()
    return [(label, as_text(plan[name])) for name, label in _LABELS.items() if name in plan]


def prior_table(posterior: Posterior) -> Table | None:
    """The priors of a formula's parameters."""
    if posterior.regression is None:
        return None
    rows = [(name, prior) for name, prior in posterior.regression.priors.items()]
    return Table(("parameter", "prior"), rows, frozenset({1}))


def predictive_table(posterior: Posterior) -> Table | None:
    """Observed statistics beside simulated ones."""
    if posterior.predictive is None:
        return None
    rows = [
        (
            name,
            significant(row["observed"]),
            significant(row["mean"]),
            f"{significant(row['lower'])} to {significant(row['upper'])}",
            probability(row["p"]),
        )
        for name, row in posterior.predictive.statistics.items()
    ]
    return Table(("statistic", "observed", "simulated, mean", "95 % of simulated", "p"), rows)


def call(plan: Plan, regression: Regression | None = None, adjusted: Adjusted | None = None) -> str | None:
    """The call of fit or glm that made a plan; None if the plan does not tell, or if rows were appended.

    >>> plan = Plan(rows=1_000, shards=10, seed=1, combiner="Recenter()", draws=2_000, keep=0.2, sampler="Auto()")
    >>> print(call(plan))
    shardmc.fit(
        model,
        data,
        shards=10,
        draws=2000,
        seed=1,
        keep=0.2,
        sampler=shardmc.Auto(),
        combiner=shardmc.Recenter(),
    )
    """
    if plan.draws is None or plan.appended_rows is not None or plan.method is not None:
        return None
    function, first = ("fit", ["model", "data"]) if regression is None else ("glm", _arguments(regression))
    arguments = [f"{name}={getattr(plan, name)!r}" for name in ("shards", "draws", "seed", "keep")]
    if plan.shuffle is False:
        arguments.append("shuffle=False")
    if plan.polish:
        arguments.append("polish=True")
    if (plan.precision_reason or "").startswith("precision="):  # asked for, not measured
        arguments.append(f"precision={plan.precision!r}")
    if plan.nodes is not None and plan.nodes_of_correction is None:
        arguments.append(f"nodes={plan.nodes}")
    of_survey = adjusted is not None and adjusted.survey
    rowwise = {"stratify": plan.stratified, "survey_weights" if of_survey else "weights": plan.weighted}
    arguments += [f"{name}=..." for name, is_set in rowwise.items() if is_set]
    if adjusted is not None:
        arguments.append(f"robust={adjusted.clusters or True!r}")
    for name, method in (("sampler", plan.sampler), ("combiner", plan.combiner)):
        if re.fullmatch(r"[A-Z]\w*\(.*\)", method or ""):
            arguments.append(f"{name}=" + _CLASS.sub(r"shardmc.\1(", method or ""))
    return f"shardmc.{function}(\n" + "".join(f"    {a},\n" for a in (*first, *arguments)) + ")"


def _arguments(regression: Regression) -> list[str]:
    """The arguments of glm that describe the model. Priors come from the result, since defaults depend on the rows."""
    return [
        repr(regression.formula),
        "data",
        f"family={regression.family_in_words!r}",
        *[f"{role}={column!r}" for role, column in regression.roles.items()],
        *["drop_missing=True"] * bool(regression.dropped_rows),
        *["drop_collinear=True"] * regression.leaves_columns_out,
        "priors=posterior.regression.priors",
    ]


_CLASS = re.compile(r"\b([A-Z]\w*)\(")
