"""A process that writes the shards of a run until it is killed. Arguments: folder, manifest."""

import itertools
import sys

import numpy as np

from shardmc.store.records import Manifest
from shardmc.store.run import Run


def main(folder: str, manifest: str) -> None:
    with Run.open(folder, Manifest.from_json(manifest, "argument")) as run:
        print("open", flush=True)
        # Round and round: a file that is replaced must be as complete as one that is new.
        for step in itertools.count():
            shard = step % run.num_shards
            run.write(shard, {"draws": np.full((20_000, 3), float(shard))})


if __name__ == "__main__":
    main(*sys.argv[1:])
