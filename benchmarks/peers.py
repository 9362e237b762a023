"""shardmc next to what a user would pick instead: one run, one machine, the same rows, priors and model.

    python benchmarks/peers.py [--quick] [--seconds 60] [--limit 360] [--only CASE ...] [--methods NAME ...]

Every peer runs in a process of its own. Those that would need hours get about `--seconds` (half of them to adapt) and
their rate of effective draws is reported as measured. Results are kept in --results, one file per run, so that an
interrupted benchmark goes on; prints and writes docs/benchmarks/peers.md and peers.svg. Needs blackjax, and for nutpie
the packages pymc and nutpie.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from peer_cases import CASES, QUICK, Case
from peer_methods import OTHER_SEEDS

NUTS = "NumPyro NUTS"
NUTS_AGAIN = tuple(f"{NUTS}, seed {seed}" for seed in OTHER_SEEDS)
METHOD_NAMES = (
    "shardmc, plain JAX",
    "shardmc, NumPyro model",
    "shardmc, NumPyro model, 20,000 draws",
    NUTS,
    *NUTS_AGAIN,
    "BlackJAX NUTS",
    "nutpie (PyMC)",
    "NumPyro SVI",
    "Laplace",
)
PATIENCE = {"covertype-14": 3}
"""How many times as long as elsewhere a peer gets: with many steps a draw it would have few draws to adapt."""
SEVERAL_SEEDS = ("covertype-4", "covertype-14")
"""Cases whose aims are multiples of NUTS's rate. It varies with what NUTS finds while it adapts, so four seeds run."""
OURS = METHOD_NAMES[:3]
FULL_DATA = (NUTS, "BlackJAX NUTS", "nutpie (PyMC)")


def effective_draws(chains: np.ndarray) -> float:
    """Smallest over the parameters of the effective number of draws, summed over chains (arviz-stats)."""
    from arviz_stats.base.array import array_stats

    each = [[array_stats.ess(c[None, :, k], method="mean") for c in chains] for k in range(chains.shape[2])]
    return float(np.asarray(each, float).sum(axis=1).min())


def seconds_alive() -> float:
    """Since this process was started."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def divergence_of_halves(chains: np.ndarray) -> float:
    """Gaussian KL between the first and the second halves of all chains: four times the noise of all draws together.

    Halves of n / 2 effective draws differ by d (d + 3) / 4 (2 / n + 2 / n), all of them from the truth by a quarter of
    that. Measured, and so right whatever each parameter's, and each covariance's, own effective number is.
    """
    half = chains.shape[1] // 2
    first, second = (c.reshape(-1, chains.shape[2]) for c in (chains[:, :half], chains[:, half : 2 * half]))
    if len(first) <= 2 * chains.shape[2]:
        return float("inf")
    return _kl(first.mean(axis=0), np.cov(first.T), second.mean(axis=0), np.cov(second.T))


def _kl(mean: np.ndarray, cov: np.ndarray, ref_mean: np.ndarray, ref_cov: np.ndarray) -> float:
    """Of one Gaussian from another."""
    inverse, gap = np.linalg.inv(np.atleast_2d(ref_cov)), mean - ref_mean
    ratio = inverse @ np.atleast_2d(cov)
    return float(0.5 * (np.trace(ratio) - len(mean) - np.linalg.slogdet(ratio)[1] + gap @ inverse @ gap))


def run_one(case: Case, method: str, seconds: float, begun: float, out: Path) -> None:
    """In this process: run a peer, and write what it did and its moments."""
    from peer_methods import METHODS

    run = METHODS[method](case, seconds, begun)
    independent = method in ("NumPyro SVI", "Laplace")
    pooled = run.draws.reshape(-1, case.dim)
    found = {
        "case": case.name,
        "method": method,
        "cold": run.cold,
        "warm": run.warm,
        "passes": run.passes,
        "note": run.note,
        "draws": len(pooled),
        "ess": float(len(pooled)) if independent else effective_draws(run.draws),
        "halves": divergence_of_halves(run.draws),
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "mean": pooled.mean(axis=0).tolist(),
        "covariance": np.cov(pooled.T).tolist(),
        **run.extra,
    }
    out.write_text(json.dumps(found))


def reference(case: Case, out: Path) -> None:
    """Moments of many draws of one shard that holds all rows, by proposals where they are accepted, or by HMC.

    On an accelerator HMC has 64 chains and sixteen times the draws.
    """
    import jax
    from peer_methods import plain_model

    import shardmc

    more = case.separated and jax.default_backend() != "cpu"
    hmc = shardmc.HMC(chains=64, warmup=200) if more else shardmc.HMC(chains=8, warmup=100)
    posterior = shardmc.fit(
        plain_model(case),
        case.rows,
        shards=1,
        draws=16 * case.reference_draws if more else case.reference_draws,
        sampler=hmc if case.separated else "independence",
        seed=99,
        check=False,
    )
    theta = posterior.theta
    chains = theta.reshape(hmc.chains if case.separated else 1, -1, case.dim)
    found = {
        "case": case.name,
        "method": "reference",
        "rows": len(case.y),
        "dim": case.dim,
        "draws": len(theta),
        "on": jax.devices()[0].device_kind,
        "ess": effective_draws(chains),
        "halves": divergence_of_halves(chains),
        "acceptance": float(posterior.shards.acceptance.min()),
        "mean": theta.mean(axis=0).tolist(),
        "covariance": np.cov(theta.T).tolist(),
    }
    out.write_text(json.dumps(found))


def kl_and_floor(found: dict, truth: dict) -> tuple[float, float, float]:
    """Gaussian KL of the moments from the reference's, what noise alone gives, distance of the means in sds."""
    mean, ref_mean = np.array(found["mean"]), np.array(truth["mean"])
    kl = _kl(mean, np.array(found["covariance"]), ref_mean, np.array(truth["covariance"]))
    floor = (found["halves"] + truth["halves"]) / 4
    sds = np.sqrt(np.diag(np.atleast_2d(truth["covariance"])))
    return kl, floor, float(np.linalg.norm((mean - ref_mean) / sds))


