"""The benchmarks run, in their quick modes: a table that nobody can make again is worth nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
QUICK = {
    "chaos": [],
    "kernels": [],
    "many_fits": [],
    "many_parameters": [],
    "gpu": ["--no-nuts", "--shards", "10", "--draws", "500"],
    "peers": [
        "--only",
        "synthetic-20000",
        "--methods",
        "shardmc, plain JAX",
        "NumPyro NUTS",
        "Laplace",
        "--seconds",
        "1",
    ],
    "field": [],
    "scaling": [],
    "certificate_rows": [],
    "certificate_fits": ["--only", "Weibull regression"],
    "mixed": ["--methods", "shardmc", "one shard", "lme4", "GPBoost"],
    "mixed_accuracy": [],
    "mixed_gpu": [],
    "mixed_memory": [],
    "site_privacy": [],
    "mixed_calibration": ["--methods", "2 shards", "groups ignored"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_a_benchmark_runs_and_writes_nothing(name, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in (ROOT / "docs" / "benchmarks").iterdir()}
    command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), "--quick", *QUICK[name]]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "benchmarks")])}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2_000:]
    assert "|---|" in done.stdout or '"what"' in done.stdout
    assert {path: path.stat().st_mtime_ns for path in (ROOT / "docs" / "benchmarks").iterdir()} == before
