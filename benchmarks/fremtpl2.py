"""French motor insurance: claim counts with exposure and all rating factors, in one call from the Parquet file.

    python benchmarks/fremtpl2.py [--quick]

Prints and writes docs/benchmarks/fremtpl2.md: seconds from the start of Python (imports and compilation included) to a
certified posterior, and its distance from a maximum-likelihood fit in float64 (by glum where it is installed).
"""

from __future__ import annotations

import time

START = time.perf_counter()

import argparse  # noqa: E402 - the clock starts before anything is imported
import os  # noqa: E402
from collections.abc import Iterator  # noqa: E402

import numpy as np  # noqa: E402
from datasets import data_file  # noqa: E402
from provenance import header, publish, table  # noqa: E402

from shardmc.data import as_source  # noqa: E402
from shardmc.formulas import Design, design_of, glm  # noqa: E402

FORMULA = (
    "ClaimNb_corrected ~ Area + C(np.minimum(VehPower, 10)) + bs(np.minimum(VehAge, 25), df=5) "
    "+ bs(np.minimum(DrivAge, 85), df=5) + np.minimum(BonusMalus, 150) + VehBrand + VehGas + np.log(Density) + Region"
)
SHOWN = ("Intercept", "VehGas[T.Regular]", "VehBrand[T.B12]", "np.minimum(BonusMalus, 150)", "Region[T.R82]")


def maximum_likelihood(design: Design, path: str) -> tuple[dict[str, float], str]:
    """Poisson regression without a prior: by glum where it is installed, and by whom."""
    names = ["Intercept", *design.names]
    try:
        import glum
    except ImportError:
        return dict(
            zip(names, _reweighted(design, path), strict=True)
        ), "iteratively reweighted least squares"
    pieces = list(_pieces(design, path))
    x, y, offset = (np.concatenate([piece[k] for piece in pieces]) for k in range(3))
    model = glum.GeneralizedLinearRegressor(family="poisson", alpha=0, fit_intercept=True, gradient_tol=1e-6)
    model.fit(x, y, offset=offset)
    return dict(zip(names, [model.intercept_, *model.coef_], strict=True)), f"glum {glum.__version__}"


def _pieces(design: Design, path: str) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Design, response and offset, piece by piece in float64."""
    for piece in as_source(path).tables(design.columns):
        chunk = design.chunk(piece)
        offset = design.roles.offset_values(chunk)
        assert offset is not None
        yield design.encoder.matrix(chunk), design.roles.response_values(chunk, None), offset


def _reweighted(design: Design, path: str) -> np.ndarray:
    """Iteratively reweighted least squares, for a machine without glum."""
    beta = np.zeros(1 + len(design.encoder.names))
    beta[0] = design.priors["Intercept"].arguments[0]
    for _ in range(30):
        information, score = np.zeros((len(beta), len(beta))), np.zeros(len(beta))
        for columns, y, offset in _pieces(design, path):
            x = np.column_stack([np.ones(len(y)), columns])
            mean = np.exp(x @ beta + offset)
            information += (x * mean[:, None]).T @ x
            score += x.T @ (y - mean)
        step = np.linalg.solve(information, score)
        beta += step
        if np.sqrt(step @ score) < 1e-6:
            break
    return beta


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few draws; writes nothing")
    arguments = parser.parse_args()
    path = data_file("freMTPL2.parquet")
    if path is None:
        return
    draws = 2_000 if arguments.quick else 10_000
    posterior = glm(FORMULA, os.fspath(path), "poisson", exposure="Exposure", draws=draws, seed=0)
    seconds, busy, load = time.perf_counter() - START, time.process_time(), os.getloadavg()[0]
    design = design_of(posterior)
    exact, by = maximum_likelihood(design, os.fspath(path))
    summary = posterior.summary()
    gap = {name: (summary.loc[name, "mean"] - exact[name]) / summary.loc[name, "sd"] for name in exact}
    worst = max(gap, key=lambda name: abs(gap[name]))
    certificate = "not certified" if posterior.certificate is None else posterior.certificate.sentence
    facts = [
        ("rows", posterior.plan.rows),
        ("parameters", len(exact)),
        ("shards", posterior.plan.shards),
        ("draws", posterior.num_draws),
        ("seconds, cold", f"{seconds:.1f}"),
        ("processor seconds of both cores together", f"{busy:.1f}"),
        ("load average when it ended (2 would be this job alone)", f"{load:.1f}"),
        ("evaluations of all rows", f"{sum(posterior.passes.values()):.0f}"),
        ("certificate", certificate),
        ("maximum likelihood by", by),
        ("largest distance from maximum likelihood, posterior sd", f"{abs(gap[worst]):.3f} ({worst})"),
    ]
    some = [
        (name, summary.loc[name, "mean"], summary.loc[name, "sd"], float(exact[name]), float(gap[name]))
        for name in SHOWN
    ]
    text = (
        "# freMTPL2: claim counts with exposure\n\n"
        + header("fremtpl2.py")
        + f"\n`{FORMULA}`, Poisson, exposure `Exposure`.\n\n"
        + table(("", ""), facts)
        + "\n"
        + table(("parameter", "posterior mean", "sd", "maximum likelihood", "distance, sd"), some)
        + "\n"
        + table(("stage", "seconds"), [(k, f"{v:.2f}") for k, v in posterior.seconds.items()])
    )
    publish("fremtpl2.md", text, arguments.quick)


if __name__ == "__main__":
    main()