def report(results: list[dict]) -> str:
    from provenance import header, table

    text = "# Comparison with other samplers\n\n" + header("peers.py") + INTRODUCTION + aims(results)
    for name in dict.fromkeys(r["case"] for r in results):
        runs = {r["method"]: r for r in results if r["case"] == name}
        truth = runs.pop("reference", None)
        if truth is None:
            continue
        rows = [_row(runs[m], truth) for m in METHOD_NAMES if m in runs]
        failed = [f"{m}: {runs[m]['failed']}" for m in METHOD_NAMES if m in runs and "failed" in runs[m]]
        text += f"\n## {name}: {truth['rows']:,} rows, d = {truth['dim']}\n\n" + table(COLUMNS, rows)
        where = "" if truth["on"] == "cpu" else f" on an {truth['on']}"
        text += (
            f"\nReference: {truth['draws']:,} draws{where}, smallest effective number {truth['ess']:,.0f}. "
        )
        notes = [f"{m}: {runs[m]['note']}" for m in METHOD_NAMES if runs.get(m, {}).get("note")]
        text += "; ".join(n.rstrip(".") for n in notes + failed) + ".\n" + _ratios(runs)
    return text + "\n![Effective draws a second, case by case](peers.svg)\n"


COLUMNS = (
    "",
    "seconds cold",
    "warm",
    "draws",
    "min ESS",
    "min ESS a second, cold",
    "warm",
    "KL",
    "KL of noise alone",
    "mean L2, sd",
    "peak memory",
    "passes",
)
INTRODUCTION = """
Every method runs in a process of its own, one after another. *Cold* is the time from an empty process to draws.
*Warm* leaves out loading and compilation; for the samplers on all rows it includes adaptation. Effective draws
(ESS) are those of the worst parameter, computed chain by chain. KL is the Gaussian divergence of mean and
covariance from a long run on all rows. The column beside it is the KL that exact draws would have: a quarter of the
divergence between the first and second halves of the chains, of the run plus the reference. After subtracting this
noise, KL can be negative. "Reached" allows three standard deviations of the remaining noise above Laplace's KL. A
pass evaluates every row once; a pass of a shard evaluates its own rows. Samplers on all rows had limited time, and
so few draws to adapt. Their rates are as measured. In a run of hours, rates would be higher where a draw took very
many steps, and lower where the KL shows that the chain had not reached the posterior. The rate of NumPyro's NUTS
depends on its adaptation, and varies tenfold on covertype-14. On covertype-4 and covertype-14 it therefore runs
with four seeds, and ratios use the effective draws and seconds of all four. shardmc runs with its default of 10,000
draws and with 20,000. Most of its cold time is loading and compilation, which does not grow with the number of
draws.
"""


def _row(found: dict, truth: dict) -> list[object]:
    if "failed" in found:
        return [found["method"], *[""] * (len(COLUMNS) - 1)]
    kl, floor, gap = kl_and_floor(found, truth)
    sampler = found["method"] in OURS + FULL_DATA + NUTS_AGAIN
    passes = found["passes"]
    return [
        found["method"],
        f"{found['cold']:.1f}",
        f"{found['warm']:.2f}",
        f"{found['draws']:,}",
        f"{found['ess']:,.0f}" if sampler else "",
        f"{found['ess'] / found['cold']:,.3g}" if sampler else "",
        f"{found['ess'] / found['warm']:,.3g}" if sampler else "",
        f"{kl:.2g}" if np.isfinite(kl) else "",
        f"{floor:.2g}" if np.isfinite(floor) else "",
        f"{gap:.2g}",
        f"{found['peak'] / 1e9:.2f} GB",
        "" if np.isnan(passes) else f"{passes:,.0f}",
    ]


