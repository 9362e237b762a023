"""Mixed models next to lme4, glmmTMB, GPBoost and NumPyro: one run, one machine, the same rows.

    python benchmarks/mixed.py [--quick] [--part 0.05] [--limit 1800] [--only CASE ...] [--methods NAME ...]

Each fit runs in a process of its own, one after another. Finished runs stay in --results, so that a stopped benchmark
continues. Prints and writes docs/benchmarks/mixed.md; with --quick, --part or --only it writes nothing. Needs Rscript
with lme4 and glmmTMB, and GPBoost; a peer that is not installed is named under the table.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
from mixed_cases import FULL, QUICK, Case
from mixed_peers import EXACT, METHODS, OURS, Absent
from provenance import header, publish, table

from shardmc.errors import counted

ERROR = 0.1
"""The largest error of a group's sd or correlation, in posterior sds."""
COLUMNS = (
    "",
    "seconds, cold",
    "seconds, compiled",
    "CPU seconds",
    "error, in posterior sds",
    "sd, ratio",
    "peak memory",
)


def run_one(case: Case, method: str, draws: int, out: Path) -> None:
    """In this process: fit a case by a method, and write what was found."""
    found: dict[str, object] = {"case": case.name, "method": method}
    try:
        fit = METHODS[method](case, case.table(), draws)
    except Absent as reason:
        found["absent"] = str(reason)
    else:
        # R runs in a child of this process, all others in this process itself.
        users = (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF)
        peak = next(filter(None, (resource.getrusage(user).ru_maxrss for user in users))) * 1024
        found |= {
            "cold": fit.cold,
            "cpu": fit.cpu,
            "compiled": fit.compiled,
            "draws": fit.draws,
            "peak": peak,
        }
        found |= {"estimates": fit.estimates, "facts": fit.facts}
    out.write_text(json.dumps(found))


def collect(given: argparse.Namespace, cases: dict[str, Case]) -> list[dict]:
    """Run what has no result yet and read all results."""
    folder = Path(given.results)
    folder.mkdir(parents=True, exist_ok=True)
    results = []
    for name in cases:
        for method in given.methods or METHODS:
            label = "".join(c if c.isalnum() else "-" for c in f"{name}--{method}")
            path = folder / f"{label}.json"
            if not path.exists():
                _run(given, name, method, path)
            results.append(json.loads(path.read_text()))
            print(json.dumps(results[-1]), flush=True)
    return results


def _run(given: argparse.Namespace, name: str, method: str, path: Path) -> None:
    command = [sys.executable, __file__, "--one", name, method, str(path), "--part", str(given.part)]
    command += ["--draws", str(given.draws), *["--quick"] * given.quick]
    try:
        environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
        done = subprocess.run(command, env=environment, timeout=given.limit, capture_output=True, text=True)
        lines = done.stderr.strip().splitlines() or ["no message"]
        why = lines[-1][:300] if done.returncode else ""
    except subprocess.TimeoutExpired:
        why = f"not finished after {given.limit:.0f} s"
    if why:
        path.write_text(json.dumps({"case": name, "method": method, "absent": why}))


def errors(case: Case, found: dict, truth: dict | None) -> tuple[dict[str, float], dict[str, float]]:
    """Errors in posterior sds, and ratios of sds, of the parameters of interest."""
    gaps, ratios = {}, {}
    for name in case.of_interest if truth else ():
        mean, sd = truth["estimates"][name]
        if name in found["estimates"]:
            gaps[name] = (found["estimates"][name][0] - mean) / sd
            ratios[name] = found["estimates"][name][1] / sd
    return gaps, ratios


def noise(found: dict, truth: dict) -> float:
    """Monte Carlo standard error of the difference of two means, in posterior sds."""
    acceptance = found["facts"].get("acceptance", 1.0), truth["facts"].get("acceptance", 1.0)
    # Proposals that are accepted with probability a leave about a / (2 - a) effective draws for each draw.
    shares = [a / (2 - a) for a in acceptance]
    return float(np.sqrt(1 / (shares[0] * found["draws"]) + 1 / (shares[1] * truth["draws"])))


def _worst(values: dict[str, float], middle: float = 0.0) -> float:
    return max(values.values(), key=lambda value: abs(value - middle))


def row(case: Case, found: dict, truth: dict | None) -> list[object]:
    """One line of a case's table."""
    gaps, ratios = errors(case, found, truth)
    known = found["method"] != EXACT
    estimates = [found["estimates"].get(name) for name in case.of_interest]
    return [
        found["method"] + (f", {found['draws']:,} draws" if found["draws"] else ""),
        f"{found['cold']:.1f}",
        "" if found["compiled"] is None else f"{found['compiled']:.1f}",
        f"{found['cpu']:.1f}",
        f"{_worst(gaps):+.2f}" if gaps and known else "",
        f"{_worst(ratios, 1.0):.2f}" if gaps and known and found["draws"] else "",
        f"{found['peak'] / 1e9:.2f} GB",
        *(
            "" if e is None else f"{e[0]:.4f}" + ("" if np.isnan(e[1]) else f" ± {e[1]:.4f}")
            for e in estimates
        ),
    ]


