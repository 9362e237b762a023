"""`shardmc status` of runs that did not end well, and `shardmc combine` of sites' files."""

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import shardmc
from shardmc.cli.app import app
from shardmc.errors import DataError, OptionError
from shardmc.store.records import Manifest
from shardmc.store.run import Run

_spec = importlib.util.spec_from_file_location("linear_cli", Path(__file__).parents[1] / "linear.py")
assert _spec is not None
assert _spec.loader is not None
linear = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(linear)


def run(*arguments) -> str:
    """What a command prints, in one line; a mistake is raised as itself."""
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


@pytest.fixture
def manifest():
    return Manifest({"shards": 5, "seed": 7}, data="d", model="m")


def test_status_says_what_is_done_what_failed_and_why(tmp_path, manifest):
    with Run.open(tmp_path / "run", manifest) as started:
        for shard in (0, 1):
            started.write(shard, {"draws": np.zeros((4, 2))})
        started.write_failure(3, "Exact produced values that are not finite.")
        shown = run("status", tmp_path / "run")
        assert f"A process is working on it: process {os.getpid()} on" in shown
    (tmp_path / "run" / "shards" / "00001.npz").write_bytes(b"PK\x03\x04")
    shown = run("status", tmp_path / "run")
    assert "1 of 5 shards are done." in shown
    assert "in 5 shards. Seed 7." in shown
    assert "Shard 3 failed: Exact produced values that are not finite." in shown
    assert "Shard 1's file is damaged and will be computed again: cut short" in shown
    assert "2 shards are not computed yet (2, 4). Repeat the same call to continue the run." in shown
    assert "process" not in shown


def test_status_says_the_plan_in_words(tmp_path):
    plan = {
        "combiner": "Recenter(center='auto', scale='auto')",
        "content": "6f175b764475fdff33e0e3c8379e78ae",
        "draws": 1_000,
        "keep": 0.2,
        "precision": "auto",
        "rows": 20_000,
        "sampler": "RandomWalk(chains=4, warmup=200)",
        "scaling": "rescaled",
        "seed": 0,
        "shards": 4,
        "shuffle": True,
        "stratified": False,
        "weighted": True,
    }
    Run.open(tmp_path / "run", Manifest(plan, data="d", model="m")).close()
    shown = run("status", tmp_path / "run")
    assert (
        "Plan: 1,000 draws from 20,000 rows with weights, in 4 shards. Seed 0, sampler random-walk, combiner recenter, "
        "precision auto." in shown
    )


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL is POSIX's.")
def test_status_names_a_process_that_was_killed(tmp_path, manifest):
    writer = Path(__file__).parents[1] / "store" / "writer.py"
    command = [sys.executable, str(writer), str(tmp_path / "run"), manifest.to_json()]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        process.wait()
    shown = run("status", tmp_path / "run")
    assert f"The last process that worked on it was process {process.pid} on" in shown
    assert "which ended before it was finished." in shown


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sites")
    for site, size in enumerate((300, 700)):
        shardmc.sample_shard(
            linear.model(),
            linear.rows_of(site, size),
            share=size / 1_000,
            draws=size,
            shard=site,
            sampler=linear.exact(),
            path=folder / f"site-{site}.nc",
        )
    return [folder / "site-0.nc", folder / "site-1.nc"]


@pytest.mark.slow
def test_combine_takes_sites_files_as_they_are(sites, tmp_path):
    shown = run("combine", *sites, "--out", tmp_path / "posterior.nc")
    assert "1,000 draws from 2 shards" in shown
    assert "computed from the modes and curvatures of the sites" in shown
    loaded, here = shardmc.load(tmp_path / "posterior.nc"), shardmc.combine_sites(sites)
    np.testing.assert_array_equal(loaded.theta, here.theta)
    run("combine", *sites, "--combiner", "wasserstein", "--out", tmp_path / "other.nc")
    assert not np.array_equal(shardmc.load(tmp_path / "other.nc").theta, here.theta)


def test_combine_refuses_what_sites_say_themselves(sites, tmp_path):
    out = ("--out", tmp_path / "posterior.nc")
    with pytest.raises(OptionError, match="Leave out --shares"):
        run("combine", *sites, *out, "--shares", "0.5,0.5")
    with pytest.raises(DataError, match="a site is missing"):
        run("combine", sites[0], *out)
    shardmc.combine_sites(sites).save(tmp_path / "draws.nc")
    with pytest.raises(DataError, match=r"draws\.nc was not; combine files of one kind only"):
        run("combine", *sites, tmp_path / "draws.nc", *out)
    with pytest.raises(OptionError, match="sites' draws are rescaled"):
        run("combine", *sites, *out, "--combiner", "consensus")
    assert not (tmp_path / "posterior.nc").exists()


def test_the_probability_of_intervals_is_that_of_the_library():
    from shardmc.cli import runs
    from shardmc.posterior.result import INTERVAL

    assert runs._INTERVAL == INTERVAL