AIMS = {"covertype-4": (250, 1_000), "covertype-14": (6_000, 40_000)}
"""Times NumPyro NUTS's effective draws a second, cold and warm."""
LARGEST_KL = 0.02
ASTRAY = 1.0
"""KL less its noise beyond which a sampler has plainly not reached the posterior in its time."""


def aims(results: list[dict]) -> str:
    """A table of what was aimed at and what was measured, for the NumPyro front end."""
    from provenance import table

    rows = []
    for name in dict.fromkeys(r["case"] for r in results):
        runs = {r["method"]: r for r in results if r["case"] == name}
        truth = runs.pop("reference", None)
        peers = on_all_rows(runs)
        for ours in (runs[m] for m in OURS[1:] if truth and "ess" in runs.get(m, {})):
            draws = f"{ours['draws']:,} draws"
            for kind, least in zip(("cold", "warm"), AIMS.get(name, ()), strict=False):
                if NUTS in peers:
                    times = _rate(ours, kind) / _rate(peers[NUTS], kind)
                    rows.append(_aim(name, draws, f"times {NUTS}, {kind}", times, least))
            if peers:
                fastest = max(peers.values(), key=lambda peer: _rate(peer, "warm"))
                times = _rate(ours, "warm") / _rate(fastest, "warm")
                what = f"times the fastest peer{_caveat(fastest, truth)}, warm"
                rows.append(_aim(name, draws, what, times, 100))
            rows.append(_kl_aim(name, draws, ours, runs.get("Laplace"), truth))
    return "\n" + table(("case", "", "what", "measured", "aim", ""), rows) if rows else ""


def on_all_rows(runs: dict[str, dict]) -> dict[str, dict]:
    """The samplers on all rows that finished. All seeds of NumPyro's NUTS count as one run, as long as all of them."""
    peers = {m: runs[m] for m in FULL_DATA if "ess" in runs.get(m, {})}
    if NUTS in peers:
        seeds = [peers[NUTS], *(runs[m] for m in NUTS_AGAIN if "ess" in runs.get(m, {}))]
        peers[NUTS] = peers[NUTS] | {k: sum(run[k] for run in seeds) for k in ("ess", "cold", "warm")}
    return peers


def _caveat(peer: dict, truth: dict) -> str:
    kl, floor, _ = kl_and_floor(peer, truth)
    if not np.isfinite(floor):
        return " (too few draws to check its KL)"
    return " (not yet at the posterior)" if kl - floor > ASTRAY else ""


def _rate(run: dict, kind: str) -> float:
    return run["ess"] / run[kind]


def _aim(name: str, draws: str, what: str, times: float, least: float) -> list[object]:
    reached = "reached" if times >= least else "**missed**"
    return [name, draws, what, f"{times:,.0f}", f"at least {least:,}", reached]


def _kl_aim(name: str, draws: str, ours: dict, laplace: dict | None, truth: dict) -> list[object]:
    """KL less its noise; above Laplace's only where the difference is more than three sds of what noise is left."""
    kl, floor, _ = kl_and_floor(ours, truth)
    # Noise is chi-square with as many degrees of freedom as there are moments; so is what was measured of it.
    moments = len(ours["mean"]) * (len(ours["mean"]) + 3) / 2
    left = float(np.linalg.norm([floor, ours["halves"] / 4, truth["halves"] / 4]) * np.sqrt(2 / moments))
    bound, aimed = LARGEST_KL, f"below {LARGEST_KL}"
    if laplace is not None and "ess" in laplace:
        other, other_floor, _ = kl_and_floor(laplace, truth)
        bound = min(bound, max(other - other_floor, 0.0) + 3 * left)
        aimed += f", Laplace's {other - other_floor:.2g}"
    reached = "reached" if kl - floor <= bound else "**missed**"
    return [name, draws, "KL less its noise", f"{kl - floor:.2g} ± {left:.1g}", aimed, reached]


def _ratios(runs: dict[str, dict]) -> str:
    """How many times the effective draws a second of the peers."""
    peers = on_all_rows(runs)
    if not peers:
        return ""

    best = max(peers, key=lambda m: _rate(peers[m], "warm"))
    lines = [
        f"- {ours} over {m}: {_rate(runs[ours], 'cold') / _rate(p, 'cold'):,.0f} times cold, "
        f"{_rate(runs[ours], 'warm') / _rate(p, 'warm'):,.0f} times warm"
        for ours in OURS[1:]
        if "ess" in runs.get(ours, {})
        for m, p in peers.items()
        if m in (NUTS, best)
    ]
    return (
        f"\nEffective draws a second; the fastest peer on all rows is {best}.\n\n" + "\n".join(lines) + "\n"
    )


