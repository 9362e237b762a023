"""The driver: folders are refused before rows are read, results are written once, programs are compiled ahead."""

import itertools
import sys
import threading
from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import pytest

import shardmc
from shardmc.check import CHECKS, Check, Outcome
from shardmc.data import as_source
from shardmc.data.arrays import ArraySource
from shardmc.data.table import TableSource
from shardmc.engine import Engine
from shardmc.engine.local import compiled_batch
from shardmc.errors import RunError
from shardmc.pipeline.driver import Driver
from shardmc.pipeline.fitting import FIT
from shardmc.pipeline.stage import Job, Stage
from shardmc.pipeline.stages import LocateShards
from shardmc.store.run import Run

ROWS = np.random.default_rng(0).normal(2.0, 1.0, 600).astype(np.float32)
TABLE = {"x": ROWS, "y": (ROWS > 2).astype(np.float32)}
OPTIONS = {"shards": 3, "draws": 60, "check": False}


def log_likelihood(params, rows):
    return -0.5 * (rows - params["mu"]) ** 2


@pytest.fixture(scope="module")
def model():
    return shardmc.Model(log_likelihood, lambda params: -0.5 * params["mu"] ** 2 / 100, {"mu": ()})


def unread(*args, **kwargs):
    raise AssertionError("A row was read.")


@pytest.mark.parametrize("call", ["fit", "glm"])
def test_a_locked_folder_is_refused_before_the_data_is_looked_at(model, tmp_path, call):
    arguments = {"fit": (model, "nowhere.parquet"), "glm": ("y ~ x", "nowhere.parquet")}
    with Run(tmp_path / "run"), pytest.raises(RunError, match="is in use by process"):
        getattr(shardmc, call)(*arguments[call], run_dir=tmp_path / "run")


def test_a_folder_of_other_rows_is_refused_before_a_row_is_read(model, tmp_path, monkeypatch):
    shardmc.fit(model, ROWS, run_dir=tmp_path / "run", **OPTIONS)
    for name in ("sample", "split", "tables"):
        monkeypatch.setattr(ArraySource, name, unread)
    with pytest.raises(RunError, match="its rows or columns are different"):
        shardmc.fit(model, ROWS + 1, run_dir=tmp_path / "run", **OPTIONS)
    with pytest.raises(RunError, match="plan draws is 60 there and 61 here"):
        shardmc.fit(model, ROWS, run_dir=tmp_path / "run", **{**OPTIONS, "draws": 61})


@pytest.mark.slow
def test_a_folder_of_another_formulas_rows_is_refused_before_a_row_is_read(tmp_path, monkeypatch):
    shardmc.glm("y ~ x", TABLE, "bernoulli", run_dir=tmp_path / "run", **OPTIONS)
    for source in (ArraySource, TableSource):
        for name in ("sample", "split", "tables", "transform"):
            monkeypatch.setattr(source, name, unread)
    with pytest.raises(RunError, match="its rows or columns are different"):
        shardmc.glm("y ~ x", {**TABLE, "x": ROWS + 1}, "bernoulli", run_dir=tmp_path / "run", **OPTIONS)


def test_another_model_is_refused_before_the_rows_are_split(model, tmp_path, monkeypatch):
    shardmc.fit(model, ROWS, run_dir=tmp_path / "run", **OPTIONS)
    monkeypatch.setattr(ArraySource, "split", unread)
    other = shardmc.Model(log_likelihood, None, {"mu": ()})
    with pytest.raises(RunError, match="its model or priors are different"):
        shardmc.fit(other, ROWS, run_dir=tmp_path / "run", **OPTIONS)


@pytest.mark.slow
def test_glm_writes_its_posterior_once_and_inside_the_lock(tmp_path, monkeypatch):
    from shardmc.store import files

    written, save = [], files.save_tree

    def watched(saved, path):
        with pytest.raises(RunError, match="in use"):
            Run(tmp_path / "run")
        written.append(path)
        save(saved, path)

    monkeypatch.setattr(files, "save_tree", watched)
    posterior = shardmc.glm("y ~ x", TABLE, "bernoulli", run_dir=tmp_path / "run", **OPTIONS)
    assert written == [tmp_path / "run" / "posterior.nc"]
    again = shardmc.load(tmp_path / "run")
    assert again.regression == posterior.regression
    assert again.predict(TABLE, "mean").equals(posterior.predict(TABLE, "mean"))


class FailsToCompile(Engine):
    """This machine, where nothing can be compiled ahead."""

    def map(self, *args, **kwargs):
        return shardmc.Local().map(*args, **kwargs)

    def prepare(self, call):
        failed = Future()
        failed.set_exception(ValueError("no compiler\nand more"))
        return failed


