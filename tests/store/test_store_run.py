"""A run folder keeps what is written to it, resumes, and refuses what is of another run."""

import json
from dataclasses import replace

import numpy as np
import pytest

from shardmc.errors import RunError
from shardmc.store.run import Run, status


def test_a_new_run_has_nothing(tmp_path, manifest):
    with Run.open(tmp_path / "deep" / "run", manifest) as run:
        assert run.finished() == []
        assert run.read_part("located") is None
        assert run.notes == []


def test_what_was_written_is_read_bit_by_bit(tmp_path, manifest, draws):
    arrays = {
        **draws(0),
        "scalar": np.array(3.5),
        "empty": np.zeros((0, 3)),
        "single": np.array([np.nan, np.inf, -0.0], dtype=np.float32),
        "names": np.array(["alpha", "β"]),
        "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "file": np.arange(2),  # a parameter's name in numpy.savez
    }
    with Run.open(tmp_path / "run", manifest) as run:
        run.write(0, arrays)
    with Run.open(tmp_path / "run", manifest) as run:
        again = run.read(0)
    assert again.keys() == arrays.keys()
    for name, array in arrays.items():
        assert again[name].dtype == array.dtype
        np.testing.assert_array_equal(again[name], array)


def test_a_shard_file_is_an_ordinary_npz(finished_run, draws):
    with np.load(finished_run / "shards" / "00002.npz", allow_pickle=False) as archive:
        np.testing.assert_array_equal(archive["draws"], draws(2)["draws"])


def test_equal_arrays_make_equal_files(tmp_path, manifest, draws):
    for name in ("a", "b"):
        with Run.open(tmp_path / name, manifest) as run:
            run.write(3, draws(3))
    first, second = ((tmp_path / name / "shards" / "00003.npz").read_bytes() for name in ("a", "b"))
    assert first == second


def test_resume_finds_what_is_done(tmp_path, manifest, draws):
    with Run.open(tmp_path / "run", manifest) as run:
        run.write(1, draws(1))
        run.write(np.int64(3), draws(3))
        run.write_failure(4, "No mode was found.")
    # Another process makes its own manifest, with another time and name.
    with Run.open(
        tmp_path / "run", replace(manifest, run="0" * 32, created="2030-01-01T00:00:00+00:00")
    ) as run:
        assert run.manifest == manifest
        assert run.finished() == [1, 3]
        assert run.has(1)
        assert not run.has(4)
        assert run.notes == ["2 of 5 shards were already done.", "Shard 4 failed before: No mode was found."]


def test_a_failed_shard_can_be_done_later_and_a_done_one_fail(tmp_path, manifest, draws):
    with Run.open(tmp_path / "run", manifest) as run:
        run.write_failure(0, "diverged")
        run.write(0, draws(0))
        run.write(1, draws(1))
        run.write_failure(1, "diverged")
        assert run.finished() == [0]
    assert (status(tmp_path / "run").done, status(tmp_path / "run").failed) == ((0,), {1: "diverged"})
    with Run.open(tmp_path / "run", manifest) as run:
        assert run.finished() == [0]


def test_located_is_kept(finished_run, manifest):
    with Run.open(finished_run, manifest) as run:
        located = run.read_part("located")
    assert located is not None
    np.testing.assert_array_equal(located["curvature"], np.eye(3))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"data": "other"}, ["its rows or columns are different"]),
        ({"model": "other"}, ["its model or priors are different"]),
        (
            {"plan": {"shards": 6, "draws": 8, "seed": 0}},
            ["plan shards is 5 there and 6 here", "plan combiner"],
        ),
    ],
)
def test_resume_refuses_another_run_and_names_what_differs(finished_run, manifest, change, words):
    with pytest.raises(RunError) as caught:
        Run.open(finished_run, replace(manifest, **change))
    for word in words:
        assert word in str(caught.value)
    with Run.open(finished_run, manifest) as run:  # the refusal left no lock, and no harm
        assert run.finished() == [0, 1, 2, 3, 4]


def test_resume_refuses_another_schema(finished_run, manifest):
    path = finished_run / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 2}))
    with pytest.raises(RunError, match="schema version 2; this version of shardmc reads 1"):
        Run.open(finished_run, manifest)


def test_other_package_versions_are_a_note(finished_run, manifest):
    with Run.open(finished_run, replace(manifest, versions={**manifest.versions, "numpy": "9.9"})) as run:
        assert any("numpy" in note and "9.9" in note for note in run.notes)
        assert len(run.finished()) == 5


