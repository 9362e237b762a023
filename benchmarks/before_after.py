"""Is shardmc as fast as it was? The same fits with an earlier checkout and with this one, in one run.

    git worktree add ../before COMMIT
    python benchmarks/before_after.py --before ../before [--cases covertype-4 covertype-53] [--times 5]

Each fit runs in a process of its own, the two versions in turn, so that both meet the same machine. The methods are
those of `peers.py`. It writes docs/benchmarks/before_after.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from provenance import header, publish

HERE = Path(__file__).resolve().parents[1]
CASES = ("covertype-4", "covertype-14", "covertype-53")
METHODS = ("shardmc, plain JAX", "shardmc, NumPyro model")


def one(tree: Path, case: str, method: str, quick: bool) -> dict:
    """The result of one fit with the sources of a checkout."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        command = [sys.executable, str(tree / "benchmarks" / "peers.py"), "--one", case, method, str(file)]
        paths = [str(tree / "src"), os.environ.get("PYTHONPATH", "")]
        # A cold fit compiles: it must not find programs that an earlier process kept.
        settings = {"PYTHONWARNINGS": "ignore", "SHARDMC_PROGRAMS": "off"}
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **settings}
        subprocess.run([*command, *["--quick"] * quick], env=environment, check=True, capture_output=True)
        return json.loads(file.read_text())


def row(case: str, method: str, results: dict[str, list[dict]]) -> str:
    cells = [case, method]
    for key in ("cold", "warm"):
        before, after = (np.array([each[key] for each in results[when]]) for when in ("before", "after"))
        cells += [f"{np.median(before):.2f}", f"{np.median(after):.2f}", f"{np.median(after / before):.2f}"]
    rates = {when: np.median([each["ess"] / each["warm"] for each in results[when]]) for when in results}
    cells += [f"{rates['before']:,.0f}", f"{rates['after']:,.0f}", f"{rates['after'] / rates['before']:.2f}"]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, required=True, help="a checkout of the earlier version")
    parser.add_argument("--label", default="the earlier version", help="how the page names it")
    parser.add_argument("--note", default="", help="a sentence about the machine, for the page")
    parser.add_argument("--times", type=int, default=5, help="fits of each kind")
    parser.add_argument("--cases", nargs="+", default=CASES, help="some of the cases")
    parser.add_argument(
        "--quick", action="store_true", help="small data, one fit of each; nothing is written"
    )
    arguments = parser.parse_args()
    times = 1 if arguments.quick else arguments.times
    lines = []
    for case in arguments.cases:
        for method in METHODS:
            results: dict[str, list[dict]] = {"before": [], "after": []}
            for _ in range(times):
                for when, tree in (("before", arguments.before.resolve()), ("after", HERE)):
                    results[when].append(one(tree, case, method, arguments.quick))
            lines.append(row(case, method, results))
            print(lines[-1], flush=True)
    text = "\n".join(
        [
            "# Speed before and after a change",
            "",
            header("before_after.py --before FOLDER", arguments.note),
            f"Seconds of a fit with 10,000 draws and certificate, with {arguments.label} and with this one, in turn: "
            f"medians of {times}. Cold is the first fit of a process, loading and compiling included; warm is the "
            "median of three more. The ratio is the median of the ratios of neighbouring fits. ESS/s are the effective "
            "draws a second of the worst parameter, warm.",
            "",
            "| case | method | cold, before | after | ratio | warm, before | after | ratio "
            "| ESS/s, before | after | ratio |",
            "|---|---|---|---|---|---|---|---|---|---|---|",
            *lines,
        ]
    )
    publish("before_after.md", text, arguments.quick)


if __name__ == "__main__":
    main()
