"""Error against cost for every method of the field, on the paper's Examples 2 and 3 and on motor insurance.

    python benchmarks/field.py [--quick] [--only synthetic covertype beta-bernoulli freMTPL2] [--rows 100000]
                               [--patience 12] [--results field-results] [--part 1/3]

Each method runs with more and more draws, until a run takes longer than --patience seconds. Errors are measured
against a long run on all rows in one shard, or against the exact posterior (Example 3). Costs are row evaluations, and
CPU seconds of the second of two equal calls, so compiled; both without the certificate. Prints and writes
docs/benchmarks/field.md and field.svg. Finished cases are kept in the folder --results and not run again. With --part,
a case's methods are dealt to several processes that share --results; the run without --part joins them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from datasets import covertype, logistic_model, synthetic_logistic
from peer_cases import insurance
from provenance import DOCS, header, publish, table

import shardmc
from shardmc.check.mixing import effective_size
from shardmc.combiners.distance import distances, noise_floor
from shardmc.errors import ShardmcError
from shardmc.field import SGHMC, SGLD, Austerity, Confidence, Propagation
from shardmc.field.comparing import run_method

BUDGETS = (500, 2_000, 8_000)
MEASURES = ("kl", "worst_mean", "worst_sd")


@dataclass(frozen=True)
class Case:
    """A model, its rows, and draws of its posterior."""

    name: str
    title: str
    model: shardmc.Model
    rows: Any
    num_rows: int
    shards: int
    reference: np.ndarray  # (draw, dim)


@dataclass(frozen=True)
class Method:
    """A method with its settings: its authors' where they recommend some, and ours."""

    label: str
    family: str  # "divide and conquer", "subsampling", "all rows"
    make: Callable[[Case], Any]
    settings: str
    heavy: bool = False
    """Whether a step may read all rows, so that there is time for few steps only."""


@dataclass(frozen=True)
class Run:
    """One run: errors, effective draws, cost, and what the certificate says."""

    method: str
    draws: int
    errors: dict[str, float]
    ess: float
    passes: float
    seconds: float
    verdict: str


@dataclass(frozen=True)
class Study:
    """All runs of a case, and the errors of as many independent draws as the largest run has."""

    title: str
    num_rows: int
    floor: dict[str, float]
    runs: list[Run]
    made: str
    """When, where and by what the runs were made."""

    @classmethod
    def joined(cls, paths: list[Path]) -> Study:
        """The study whose parts lie in these files, with its methods in the order of the table."""
        parts = [cls(**json.loads(path.read_text())) for path in paths]
        runs = [Run(**run) for part in parts for run in part.runs]  # type: ignore[arg-type]
        order = {method.label: index for index, method in enumerate(METHODS)}
        largest = max(parts, key=lambda part: max(run["draws"] for run in part.runs))  # type: ignore[index]
        return replace(largest, runs=sorted(runs, key=lambda run: (order[run.method], run.draws)))

    def last(self) -> dict[str, Run]:
        """The largest run of every method."""
        return {run.method: run for run in self.runs}


DIVIDE, SUBSAMPLE, ALL = "divide and conquer", "subsampling", "all rows"


def always(value: Any) -> Callable[[Case], Any]:
    return lambda case: value


def few_steps(kind: Any, **options: Any) -> Callable[[Case], Any]:
    """Two chains without warm-up: they start from draws of the Laplace approximation."""
    return lambda case: kind(chains=2, warmup=0, thin=min(case.model.dim, 5), **options)


