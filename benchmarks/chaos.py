"""Kills at random moments, of drivers and workers, with all engines and sources: what survives, what is lost.

    python benchmarks/chaos.py [--quick] [--kills 200] [--seed 0] [--only NAME ...]

Every case is run once undisturbed. Then its run is started again and again and killed with SIGKILL, in a stage that
is chosen at random (sampling above all), until the run is finished. Its draws must be those of the undisturbed run, and
no shard that was finished before a kill may be computed again. In the cases with Dask, every second kill hits a worker,
and the driver must finish without it.

Takes about a quarter of an hour on two cores. The seed chooses the stages and the moments; a kill comes some
milliseconds after an event, so that two runs of this script are alike and not equal. Prints and writes
docs/benchmarks/chaos.md. Ends with exit code 1 unless all runs survived, identical, with nothing lost.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

STAGES = (
    "read",
    "split",
    "precision",
    "locate",
    "keep",
    "locate shards",
    "sample",
    "combine",
    "check",
    "describe",
)
SHARDS = 24
MOST_KILLS = 8  # of one run; then it may finish
PATIENCE = 300.0  # seconds for one process


@dataclass(frozen=True)
class Case:
    """A fit: where its rows are, what is fitted, and where shards run."""

    source: str  # "memory" or "parquet"
    model: str  # "functions", "formula", "groups" or "nuts"
    engine: str = "local"  # or "dask"

    @property
    def name(self) -> str:
        return f"{self.model}, {self.source}, {self.engine}"


CASES = (
    Case("memory", "functions"),
    Case("parquet", "functions"),
    Case("memory", "nuts"),
    Case("memory", "formula"),
    Case("parquet", "formula"),
    Case("memory", "groups"),
    Case("parquet", "groups"),
    Case("memory", "functions", "dask"),
    Case("parquet", "functions", "dask"),
    Case("parquet", "formula", "dask"),
    Case("memory", "groups", "dask"),
)
QUICK = (CASES[1],)


# What the killed process does.


def write_rows(path: Path) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    x, g = rng.normal(size=3_600), np.repeat(np.arange(240), 15)
    y = 1 + 0.5 * x + 0.7 * rng.normal(size=240)[g] + rng.normal(size=3_600)
    pq.write_table(pa.table({"y": y.astype("f4"), "x": x.astype("f4"), "g": g}), path)


def run(case: Case, rows: Path, folder: Path, scheduler: str) -> None:
    """The fit, with a line for every step of its progress, and at the end the digest of its draws."""
    import pyarrow.parquet as pq

    import shardmc
    from shardmc.data import as_source

    def progress(stage: str, done: int, total: int) -> None:
        print(stage, flush=True)
        time.sleep(0.01)  # so that kills come while shards are sampled, and not all of them after that

    if case.source == "memory":
        data = pq.read_table(rows)
    else:
        data = as_source(rows, memory=0, scratch=folder.parent / f"{folder.name}-rows")
    options = {
        "shards": SHARDS,
        "draws": 480,
        "seed": 3,
        "run_dir": folder,
        "progress": progress,
        "engine": shardmc.Dask(scheduler, batch=1) if case.engine == "dask" else shardmc.Local(batch=1),
    }
    if case.model in ("functions", "nuts"):
        model = shardmc.Model(
            lambda params, rows: -0.5 * (rows["y"] - params["a"] - params["b"] * rows["x"]) ** 2,
            lambda params: -0.005 * (params["a"] ** 2 + params["b"] ** 2),
            {"a": (), "b": ()},
        )
        posterior = shardmc.fit(model, data, sampler="nuts" if case.model == "nuts" else "auto", **options)
    else:
        group = " + (1 | g)" if case.model == "groups" else ""
        posterior = shardmc.glm(f"y ~ x{group}", data, **options)
    digest = hashlib.sha256(posterior.theta.tobytes() + posterior.shards.draws.tobytes()).hexdigest()
    saved = shardmc.load(folder)
    assert saved.theta.tobytes() == posterior.theta.tobytes(), "the file holds other draws"
    print(f"digest {digest}", flush=True)


# Who kills it.


@dataclass
class Tally:
    """What happened to the runs of one case."""

    driver: int = 0
    worker: int = 0
    survived: int = 0
    identical: int = 0
    lost_shards: int = 0
    stages: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    @property
    def kills(self) -> int:
        return self.driver + self.worker


@dataclass(frozen=True)
class Workshop:
    """Rows, compiled programs and a cluster that all runs share."""

    folder: Path
    scheduler: str

    @property
    def rows(self) -> Path:
        return self.folder / "rows.parquet"

    def start(self, case: Case, folder: Path) -> subprocess.Popen[str]:
        command = [sys.executable, __file__, "--child", str(CASES.index(case)), str(self.rows), str(folder)]
        return subprocess.Popen(
            [*command, self.scheduler],
            stdout=subprocess.PIPE,
            stderr=(self.folder / f"{folder.name}.err").open("w"),
            text=True,
        )

    def finish(self, case: Case, folder: Path) -> str:
        """Let a run come to its end: its digest, or what went wrong."""
        child = self.start(case, folder)
        try:
            shown, _ = child.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            child.kill()
            return "it did not end"
        return self.outcome(child, shown.splitlines(), folder)

    def outcome(self, child: subprocess.Popen[str], lines: list[str], folder: Path) -> str:
        if child.returncode == 0 and lines and lines[-1].startswith("digest "):
            return lines[-1]
        errors = (self.folder / f"{folder.name}.err").read_text().strip().splitlines()
        return f"exit code {child.returncode}: {errors[-1] if errors else 'no message'}"


def written(folder: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of writing of every finished shard: a file that is written again has others."""
    found = {}
    for path in (folder / "shards").glob("[0-9]*.npz"):
        status = path.stat()
        found[path.name] = (status.st_ino, status.st_mtime_ns)
    return found