def plot(results: list[dict], path: Path) -> None:
    """Warm effective draws a second of every case, one row per case."""
    import matplotlib.pyplot as plt

    cases: dict[str, dict] = {}
    for result in reversed(results):
        cases.setdefault(result["case"], {})[result["method"]] = result
    figure, axes = plt.subplots(figsize=(7.5, 0.55 * len(cases) + 1.6), layout="constrained")
    colours = {
        "shardmc, NumPyro model": "#0072B2",
        NUTS: "#D55E00",
        "BlackJAX NUTS": "#E69F00",
        "nutpie (PyMC)": "#009E73",
    }
    for place, (method, colour) in enumerate(colours.items()):
        found = [(runs | on_all_rows(runs)).get(method, {}) for runs in cases.values()]
        # A little apart, so that equal rates do not hide each other.
        heights = [k + 0.14 * (1.5 - place) for k, run in enumerate(found) if "ess" in run]
        rates = [_rate(run, "warm") for run in found if "ess" in run]
        axes.plot(rates, heights, "o", color=colour, markersize=7, label=method)
    axes.set_yticks(range(len(cases)), list(cases))
    axes.set(xscale="log", xlabel="effective draws a second of the worst parameter, compiled")
    axes.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside upper center", ncols=4, frameon=False)
    figure.savefig(path)


def collect(arguments: argparse.Namespace, cases: dict) -> list[dict]:
    """Run what has no result yet, each in a process of its own, and read all results."""
    folder = Path(arguments.results)
    folder.mkdir(parents=True, exist_ok=True)
    results = []
    for name in arguments.only or cases:
        for method in ("reference", *(arguments.methods or METHOD_NAMES)):
            if method in NUTS_AGAIN and name not in SEVERAL_SEEDS:
                continue
            path = folder / f"{name}--{method.replace(' ', '-')}.json"
            if not path.exists() and not arguments.finished:
                command = [sys.executable, __file__, "--one", name, method, str(path)]
                seconds = PATIENCE.get(name, 1) * arguments.seconds
                command += ["--seconds", str(seconds), *["--quick"] * arguments.quick]
                _run(command, path, name, method, arguments.limit or 6 * seconds + 600)
            if path.exists():
                results.append(json.loads(path.read_text()))
                print(name, method, "done", flush=True)
    return results


def _run(command: list[str], path: Path, case: str, method: str, limit: float) -> None:
    # No process finds compiled programs of another one: cold is the first run ever.
    with tempfile.TemporaryDirectory() as programs:
        environment = {**os.environ, "PYTHONWARNINGS": "ignore", "SHARDMC_PROGRAMS": programs}
        try:
            done = subprocess.run(command, env=environment, timeout=limit, capture_output=True, text=True)
            why = (done.stderr.strip().splitlines() or ["no message"])[-1] if done.returncode else ""
        except subprocess.TimeoutExpired:
            why = f"not finished after {limit:.0f} s"
    if why:
        path.write_text(json.dumps({"case": case, "method": method, "failed": why[:200]}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small data, little time; nothing is written")
    parser.add_argument("--seconds", type=float, default=60.0, help="time of a peer that could take hours")
    parser.add_argument(
        "--limit", type=float, help="seconds after which a run is given up (6 x --seconds + 600)"
    )
    parser.add_argument("--only", nargs="+", help="cases")
    parser.add_argument("--methods", nargs="+", help="peers")
    parser.add_argument("--results", default="peers-results", help="folder of finished runs")
    parser.add_argument("--finished", action="store_true", help="only what has a result already")
    parser.add_argument("--one", nargs=3, metavar=("CASE", "METHOD", "FILE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.seconds = min(arguments.seconds, 5.0)
    cases = QUICK if arguments.quick else CASES
    if arguments.one:
        name, method, file = arguments.one
        alive = seconds_alive()
        case = cases[name]()
        if case is None:
            return
        if method == "reference":
            reference(case, Path(file))
        else:
            # The clock has run since the process was started, but for making the rows.
            run_one(case, method, arguments.seconds, time.perf_counter() - alive, Path(file))
        return
    from provenance import DOCS, publish

    results = collect(arguments, cases)
    publish("peers.md", report(results), arguments.quick)
    if not arguments.quick:
        plot(results, DOCS / "peers.svg")


if __name__ == "__main__":
    main()