def reached(case: Case, runs: dict[str, dict]) -> list[list[object]]:
    """One row for each aim of a case: times against peers, and the errors."""
    mine, truth = runs[OURS], runs.get(EXACT)
    rows = []
    for which, peer, ratio in case.aims:
        if peer in runs:
            most = ratio * runs[peer]["cold"]
            said = f"at most {'' if ratio == 1 else f'{ratio:g} times '}that of {peer}, {most:.1f} s"
            rows.append(
                [case.name, f"time, {which}", f"{mine[which]:.1f} s", said, _verdict(mine[which] <= most)]
            )
    if truth is not None:
        spread = noise(mine, truth)
        for name, gap in errors(case, mine, truth)[0].items():
            said = f"within {ERROR} posterior sd"
            right = _verdict(abs(gap) <= ERROR + 2 * spread)
            rows.append([case.name, f"error of {name}", f"{gap:+.3f} ± {spread:.3f}", said, right])
    return rows


def _verdict(right: bool) -> str:
    return "reached" if right else "**missed**"


def report(results: list[dict], cases: dict[str, Case], part: float) -> str:
    """The page: a table of each case, notes, and what was aimed at."""
    versions = dict.fromkeys(
        r["facts"]["version"].strip() for r in results if "version" in r.get("facts", {})
    )
    text = "# Mixed models\n\n" + header("mixed.py", f"Peers: {', '.join(versions)}." if versions else "")
    text += INTRODUCTION
    if part != 1:
        text += f"\nOnly {part:.0%} of the rows.\n"
    aims = []
    for name, case in cases.items():
        every = {r["method"]: r for r in results if r["case"] == name}
        runs = {method: r for method, r in every.items() if "absent" not in r}
        truth = runs.get(EXACT)
        text += f"\n## {name}\n\n`{case.formula}`, {case.groups * case.size:,} rows.\n\n"
        text += table((*COLUMNS, *case.of_interest), [row(case, r, truth) for r in runs.values()])
        missing = [f"{m}: {r['absent'].rstrip('.')}." for m, r in every.items() if "absent" in r]
        text += "".join(f"\n{line}\n" for line in missing)
        if OURS in runs:
            facts = runs[OURS]["facts"]
            nodes = f"and {facts['nodes']} nodes " if facts.get("nodes") else ""
            text += (
                f"\nshardmc used {counted(facts['shards'], 'shard')} {nodes}in {facts['precision']} precision; "
                f'acceptance {facts["acceptance"]:.2f}; the certificate says "{facts["verdict"]}". Seconds of the '
                f"stages, compiled: {', '.join(f'{stage} {s:g}' for stage, s in facts['stages'].items())}.\n"
            )
            aims += reached(case, runs)
    return text + "\n## Aims\n\n" + table(("case", "what", "measured", "aim", ""), aims)


INTRODUCTION = """
Every fit runs in a process of its own, one after another, on the same simulated rows. *Cold* is the first call in a
process with everything imported, so it includes compilation; *compiled* is the second call. Both include the
certificate. *CPU seconds* are those of all cores in the second call, or in the only one. For R and GPBoost only the
fit is timed, with default options. They give an estimate, not a posterior.

"One shard" is shardmc with all groups in one shard, so without the error of splitting, and with twice the quadrature
nodes that shardmc would choose. Errors are differences from its posterior mean, in posterior sds: of the posterior
means, or of the estimates. The tables show the largest among the sds and correlations of the groups. `sd, ratio` is the
posterior sd over that of "one shard". An error reaches its aim if it is within the limit plus two Monte Carlo standard
errors.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one small case, few draws; writes nothing")
    parser.add_argument(
        "--part", type=float, default=1.0, help="part of the rows; less than 1 writes nothing"
    )
    parser.add_argument("--draws", type=int, default=10_000)
    parser.add_argument("--limit", type=float, default=1_800.0, help="seconds after which a fit is stopped")
    parser.add_argument("--only", nargs="+", help="cases; writes nothing")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS))
    parser.add_argument("--results", default="mixed-results", help="folder of finished runs")
    parser.add_argument("--one", nargs=3, metavar=("CASE", "METHOD", "FILE"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    cases = {name: case.scaled(given.part) for name, case in (QUICK if given.quick else FULL).items()}
    if given.one:
        name, method, file = given.one
        run_one(cases[name], method, given.draws, Path(file))
        return
    if given.quick:
        given.draws = min(given.draws, 200)
    chosen = {name: cases[name] for name in given.only or cases}
    results = collect(given, chosen)
    publish(
        "mixed.md", report(results, chosen, given.part), given.quick or given.part != 1 or bool(given.only)
    )


if __name__ == "__main__":
    main()