def test_a_folder_that_is_no_run_is_left_alone(tmp_path, manifest):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(RunError, match="not a run folder"):
        Run.open(tmp_path, manifest)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_is_no_run_folder(tmp_path, manifest):
    (tmp_path / "run").write_text("")
    with pytest.raises(RunError, match="cannot be a run folder"):
        Run.open(tmp_path / "run", manifest)


def test_a_run_that_was_stopped_before_its_manifest_starts_anew(tmp_path, manifest):
    (tmp_path / "shards").mkdir()
    (tmp_path / "lock").touch()
    (tmp_path / ".manifest.json.0123456789abcdef.tmp").write_text("{")
    with Run.open(tmp_path, manifest) as run:
        assert run.finished() == []


def test_objects_and_unknown_shards_are_refused(tmp_path, manifest, draws):
    with Run.open(tmp_path / "run", manifest) as run:
        with pytest.raises(RunError, match="only numbers, booleans and text"):
            run.write(0, {**draws(0), "objects": np.array([{}])})
        for shard in (-1, 5, 1.5):
            with pytest.raises(RunError, match="There is no shard"):
                run.write(shard, draws(0))
        assert list((tmp_path / "run" / "shards").iterdir()) == []


def test_reading_what_is_not_done_and_writing_after_the_end(tmp_path, manifest, draws):
    with Run.open(tmp_path / "run", manifest) as run, pytest.raises(RunError, match=r"Shard 0 .* not done"):
        run.read(0)
    with pytest.raises(RunError, match="closed"):
        run.write(0, draws(0))


def test_results_go_into_the_folder(tmp_path, manifest):
    with Run.open(tmp_path / "run", manifest) as run:
        assert run.path("posterior.nc") == tmp_path / "run" / "posterior.nc"


def test_status_of_a_run(tmp_path, manifest, draws):
    folder = tmp_path / "run"
    with Run.open(folder, manifest) as run:
        run.write(0, draws(0))
        run.write(1, draws(1))
        run.write_failure(2, "diverged")
        (folder / "shards" / "00001.npz").write_bytes(b"PK")
        seen = status(folder)
        assert seen.owner is not None
        assert seen.running is True
    assert (seen.done, seen.failed, seen.damaged.keys(), seen.missing) == ((0,), {2: "diverged"}, {1}, (3, 4))
    assert seen.manifest == manifest
    after = status(folder)
    assert (after.owner, after.running) == (None, False)


def test_status_changes_nothing(finished_run):
    before = {path: path.read_bytes() for path in finished_run.rglob("*") if path.is_file()}
    (finished_run / "shards" / "00000.npz").write_bytes(b"")
    status(finished_run)
    after = {path: path.read_bytes() for path in finished_run.rglob("*") if path.is_file()}
    assert after == {**before, finished_run / "shards" / "00000.npz": b""}


def test_status_of_something_else(tmp_path):
    with pytest.raises(RunError, match="not a run folder"):
        status(tmp_path)


def test_control_characters_of_a_failure_stay_off_the_terminal(tmp_path, manifest):
    with Run.open(tmp_path / "run", manifest) as run:
        run.write_failure(0, "bad\x1b[2Jnews\n")
    assert status(tmp_path / "run").failed == {0: "bad [2Jnews "}


def test_a_run_that_failed_before_its_first_result_leaves_nothing_behind(tmp_path, manifest):
    Run(tmp_path / "new" / "run").close()
    assert not (tmp_path / "new").exists()
    (tmp_path / "empty").mkdir()
    Run(tmp_path / "empty").close()
    assert list((tmp_path / "empty").iterdir()) == []
    with pytest.raises(ZeroDivisionError), Run.open(tmp_path / "run", manifest):
        raise ZeroDivisionError
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["predictions.csv", "shards/00001.npz.damaged"])
def test_a_replaced_run_that_fails_at_once_leaves_a_run_folder(finished_run, manifest, name):
    (finished_run / name).write_text("not the run's own")
    other = replace(manifest, data="e" * 16)
    run = Run(finished_run)
    run.discard()
    run.begin(other)
    run.close(failed=True)
    with pytest.raises(RunError, match=r"belongs to another run: .* overwrite=True \(--force\)"):
        Run.open(finished_run, manifest)
    with Run.open(finished_run, other) as run:
        assert run.finished() == []
    assert (finished_run / name).read_text() == "not the run's own"


def test_a_run_that_failed_later_is_kept(tmp_path, manifest, draws):
    def fail() -> None:
        with Run.open(tmp_path / "run", manifest) as run:
            if not run.finished():
                run.write(0, draws(0))
            raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            fail()
        assert status(tmp_path / "run").done == (0,)
