"""A run that is started again and again and killed with SIGKILL at random moments, then finished.

Arguments: folder, number of kills, seed. Prints one JSON object a line: after each kill the shard files that are there
(name -> inode and time of writing), at the end the same. The draws go to theta.npy beside the folder.
"""

import json
import os
import random
import signal
import sys
import time
from functools import cache
from pathlib import Path

import numpy as np

import shardmc
from shardmc import fit  # here, so that it is imported once and not in every child

NUM_SHARDS = 24


@cache
def problem():
    """A model of one parameter and its rows. One model for all runs: its programs are compiled once a process."""
    model = shardmc.Model(
        lambda params, rows: -0.5 * (rows - params["mu"]) ** 2,
        lambda params: -0.5 * params["mu"] ** 2 / 100,
        {"mu": ()},
    )
    return model, np.random.default_rng(0).normal(2.0, 1.0, 2_400).astype(np.float32)


def run(folder, on_event=None):
    """The run, one shard at a time; `on_event` is called wherever `fit` reports progress."""
    model, rows = problem()
    return fit(
        model,
        rows,
        shards=NUM_SHARDS,
        draws=480,
        seed=3,
        sampler="independence",
        engine=shardmc.Local(batch=1, workers=1),
        run_dir=folder,
        progress=None if on_event is None else (lambda stage, done, total: on_event()),
    )


def written(folder: Path) -> dict[str, list[int]]:
    """Inode and time of writing of every finished shard: a file that is written again has others."""
    return {
        path.name: [path.stat().st_ino, path.stat().st_mtime_ns]
        for path in sorted((folder / "shards").glob("[0-9]*.npz"))
    }


def start_and_kill(folder: Path, events: int, pause: float) -> None:
    """Start the run in a child process, and kill it after so many events and a moment more."""
    reading, writing = os.pipe()
    child = os.fork()  # before JAX has computed anything here, and has threads
    if child == 0:
        os.close(reading)
        run(folder, on_event=lambda: os.write(writing, b"."))
        os._exit(0)
    os.close(writing)
    with open(reading, "rb", buffering=0) as events_of_child:
        while events and events_of_child.read(1):
            events -= 1
        time.sleep(pause)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def main(folder: Path, kills: int, seed: int) -> None:
    moments = random.Random(seed)
    for _ in range(kills):
        # As many events as reach, from here, into the sampling of some shards but hardly of all.
        reach = 9 if (folder / "located.npz").exists() else 24
        start_and_kill(folder, moments.randrange(1, reach), moments.uniform(0, 0.02))
        print(json.dumps(written(folder)), flush=True)
    posterior = run(folder)
    print(json.dumps(written(folder)), flush=True)
    np.save(folder.parent / "theta.npy", posterior.theta)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
