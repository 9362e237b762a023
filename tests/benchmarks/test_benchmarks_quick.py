"""The benchmarks run, in their quick modes: a table that nobody can make again is worth nothing."""

import io
import os
import runpy
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import jax
import pytest

ROOT = Path(__file__).resolve().parents[2]
QUICK = {
    "chaos": [],
    "kernels": [],
    "many_fits": [],
    "many_parameters": [],
    "warped": [],
    "gpu": ["--no-nuts", "--shards", "10", "--draws", "500"],
    "peers": [
        "--only",
        "synthetic-2000",
        "--methods",
        "shardmc, plain JAX",
        "NumPyro NUTS",
        "Laplace",
        "--seconds",
        "0.2",
    ],
    "few_groups": [],
    "field": [],
    "scaling": [],
    "certificate_rows": [],
    "certificate_fits": ["--only", "Weibull regression"],
    "mixed": ["--methods", "shardmc", "one shard", "lme4"],
    "mixed_accuracy": [],
    "mixed_gpu": [],
    "mixed_memory": [],
    "site_privacy": [],
    "mixed_calibration": ["--methods", "2 shards", "groups ignored"],
    "laplace_bias": [],
    "poverty": [],
    "proposals": [],
}


def written() -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in (ROOT / "docs" / "benchmarks").iterdir()}


def run_here(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """`subprocess.run` of a benchmark's script, in this process, which has loaded most of what it needs."""
    if command[0] != sys.executable:
        return START(command, **options)
    double = "JAX_ENABLE_X64" in options.get("env", {})
    with (
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(io.StringIO()) as shown,
        jax.enable_x64(double),
    ):
        patch.setattr(sys, "argv", command[1:])
        result = runpy.run_path(command[1])["main"]()
    return subprocess.CompletedProcess(command, int(result or 0), shown.getvalue(), "")


START = subprocess.run


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_a_benchmark_runs_and_writes_nothing(name, tmp_path, monkeypatch, capsys):
    """In this process, which has loaded everything and may have compiled some of the programs."""
    for variable, value in os.environ.items():
        monkeypatch.setenv(variable, value)  # what a script sets is undone after the test
    scripts = ROOT / "benchmarks"
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(scripts)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(scripts)]))
    monkeypatch.setattr(subprocess, "run", run_here)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--quick", *QUICK[name]])
    before = written()
    script = runpy.run_path(str(scripts / f"{name}.py"))
    assert not script["main"]()
    shown = capsys.readouterr().out
    assert "|---|" in shown or '"what"' in shown
    assert "failed" not in shown
    assert written() == before