def target(rng: random.Random) -> tuple[str, int]:
    """A stage and how many of its events to wait for."""
    stage = "sample" if rng.random() < 0.6 else rng.choice(STAGES)
    return stage, rng.randrange(1, SHARDS // 2) if stage == "sample" else rng.randrange(1, 3)


def disturb(
    shop: Workshop, case: Case, folder: Path, rng: random.Random, tally: Tally, *, worker: bool
) -> str:
    """Start a run and kill it, or a worker, at a random moment; its last line if it came to its end, or ''."""
    stage, events = target(rng)
    child, lines, struck = shop.start(case, folder), [], False
    assert child.stdout is not None
    for line in map(str.strip, child.stdout):
        lines.append(line)
        here = STAGES.index(line) if line in STAGES else -1
        events -= here >= STAGES.index(stage)
        if struck or here < 0 or events > 0:
            continue
        time.sleep(rng.uniform(0, 0.03))
        struck = True
        tally.stages[line] += 1
        if worker:
            tally.worker += 1
            kill_a_worker(shop.scheduler, rng)
        else:
            tally.driver += 1
            child.kill()
            break
    child.stdout.close()
    child.wait(PATIENCE)
    return "" if struck and not worker else shop.outcome(child, lines, folder)


def kill_a_worker(scheduler: str, rng: random.Random) -> None:
    from distributed import Client

    with Client(scheduler, set_as_default=False) as client:
        os.kill(rng.choice(sorted(client.run(os.getpid, on_error="ignore").values())), signal.SIGKILL)


def torment(shop: Workshop, case: Case, kills: int, seed: int) -> Tally:
    """Runs of one case, until so many kills have hit them."""
    tally = Tally()
    wanted = shop.finish(case, shop.folder / f"{CASES.index(case)}-undisturbed")
    if not wanted.startswith("digest "):
        tally.problems.append(f"undisturbed: {wanted}")
        return tally
    rng, number = random.Random(f"{seed} {case.name}"), 0
    while tally.kills < kills and not tally.problems:
        number += 1
        folder = shop.folder / f"{CASES.index(case)}-{number}"
        before, ended, seen = tally.kills, "", {}
        while not ended:
            if tally.kills >= kills or tally.kills - before >= MOST_KILLS:
                ended = shop.finish(case, folder)
            else:
                worker = case.engine == "dask" and rng.random() < 0.5
                ended = disturb(shop, case, folder, rng, tally, worker=worker)
            now = written(folder)
            tally.lost_shards += sum(now.get(name) != file for name, file in seen.items())
            seen = now
        hit = tally.kills - before
        if not ended.startswith("digest "):
            tally.problems.append(ended)
            continue
        tally.survived += hit
        tally.identical += hit if ended == wanted else 0
    return tally


@contextmanager
def workshop(cases: tuple[Case, ...]) -> Iterator[Workshop]:
    """Rows, a folder for programs and, if a case needs it, a cluster of two worker processes."""
    with tempfile.TemporaryDirectory(prefix="shardmc-chaos-") as name:
        write_rows(Path(name) / "rows.parquet")
        # Every process compiles fast, and finds what another one has compiled.
        os.environ |= {
            "JAX_COMPILATION_CACHE_DIR": str(Path(name) / "jax"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
        }
        if all(case.engine == "local" for case in cases):
            yield Workshop(Path(name), "-")
            return
        import dask
        from distributed import LocalCluster

        cores = str(os.cpu_count())
        with (
            dask.config.set({"distributed.deploy.lost-worker-timeout": "1 hour"}),
            LocalCluster(
                n_workers=2,
                threads_per_worker=1,
                dashboard_address=":0",
                env={"NPROC": cores, "PJRT_NPROC": cores},
                silence_logs=50,
            ) as cluster,
        ):
            yield Workshop(Path(name), cluster.scheduler_address)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one kill of one case, in less than a minute")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", help="cases whose name contains one of these")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        number, rows, folder, scheduler = options.child
        run(CASES[int(number)], Path(rows), Path(folder), scheduler)
        return 0
    cases = QUICK if options.quick else CASES
    if options.only:
        cases = tuple(case for case in cases if any(part in case.name for part in options.only))
    kills = len(cases) if options.quick else options.kills
    shares = [kills // len(cases) + (i < kills % len(cases)) for i in range(len(cases))]
    start = time.monotonic()
    with workshop(cases) as shop, ThreadPoolExecutor(os.cpu_count()) as pool:
        tallies = list(pool.map(partial(torment, shop, seed=options.seed), cases, shares))
    return publish_table(cases, tallies, time.monotonic() - start, options)


def publish_table(
    cases: tuple[Case, ...], tallies: list[Tally], seconds: float, options: argparse.Namespace
) -> int:
    from provenance import header, publish, table

    columns = ("case", "kills of the driver", "of a worker", "survived", "identical", "shards lost")
    rows = [
        [c.name, t.driver, t.worker, t.survived, t.identical, t.lost_shards]
        for c, t in zip(cases, tallies, strict=True)
    ]
    kills, survived, identical, lost = (
        sum(getattr(t, name) for t in tallies) for name in ("kills", "survived", "identical", "lost_shards")
    )
    where = sum((t.stages for t in tallies), Counter())
    problems = [f"- {c.name}: {p}" for c, t in zip(cases, tallies, strict=True) for p in t.problems]
    said = ", ".join(f"{stage} {where[stage]}" for stage in STAGES if where[stage])
    text = "\n".join(
        [
            "# Kills at random moments\n",
            header(f"chaos.py --kills {options.kills} --seed {options.seed}"),
            f"{kills} kills in {seconds / 60:.0f} minutes. **{survived} of {kills} survived, {identical} of {kills} "
            f"with the draws of the undisturbed run to the last bit, {lost} finished shards were lost.** A run is "
            "started and killed again until it is finished. A case is what is fitted, where its rows are, and where "
            "shards run.\n",
            table(columns, rows),
            f"Kills by stage: {said}.",
            *problems,
        ]
    )
    publish("chaos.md", text + "\n", options.quick or options.only is not None)
    return 0 if survived == identical == kills and not lost and not problems else 1


if __name__ == "__main__":
    sys.exit(main())