METHODS = (
    Method("shardmc (recenter)", DIVIDE, always("recenter"), "default"),
    Method("Algorithm 1", DIVIDE, always("algorithm-1"), "the paper's"),
    Method("consensus", DIVIDE, always("consensus"), "full weights, its authors'"),
    Method("Weierstrass", DIVIDE, always("weierstrass"), "uniform kernel, 10 % of pairs accepted"),
    Method("M-posterior", DIVIDE, always("mposterior"), "default"),
    Method("partition trees", DIVIDE, always("partition-trees"), "8 trees, 20 draws in a leaf"),
    Method("Laplace", DIVIDE, always("laplace"), "none"),
    Method("EP", DIVIDE, always(Propagation()), "damping 0.7, 200 draws a site"),
    Method(
        "SGLD, authors'",
        SUBSAMPLE,
        always(SGLD(step_size=0.01, decay=0.55)),
        "step 0.01 (1 + t / 1000)^-0.55, n = 100",
    ),
    Method("SGLD, ours", SUBSAMPLE, always(SGLD()), "step from the gradient's noise, n = 100"),
    Method(
        "SGLD-CV, authors'",
        SUBSAMPLE,
        lambda case: SGLD(control_variates=True, step_size=0.1, minibatch=case.num_rows // 100),
        "step 0.1, n = N / 100",
    ),
    Method(
        "SGLD-CV, ours",
        SUBSAMPLE,
        always(SGLD(control_variates=True)),
        "step from the gradient's noise, n = 100",
    ),
    Method(
        "SGHMC, authors'",
        SUBSAMPLE,
        always(SGHMC(step_size=0.01, friction=1.0, minibatch=500)),
        "alpha 0.01, eta 1e-4, beta 0, n = 500",
    ),
    Method(
        "SGHMC-CV, ours",
        SUBSAMPLE,
        always(SGHMC(control_variates=True)),
        "step from the gradient's noise, n = 100",
    ),
    Method(
        "austerity, authors'",
        SUBSAMPLE,
        few_steps(Austerity, tolerance=0.05),
        "tolerance 0.05, n = 500",
        True,
    ),
    Method(
        "austerity, ours", SUBSAMPLE, few_steps(Austerity, tolerance=0.001), "tolerance 0.001, n = 500", True
    ),
    Method("confidence", SUBSAMPLE, few_steps(Confidence, minibatch=1_000), "delta 0.1, its authors'", True),
    Method("confidence, proxies", SUBSAMPLE, always(Confidence(proxies=True)), "delta 0.1, its authors'"),
    Method("random-walk Metropolis", ALL, always(None), "step adapted to 25 % acceptance", True),
)
COLOURS = {DIVIDE: "#0072B2", SUBSAMPLE: "#D55E00", ALL: "#000000"}


def long_run(model: shardmc.Model, rows: Any, draws: int) -> np.ndarray:
    """Draws of all rows in one shard."""
    return shardmc.fit(model, rows, shards=1, draws=draws, seed=99, check=False).theta


def synthetic(quick: bool, rows: int) -> Case:
    count = 2_000 if quick else min(rows, 100_000)
    data, model = synthetic_logistic(count), logistic_model(5)
    reference = long_run(model, data, 500 if quick else 40_000)
    return Case("synthetic", f"Example 2, synthetic, N = {count:,}, d = 5", model, data, count, 50, reference)


def forest(quick: bool, rows: int) -> Case | None:
    count = 5_000 if quick else min(rows, 500_000)
    data, model = covertype(4, count), logistic_model(4)
    if data is None:
        return None
    reference = long_run(model, data, 2_000 if quick else 20_000)
    return Case(
        "covertype", f"Example 2, Covertype, N = {count:,}, d = 4", model, data, count, 100, reference
    )


def rare(quick: bool, rows: int) -> Case:
    """Example 3: its posterior is a Beta distribution, seen as log odds."""
    from shardmc.paper.beta_bernoulli import PRIOR, DataSet, model

    count = 20_000 if quick else min(rows, 100_000)
    y = DataSet.simulate(0.001, count, 50, (0,)).rows
    successes = float(y.sum())
    p = np.random.default_rng(0).beta(PRIOR + successes, PRIOR + count - successes, size=(40_000, 1))
    title = f"Example 3, p = 0.001, N = {count:,}, d = 1"
    return Case("beta-bernoulli", title, model(), y, count, 50, np.log(p) - np.log1p(-p))


def motor(quick: bool, rows: int) -> Case | None:
    import jax.numpy as jnp

    found = insurance(5_000 if quick else rows)
    if found is None:
        return None

    def log_likelihood(params: dict[str, Any], rows: dict[str, Any]) -> Any:
        eta = rows["x"] @ params["beta"] + rows["offset"]
        return rows["y"] * eta - jnp.exp(eta)

    model = shardmc.Model(
        log_likelihood, lambda params: -0.5 * jnp.sum(params["beta"] ** 2) / 100, {"beta": found.dim}
    )
    count = len(found.y)
    reference = long_run(model, found.rows, 2_000 if quick else 10_000)
    title = f"freMTPL2, Poisson, N = {count:,}, d = {found.dim}"
    return Case("freMTPL2", title, model, found.rows, count, 50, reference)


CASES = {"synthetic": synthetic, "covertype": forest, "beta-bernoulli": rare, "freMTPL2": motor}


def _effective(posterior: shardmc.Posterior, theta: np.ndarray, family: str) -> float:
    """Effective draws of the worst parameter: of the chains, or of the combined draws in their order."""
    if family == DIVIDE:
        return float(np.minimum(effective_size(theta.T[:, None, :]), len(theta)).min())
    return float(np.nansum(posterior.shards.ess, axis=0).min())


def draw(case: Case, method: Method, draws: int, check: bool) -> tuple[shardmc.Posterior, float]:
    """The posterior, and the CPU seconds that it took."""
    options = {"draws": draws, "seed": 0, "check": check, "precision": "single"}
    chosen, begin = method.make(case), time.process_time()
    if chosen is None:
        walk = shardmc.RandomWalk(chains=2, warmup=0, thin=min(case.model.dim, 5))
        posterior = shardmc.fit(case.model, case.rows, shards=1, sampler=walk, **options)
    else:
        posterior = run_method(chosen, case.model, case.rows, case.shards, options)
    return posterior, time.process_time() - begin


def run_once(case: Case, method: Method, draws: int) -> Run:
    """A run with a certificate, which compiles; and again without, for the time, unless it is long anyway."""
    posterior, _ = draw(case, method, draws, check=True)
    seconds = sum(value for name, value in posterior.seconds.items() if name != "check")
    if seconds < 60:
        seconds = draw(case, method, draws, check=False)[1]
    theta = posterior.theta[np.isfinite(posterior.theta).all(axis=1)]
    return Run(
        method.label,
        draws,
        distances(theta, case.reference, MEASURES),
        _effective(posterior, theta, method.family),
        sum(value for name, value in posterior.passes.items() if name != "check"),
        seconds,
        "" if posterior.certificate is None else posterior.certificate.verdict,
    )


def run_method_on(case: Case, method: Method, budgets: tuple[int, ...], patience: float) -> list[Run]:
    """Runs with more and more draws. The last one that is quick enough is the largest."""
    runs = []
    for draws in (100, 400) if method.heavy else budgets:
        try:
            run = run_once(case, method, draws)
        except ShardmcError as error:
            print(case.name, method.label, draws, error, flush=True)
            break
        print(case.name, method.label, draws, run.errors, f"{run.passes:.0f} {run.seconds:.2f}", flush=True)
        runs.append(run)
        if run.seconds * 4 > patience:
            break
    return runs


COLUMNS = (
    "method",
    "settings",
    "draws",
    "effective",
    "KL",
    "worst mean, sd",
    "worst sd, log ratio",
    "passes",
    "rows per effective draw",
    "CPU seconds",
    "certificate",
)


def _row(run: Run, num_rows: int) -> list[object]:
    settings = next(method.settings for method in METHODS if method.label == run.method)
    errors = [f"{run.errors[name]:.2g}" for name in MEASURES]
    cost = run.passes * num_rows / run.ess
    shown = [f"{run.draws:,}", f"{run.ess:,.0f}", *errors, f"{run.passes:,.0f}", f"{cost:.2g}"]
    return [run.method, settings, *shown, f"{run.seconds:.2g}", run.verdict]


def factor_of_proxies(last: dict[str, Run]) -> str:
    """Rows per effective draw of the confidence sampler, relative to Metropolis on all rows."""
    cost = {name: run.passes / run.ess for name, run in last.items()}
    walk, plain, proxies = map(cost.get, ("random-walk Metropolis", "confidence", "confidence, proxies"))
    if walk is None or plain is None or proxies is None:
        return ""
    return (
        "\nRows evaluated per effective draw, relative to random-walk Metropolis on all rows: the confidence sampler "
        f"with proxies {proxies / walk:.2g}, without proxies {plain / walk:.2g}.\n"
    )


def describe(studies: list[Study]) -> str:
    text = "# Other methods: error against cost\n" + EXPLAINED
    for study in studies:
        last = study.last()
        rows = [_row(run, study.num_rows) for run in last.values()]
        floor = [f"{study.floor[name]:.2g}" for name in MEASURES]
        rows.append(["noise floor", "", f"{max(run.draws for run in study.runs):,}", "", *floor, *[""] * 4])
        text += f"\n## {study.title}\n\n{study.made}\n{table(COLUMNS, rows)}" + factor_of_proxies(last)
    return text + "\n![KL divergence against row evaluations and against seconds](field.svg)\n"


EXPLAINED = """
Every method ran with more and more draws. A table shows the last run of each, the picture shows all. KL is the
divergence between Gaussians with the moments of the draws and of the reference. A pass is one evaluation of every
row. Passes and seconds include finding the mode, but not the certificate. Seconds are those of the CPU, compiled.
Effective draws are those of the worst parameter. All subsampling methods got mode and curvature of all rows as
starting point and preconditioner. "Authors'" settings are those of their examples and programs (minibatches of N /
100 and alpha = 0.01 are defaults of the R package sgmcmc), in coordinates in which the posterior is standard; "ours"
are shardmc's. What was tuned: the step sizes of "ours" are chosen at the start from the measured noise of the
gradient, so that the variance is 5 % too large; the scale of Metropolis proposals is 2.38 / sqrt(d). Nothing was
tuned by hand.
"""


def plot(studies: list[Study]) -> None:
    import matplotlib.pyplot as plt

    size = (4 * len(studies), 8.5)
    figure, axes = plt.subplots(2, len(studies), figsize=size, layout="constrained", squeeze=False)
    markers = "os^Dv<>pP*XhdH8osD^"
    for (row, name), (column, study) in itertools.product(
        enumerate(("row evaluations", "CPU seconds, compiled")), enumerate(studies)
    ):
        axis = axes[row][column]
        for marker, method in zip(markers, METHODS, strict=True):
            mine = [run for run in study.runs if run.method == method.label]
            own = method.label.startswith("shardmc")
            axis.plot(
                [run.seconds if row else run.passes * study.num_rows for run in mine],
                [run.errors["kl"] for run in mine],
                marker=marker,
                color="#009E73" if own else COLOURS[method.family],
                alpha=1.0 if own else 0.6,
                linewidth=2.5 if own else 1.0,
                label=method.label if row == column == 0 else None,
            )
        axis.axhline(study.floor["kl"], color="grey", linestyle="--", linewidth=1)
        axis.set(xscale="log", yscale="log", xlabel=name)
        axis.xaxis.set_minor_formatter("")
        axis.grid(alpha=0.3)
        if not row:
            axis.set_title(study.title, fontsize=9)
        if not column:
            axis.set_ylabel("KL divergence (dashed: noise floor)")
    figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    figure.savefig(DOCS / "field.svg")


def make_study(name: str, arguments: argparse.Namespace) -> Study | None:
    quick, (part, parts) = arguments.quick, arguments.part
    case = CASES[name](quick, arguments.rows)
    if case is None:
        return None
    methods, budgets = (QUICK, (250,)) if quick else (METHODS[part - 1 :: parts], BUDGETS)
    runs = [run for method in methods for run in run_method_on(case, method, budgets, arguments.patience)]
    floor = noise_floor(case.reference, max(run.draws for run in runs), MEASURES)
    made = header(
        f"field.py --only {name} --rows {arguments.rows} --patience {arguments.patience:g}", arguments.remark
    )
    return Study(case.title, case.num_rows, floor, runs, made)


def a_part(text: str) -> tuple[int, int]:
    part, parts = map(int, text.split("/"))
    return part, parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small data and few draws; nothing is written")
    parser.add_argument("--only", nargs="+", choices=list(CASES), help="cases")
    parser.add_argument("--rows", type=int, default=700_000, help="the most rows of a case")
    parser.add_argument("--patience", type=float, default=12.0, help="seconds of the longest run of a method")
    parser.add_argument("--results", type=Path, help="folder of finished cases")
    parser.add_argument("--part", type=a_part, default=(1, 1), help="run these methods only, for example 1/3")
    parser.add_argument("--remark", default="", help="a sentence about the machine, for the table")
    arguments = parser.parse_args()
    studies = []
    for name in arguments.only or (["synthetic"] if arguments.quick else CASES):
        finished = sorted(arguments.results.glob(f"{name}-*.json")) if arguments.results else []
        if finished and arguments.part == (1, 1):
            studies.append(Study.joined(finished))
        elif study := make_study(name, arguments):
            studies.append(study)
            if arguments.results:
                arguments.results.mkdir(parents=True, exist_ok=True)
                path = arguments.results / f"{name}-{arguments.part[0]}.json"
                path.write_text(json.dumps(asdict(study)))
    if arguments.part == (1, 1):
        publish("field.md", describe(studies), arguments.quick)
        if not arguments.quick:
            plot(studies)


QUICK = tuple(m for m in METHODS if m.label in ("shardmc (recenter)", "SGLD-CV, ours"))

if __name__ == "__main__":
    main()
