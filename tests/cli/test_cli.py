"""The command line as a user sees it: sentences, exit codes, results."""

import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest

import shardmc


def run(*arguments: str, cwd=None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "120"}
    return subprocess.run(
        [sys.executable, "-m", "shardmc", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment,
        check=False,
    )


def test_version_and_help():
    assert run("--version").stdout == f"shardmc {shardmc.__version__}\n"
    shown = run("--help").stdout
    for command in ("fit", "predict", "report", "status", "combine", "compare", "reproduce", "demo"):
        assert re.search(rf"^  {command} ", shown, re.MULTILINE)


def test_help_imports_nothing_heavy():
    program = "import sys; import shardmc.cli.app; print([m for m in ('jax', 'numpyro', 'pandas') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_demo_writes_a_posterior_that_loads(tmp_path, command):
    done = command("demo", "--rows", "2000", "--shards", "2", "--draws", "500", "--out", "result")
    assert done.returncode == 0, done.stderr
    assert "Certificate" in done.stdout
    assert "posterior of all rows" in done.stdout
    assert "Wrote result/posterior.nc" in done.stdout
    assert shardmc.load(tmp_path / "result").draws["beta"].shape == (500, 5)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("demo", "--rows", "10"), "at least 1000 rows"),
        (("demo", "--rows", "2000", "--shards", "3000"), "between 1 and the number of rows"),
        (("status", "no-such-run"), "no-such-run"),
        (("report", "no-such-file.nc"), "no-such-file.nc"),
        (("combine", "no-such.nc", "--out", "x.nc"), "no file no-such.nc"),
        (
            ("combine", "--combiner", "consensis", "shard-0.csv", "shard-1.csv", "--out", "x.nc"),
            "'consensus'",
        ),
        (("fit", "no-such.parquet", "y ~ x"), "no-such.parquet"),
        (("fit", "rows.parquet", "y ~ x", "--certify-draws", "5"), "draws must be at least 20"),
        (("fit", "rows.parquet", "y ~ x", "--certify-sd", "2"), "the bound must lie between 0 and 0.5"),
        (("fit", "rows.csv", "y ~ z"), "'z'"),
        (("fit", "rows.csv", "y ~ x + (1 | no_column)"), "Unknown column 'no_column'"),
        (("fit", "red.csv", "y ~ z"), "\\x1b[31mred"),  # escaped
        (("fit", "rows.csv", "y ~ x", "--family", "poison"), "'poisson'"),
        (("fit", "rows.csv", "y ~ x", "--shards", "some"), "whole number"),
        (("reproduce", "table-9"), "table-"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_code_2(tmp_path, command, arguments, sentence):
    rng = np.random.default_rng(0)
    pd.DataFrame({"x": rng.normal(size=200), "y": rng.normal(size=200)}).to_csv(
        tmp_path / "rows.csv", index=False
    )
    (tmp_path / "red.csv").write_text("y,\x1b[31mred\n" + "\n".join(f"{k % 7},{k % 5}" for k in range(40)))
    for shard in range(2):
        pd.DataFrame({"a": rng.normal(size=50)}).to_csv(tmp_path / f"shard-{shard}.csv", index=False)
    done = command(*arguments)
    assert done.returncode == 2, done.stderr
    assert sentence in done.stderr
    assert "\x1b" not in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.slow
def test_combine_and_compare_read_csv_and_write_netcdf(tmp_path, command):
    rng = np.random.default_rng(0)
    for shard in range(3):
        draws = pd.DataFrame(
            {"lp__": 0.0, "beta.1": rng.normal(shard, 1, 400), "beta.2": rng.normal(size=400)}
        )
        text = "# model = test\n" + draws.to_csv(index=False) + "# Elapsed\n"
        (tmp_path / f"shard-{shard}.csv").write_text(text)
    files = [f"shard-{k}.csv" for k in range(3)]
    done = command("combine", *files, "--combiner", "algorithm-1", "--out", "posterior.nc")
    assert done.returncode == 0, done.stderr
    assert "1,200 draws of beta" in done.stdout
    pd.DataFrame({"beta.1": rng.normal(1, 1, 500), "beta.2": rng.normal(size=500)}).to_csv(
        tmp_path / "all.csv", index=False
    )
    options = ("--reference", "all.csv", "--combiners", "recenter,swiss")
    done = command("compare", *files, *options, "--others", "mine=posterior.nc")
    assert done.returncode == 0, done.stderr
    assert "noise floor" in done.stdout
    assert "\nmine " in done.stdout
    done = command("compare", *files, *options, "--others", "posterior.nc")
    assert done.returncode == 2
    assert "--others takes names with their files" in done.stderr + done.stdout


@pytest.mark.slow
def test_fit_report_status_and_predict(tmp_path, command):
    rng = np.random.default_rng(0)
    x = rng.normal(size=3_000)
    table = pd.DataFrame(
        {"x": x, "region": rng.choice(["a", "b"], 3_000), "y": rng.poisson(np.exp(0.3 + 0.4 * x))}
    )
    table.to_parquet(tmp_path / "rows.parquet")
    done = command(
        *("fit", "rows.parquet", "y ~ x + region", "--family", "poisson", "--shards", "4", "--draws", "800"),
        *("--out", "run", "--polish", "--keep", "0.1"),
    )
    assert done.returncode == 0, done.stderr
    assert "Priors: " in done.stdout
    assert shardmc.load(tmp_path / "run").plan.keep == 0.1
    assert shardmc.load(tmp_path / "run").polished.sentence[:20] in done.stdout
    assert "4 of 4 shards are done" in command("status", "run").stdout
    assert (tmp_path / "run" / "report.html").exists()
    assert command("report", "run", "--out", "page.html").returncode == 0
    done = command("predict", "run", "rows.parquet", "--out", "predictions.parquet")
    assert done.returncode == 0, done.stderr
    predicted = pd.read_parquet(tmp_path / "predictions.parquet")
    assert len(predicted) == 3_000
    assert abs(predicted["mean"].mean() / table["y"].mean() - 1) < 0.1
    for out in ("missing/predictions.parquet", "run"):
        done = command("predict", "run", "rows.parquet", "--out", out)
        assert done.returncode == 2
        assert len(done.stderr.strip().splitlines()) <= 2, done.stderr
        assert ("could not be written" in done.stderr) == (out != "run")
        assert "Traceback" not in done.stderr
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "shardmc.glm(" in page
    assert "y ~ x + region" in page


@pytest.mark.slow
def test_a_demo_that_cannot_be_written_is_not_run(tmp_path):
    (tmp_path / "taken").touch()
    done = run("demo", "--out", "taken", cwd=tmp_path)
    assert done.returncode == 2
    assert "taken could not be written" in done.stderr
    assert "Logistic regression" not in done.stdout


@pytest.mark.slow
def test_ctrl_c_ends_a_run_with_one_line(tmp_path):
    """Bounded by the pytest run itself, not by a clock: the process must end by itself after the signal."""
    process = subprocess.Popen(
        [sys.executable, "-m", "shardmc", "demo", "--rows", "200000", "--draws", "2000000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert process.stdout is not None
    process.stdout.readline()  # it has begun
    time.sleep(2)  # and is somewhere in its work
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.strip() == "shardmc: interrupted; finished shards of a run folder are kept."