def test_what_fails_in_the_background_is_said(model):
    posterior = shardmc.fit(model, ROWS, engine=FailsToCompile(), shards=3, draws=60)
    notes = [note for note in posterior.notes if "could not be compiled ahead: no compiler" in note]
    assert [note.split("'")[1] for note in notes] == ["keep", "sample", "check"]


@pytest.mark.slow
@pytest.mark.parametrize("draws", [50, 500])
def test_programs_are_compiled_ahead_for_the_shapes_that_run(model, monkeypatch, draws):
    """With 50 draws of 3 shards there are 51, and the certificate takes gradients at all of them."""

    def compiled() -> int:
        before = compiled_batch.made
        shardmc.fit(replace_model(), ROWS, shards=3, draws=draws)
        return compiled_batch.made - before

    numbers = itertools.count(1, 1e-4)

    def replace_model():
        factor = next(numbers)  # models that compute the same share programs
        return shardmc.Model(lambda params, y: factor * log_likelihood(params, y), None, {"mu": ()})

    ahead = compiled()
    monkeypatch.setattr(shardmc.Local, "prepare", lambda *args: None)
    assert ahead == compiled()


class Halve(Stage):
    """A stage of a user's own."""

    name = "halve"

    def run(self, job, state, log):
        return state.after(self, passes=0.5, notes=(*state.notes, "halved"))


class Wait(Stage):
    """Ends when a module has been imported."""

    name = "wait"

    def __init__(self, imported):
        self.imported = imported

    def run(self, job, state, log):
        assert self.imported.wait(60), "The module was not imported while an earlier stage ran."
        return state


def test_modules_of_later_stages_are_imported_while_earlier_ones_run(model, tmp_path, monkeypatch):
    (tmp_path / "slow_module_of_a_stage.py").write_text("import threading\n\nthreading.imported.set()\n")
    monkeypatch.syspath_prepend(tmp_path)
    imported = threading.Event()
    monkeypatch.setattr(threading, "imported", imported, raising=False)
    monkeypatch.setattr(Halve, "modules", ("slow_module_of_a_stage", "no_such_module_of_a_stage"))
    blocks = as_source(ROWS).split(shardmc.data.Partition(2), 0)
    job = Job(model, blocks, shardmc.Local(), 0, shardmc.Recenter(), shardmc.Auto())
    assert Driver().run(job, (Wait(imported), Halve())).notes == ("halved",)
    monkeypatch.delitem(sys.modules, "slow_module_of_a_stage")


def test_a_stage_knows_nothing_of_time_and_progress(model):
    blocks = as_source(ROWS).split(shardmc.data.Partition(2), 0)
    told = []
    driver = Driver(progress=lambda *event: told.append(event))
    job = Job(model, blocks, shardmc.Local(), 0, shardmc.Recenter(), shardmc.Auto())
    state = driver.run(job, (Halve(),))
    assert (state.notes, state.passes) == (("halved",), {"halve": 0.5})
    assert told == [("halve", 0, 1), ("halve", 1, 1)]
    assert replace(job, seed=1).seed == 1


class CountRows(Check):
    """A check with columns of its own."""

    name = "rows"

    def __call__(self, evidence):
        sizes = np.asarray(evidence.sizes)
        return Outcome(
            (), {"rows": sizes, "rows_by_coordinate": np.outer(sizes, np.ones(len(evidence.names)))}
        )


def test_a_check_adds_columns_of_its_own_and_files_keep_them(model, tmp_path, monkeypatch):
    monkeypatch.setattr("shardmc.pipeline.checking.CHECKS", (*CHECKS, CountRows()))
    posterior = shardmc.fit(model, ROWS, **OPTIONS)
    posterior.save(tmp_path / "posterior.nc")
    for table in (posterior.shards, shardmc.load(tmp_path / "posterior.nc").shards):
        assert table.more["rows"].tolist() == [200, 200, 200]
        assert table.more["rows_by_coordinate"].shape == (3, 1)
        assert table.ess.shape == (3, 1)


class NoteTheMode(Stage):
    name = "note the mode"

    def run(self, job, state, log):
        return state.after(self, passes=0.5, notes=(*state.notes, "A note of a stage."))


def test_a_resumed_run_has_the_notes_and_passes_of_stages_that_it_does_not_repeat(
    model, tmp_path, monkeypatch
):
    (place,) = (i for i, stage in enumerate(FIT) if isinstance(stage, LocateShards))
    monkeypatch.setattr("shardmc.pipeline.fitting.FIT", (*FIT[:place], NoteTheMode(), *FIT[place:]))
    first = shardmc.fit(model, ROWS, run_dir=tmp_path / "run", **OPTIONS)
    again = shardmc.fit(model, ROWS, run_dir=tmp_path / "run", **OPTIONS)
    assert "A note of a stage." in first.notes
    assert "A note of a stage." in again.notes
    assert again.passes["note the mode"] == 0.5
    assert again.passes.keys() == first.passes.keys()
    np.testing.assert_array_equal(again.theta, first.theta)
