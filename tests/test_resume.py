"""Runs that are interrupted, damaged, repeated with something changed, short of room: nothing is lost or mixed up."""

import importlib.util
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardmc
from shardmc.errors import DataError, RunError
from shardmc.model.precision import double_precision
from shardmc.store.run import status

SCRIPT = Path(__file__).with_name("interrupted.py")
_spec = importlib.util.spec_from_file_location("interrupted", SCRIPT)
assert _spec is not None
assert _spec.loader is not None
interrupted = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(interrupted)

NUM_SHARDS = interrupted.NUM_SHARDS
KILLS = 20


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """The folder of a run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    interrupted.run(folder)
    return folder


@pytest.fixture(scope="module")
def undisturbed(finished):
    return shardmc.load(finished)


@pytest.fixture
def folder(finished, tmp_path) -> Path:
    """A copy of that run, to be damaged."""
    return shutil.copytree(finished, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="SIGKILL is POSIX's.")
def test_a_driver_killed_at_random_moments_loses_nothing(tmp_path, undisturbed):
    command = [sys.executable, str(SCRIPT), str(tmp_path / "run"), str(KILLS), "0"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    seen = list(map(json.loads, shown.splitlines()))
    assert len(seen) == KILLS + 1
    assert len(seen[-1]) == NUM_SHARDS
    assert sum(0 < len(files) < NUM_SHARDS for files in seen) > 3, "few kills came while shards were sampled"
    for files in seen:
        assert all(seen[-1][name] == written for name, written in files.items()), "a shard was computed twice"
    np.testing.assert_array_equal(np.load(tmp_path / "theta.npy"), undisturbed.theta)


class Interruption(Exception):
    pass


@pytest.mark.parametrize(
    "events", [1, 14, *(pytest.param(k, marks=pytest.mark.slow) for k in (5, 9, 20, 33))]
)
def test_an_interrupted_run_goes_on_where_it_was(tmp_path, undisturbed, events):
    left = events

    def interrupt():
        nonlocal left
        left -= 1
        if left == 0:
            raise Interruption

    with pytest.raises(Interruption):
        interrupted.run(tmp_path / "run", on_event=interrupt)
    there = interrupted.written(tmp_path / "run")
    posterior = interrupted.run(tmp_path / "run")
    after = interrupted.written(tmp_path / "run")
    assert {name: after[name] for name in there} == there
    np.testing.assert_array_equal(posterior.theta, undisturbed.theta)
    np.testing.assert_array_equal(posterior.shards.draws, undisturbed.shards.draws)
    assert posterior.certificate.to_dict() == undisturbed.certificate.to_dict()


def test_a_finished_run_is_not_computed_again(folder, undisturbed):
    before = interrupted.written(folder)
    posterior = interrupted.run(folder)
    assert interrupted.written(folder) == before
    assert posterior.notes[0] == f"{NUM_SHARDS} of {NUM_SHARDS} shards were already done."
    np.testing.assert_array_equal(posterior.theta, undisturbed.theta)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def pickled(path: Path) -> None:
    path.write_bytes(pickle.dumps(np.zeros(3)))


def of_another_shard(path: Path) -> None:
    shutil.copy(path.with_name("00003.npz"), path)


@pytest.mark.parametrize("damage", [truncated, flipped, pickled, of_another_shard])
def test_a_damaged_shard_is_computed_again_and_said(folder, undisturbed, damage):
    damage(folder / "shards" / "00007.npz")
    before = interrupted.written(folder)
    posterior = interrupted.run(folder)
    after = interrupted.written(folder)
    assert {name for name in after if after[name] != before[name]} == {"00007.npz"}
    (note,) = [note for note in posterior.notes if "damaged" in note]
    assert note.startswith("Shard 7's file is damaged (")
    np.testing.assert_array_equal(posterior.theta, undisturbed.theta)


@pytest.mark.slow
def test_another_runs_shard_is_not_taken(folder, undisturbed, tmp_path):
    model, rows = interrupted.problem()
    options = {"shards": NUM_SHARDS, "draws": 480, "sampler": "independence", "check": False}
    shardmc.fit(model, rows, seed=4, run_dir=tmp_path / "other", **options)
    shutil.copy(tmp_path / "other" / "shards" / "00007.npz", folder / "shards" / "00007.npz")
    posterior = interrupted.run(folder)
    assert any("it belongs to another run" in note for note in posterior.notes)
    np.testing.assert_array_equal(posterior.theta, undisturbed.theta)


@pytest.mark.slow
def test_a_damaged_file_of_modes_is_computed_again_and_said(folder, undisturbed):
    flipped(folder / "located.npz")
    posterior = interrupted.run(folder)
    assert any("The file located.npz is damaged" in note for note in posterior.notes)
    np.testing.assert_array_equal(posterior.theta, undisturbed.theta)


CHANGES = {
    "seed": {"seed": 4},
    "draws": {"draws": 960},
    "shards": {"shards": 12},
    "keep": {"keep": None},
    "shuffle": {"shuffle": False},
    "sampler": {"sampler": "nuts"},
    "combiner": {"combiner": "consensus"},
    "weighted": {"weights": np.ones(2_400)},
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_run_with_another_plan_is_refused(folder, name):
    model, rows = interrupted.problem()
    options = {"shards": NUM_SHARDS, "draws": 480, "seed": 3, "sampler": "independence", **CHANGES[name]}
    before = interrupted.written(folder)
    with pytest.raises(RunError, match=rf"belongs to another run: .*plan {name} is"):
        shardmc.fit(model, rows, run_dir=folder, **options)
    assert interrupted.written(folder) == before


def test_a_run_with_other_rows_another_model_or_precision_is_refused(folder):
    model, rows = interrupted.problem()
    options = {
        "shards": NUM_SHARDS,
        "draws": 480,
        "seed": 3,
        "sampler": "independence",
        "run_dir": folder,
        "check": False,
    }
    changed = rows.copy()
    changed[100] += 1
    with pytest.raises(RunError, match="belongs to another run: its rows or columns are different"):
        shardmc.fit(model, changed, **options)
    other = shardmc.Model(
        model.log_likelihood_function, lambda params: -0.5 * params["mu"] ** 2 / 99, {"mu": ()}
    )
    with pytest.raises(RunError, match="belongs to another run: its model or priors are different"):
        shardmc.fit(other, rows, **options)
    with double_precision(), pytest.raises(RunError, match="plan precision is 'auto' there and 'double'"):
        shardmc.fit(model, rows, **options)


@pytest.mark.slow
def test_other_weights_of_the_rows_are_noticed(tmp_path):
    model, rows = interrupted.problem()
    weights = np.ones(len(rows))
    options = {
        "shards": 2,
        "draws": 20,
        "sampler": "independence",
        "check": False,
        "run_dir": tmp_path / "run",
    }
    shardmc.fit(model, rows, weights=weights, **options)
    shardmc.fit(model, rows, weights=weights.copy(), **options)
    weights[0] = 2
    with pytest.raises(
        RunError, match="its row weights, its strata or the functions of its sampler are different"
    ):
        shardmc.fit(model, rows, weights=weights, **options)


def test_a_second_process_is_refused_while_the_first_runs(tmp_path):
    refusals = []

    def try_again():
        if not refusals and (tmp_path / "run" / "manifest.json").exists():
            with pytest.raises(RunError) as error:
                interrupted.run(tmp_path / "run")
            refusals.append(str(error.value))

    interrupted.run(tmp_path / "run", on_event=try_again)
    assert "in use" in refusals[0]


@pytest.fixture
def small_disk(tmp_path):
    """A file system that has room for some of the shards."""
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        command = ["mount", "-t", "tmpfs", "-o", "size=80k", "tmpfs", str(folder)]
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("A small tmpfs cannot be mounted here: that takes Linux and root.")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_said_and_the_run_goes_on_when_there_is_room(small_disk, undisturbed):
    with pytest.raises(RunError, match="The disk is full"):
        interrupted.run(small_disk / "run")
    done = status(small_disk / "run")
    assert 0 < len(done.done) < NUM_SHARDS
    assert not done.damaged
    before = interrupted.written(small_disk / "run")
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    posterior = interrupted.run(small_disk / "run")
    after = interrupted.written(small_disk / "run")
    assert {name: after[name] for name in before} == before
    np.testing.assert_array_equal(posterior.theta, undisturbed.theta)


@pytest.mark.slow
def test_a_part_that_is_missing_or_truncated_stops_a_resumed_run_and_costs_nothing(tmp_path):
    model = shardmc.Model(
        lambda params, rows: -0.5 * (rows["y"] - params["mu"]) ** 2,
        lambda params: -0.5 * params["mu"] ** 2 / 100,
        {"mu": ()},
    )
    _, rows = interrupted.problem()
    (tmp_path / "rows").mkdir()
    for part, values in enumerate(np.split(rows, 3)):
        pq.write_table(pa.table({"y": values}), tmp_path / "rows" / f"part-{part}.parquet")

    def run():
        options = {"shards": 4, "draws": 40, "sampler": "independence", "check": False}
        return shardmc.fit(model, tmp_path / "rows", run_dir=tmp_path / "run", **options)

    posterior, before = run(), interrupted.written(tmp_path / "run")
    part = tmp_path / "rows" / "part-1.parquet"
    content = part.read_bytes()
    part.unlink()
    with pytest.raises(
        RunError,
        match=r"belongs to another run: its rows or columns are different; plan rows is 2400 there and 1600 here",
    ):
        run()
    part.write_bytes(content[:-100])
    with pytest.raises(DataError, match=r"Parquet file 'part-1\.parquet' cannot be read"):
        run()
    part.write_bytes(content)
    np.testing.assert_array_equal(run().theta, posterior.theta)
    assert interrupted.written(tmp_path / "run") == before


def failing(marker):
    """Exact draws of a normal mean that are NaN for the shard that holds the marked row."""

    def draw(key, rows, weights, power):
        precision = 0.01 + jnp.sum(weights)
        mean = jnp.sum(weights * rows) / precision
        mu = mean + jax.random.normal(key) / jnp.sqrt(precision)
        return {"mu": jnp.where(jnp.any((rows == marker) & (weights > 0)), jnp.nan, mu)}

    return shardmc.Exact(draw)


@pytest.mark.slow
def test_one_shard_that_fails_does_not_stop_the_others(tmp_path):
    model, rows = interrupted.problem()
    options = {"shards": 6, "draws": 120, "keep": None, "run_dir": tmp_path / "run"}
    posterior = shardmc.fit(model, rows, sampler=failing(rows[0]), **options)
    (note,) = [note for note in posterior.notes if "failed" in note]
    assert note.startswith("1 of 6 shards failed and is missing from the result (shard ")
    assert "Exact produced values that are not finite" in note
    failed = status(tmp_path / "run").failed
    assert len(failed) == 1
    assert set(posterior.shard) == set(range(6)) - set(failed)
    assert np.isfinite(posterior.draws["mu"]).all()
    again = shardmc.fit(model, rows, sampler=failing(rows[0]), **options)
    assert any(note.startswith(f"Shard {next(iter(failed))} failed before") for note in again.notes)
    np.testing.assert_array_equal(again.theta, posterior.theta)


@pytest.mark.slow
def test_a_run_whose_shards_all_fail_says_so(tmp_path):
    model, _ = interrupted.problem()
    with pytest.raises(shardmc.ShardmcError, match="No shard could be sampled; shard 0: Exact produced"):
        shardmc.fit(model, np.ones(60, np.float32), shards=3, draws=30, sampler=failing(1.0))
