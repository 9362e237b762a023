"""Files that are not what they should be are noticed, said, set aside, and never unpickled or followed."""

import hashlib
import io
import os
import pickle
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shardmc.errors import RunError
from shardmc.store.records import DamagedError, decode, encode
from shardmc.store.run import Run, status


class Marker:
    """An object whose unpickling makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def object_record(marker: Path, header: dict) -> bytes:
    """A record with a right checksum, in which one array is pickled."""
    buffer = io.BytesIO()
    honest = zipfile.ZipFile(io.BytesIO(encode(header, {})))
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("_header.npy", honest.read("_header.npy"))
        with archive.open("draws.npy", "w") as entry:
            np.lib.format.write_array(entry, np.array([Marker(marker)], dtype=object), allow_pickle=True)
    return resealed(buffer.getvalue())


def resealed(content: bytes) -> bytes:
    """A ZIP file with the comment that makes its checksum right: what a forger would do."""
    buffer = io.BytesIO(content)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.comment = b"sha256:" + b"0" * 64
    body = buffer.getvalue()[:-64]
    return body + hashlib.sha256(body).hexdigest().encode()


def check_recomputed(folder: Path, manifest, draws, reason: str, shard: int = 2) -> None:
    """Status and resume see the damage, for that reason; the rest is intact, and the shard can be written."""
    assert reason in status(folder).damaged[shard]
    with Run.open(folder, manifest) as run:
        assert run.finished() == [each for each in range(5) if each != shard]
        (note,) = [note for note in run.notes if "damaged" in note]
        assert note.startswith(f"Shard {shard}'s file is damaged (")
        assert reason in note
        assert note.endswith("and will be computed again.")
        for other in run.finished():
            np.testing.assert_array_equal(run.read(other)["draws"], draws(other)["draws"])
        run.write(shard, draws(shard))
    with Run.open(folder, manifest) as run:
        assert run.notes == ["5 of 5 shards were already done."]
        np.testing.assert_array_equal(run.read(shard)["draws"], draws(shard)["draws"])


@pytest.fixture
def shard_file(finished_run: Path) -> Path:
    return finished_run / "shards" / "00002.npz"


@pytest.mark.parametrize("length", [0, 1, 40, 600, -1, -64, -100])
def test_a_truncated_file_is_computed_again(finished_run, shard_file, manifest, draws, length):
    shard_file.write_bytes(shard_file.read_bytes()[:length])
    check_recomputed(
        finished_run, manifest, draws, "empty" if length == 0 else "not a file" if length == 1 else "cut"
    )


def test_every_flipped_bit_is_noticed(shard_file):
    content = shard_file.read_bytes()
    decode(content)  # the control: unchanged, it is right
    for position in range(len(content)):
        flipped = bytearray(content)
        flipped[position] ^= 1 << position % 8
        with pytest.raises(DamagedError):
            decode(bytes(flipped))


def test_a_bit_flipped_file_is_computed_again(finished_run, shard_file, manifest, draws):
    content = bytearray(shard_file.read_bytes())
    content[len(content) // 2] ^= 4
    shard_file.write_bytes(content)
    check_recomputed(finished_run, manifest, draws, "checksum")


def test_another_runs_file_is_computed_again(tmp_path, finished_run, shard_file, manifest, draws):
    with Run.open(tmp_path / "other", replace(manifest, run="0" * 32)) as other:
        other.write(2, draws(7))
    os.replace(tmp_path / "other" / "shards" / "00002.npz", shard_file)
    check_recomputed(finished_run, manifest, draws, "another run")


def test_another_shards_file_is_computed_again(finished_run, shard_file, manifest, draws):
    shard_file.write_bytes((finished_run / "shards" / "00003.npz").read_bytes())
    check_recomputed(finished_run, manifest, draws, "it is of shard 3, not 2")


def test_another_kind_of_file_is_computed_again(finished_run, shard_file, manifest, draws):
    shard_file.write_bytes((finished_run / "located.npz").read_bytes())
    check_recomputed(finished_run, manifest, draws, "it is of kind 'located'")


def test_a_pickle_is_never_unpickled(tmp_path, finished_run, shard_file, manifest, draws):
    marker = tmp_path / "marker"
    shard_file.write_bytes(pickle.dumps(Marker(marker)))
    check_recomputed(finished_run, manifest, draws, "not a file of shardmc")
    assert not marker.exists()
    pickle.loads(pickle.dumps(Marker(marker)))  # the control: this pickle is armed
    assert marker.exists()


def test_a_pickle_in_a_forged_record_is_never_unpickled(tmp_path, finished_run, shard_file, manifest, draws):
    marker = tmp_path / "marker"
    forged = object_record(marker, {"run": manifest.run, "kind": "shard", "shard": 2})
    shard_file.write_bytes(forged)
    check_recomputed(finished_run, manifest, draws, "without objects")
    assert not marker.exists()
    with np.load(io.BytesIO(forged), allow_pickle=True) as archive:  # the control
        archive["draws"]
    assert marker.exists()


def test_a_pickle_in_place_of_the_modes(tmp_path, finished_run, manifest):
    marker = tmp_path / "marker"
    (finished_run / "located.npz").write_bytes(pickle.dumps(Marker(marker)))
    with Run.open(finished_run, manifest) as run:
        assert run.read_part("located") is None
        assert "located.npz is damaged" in run.notes[-1]
        run.write_part("located", {"mode": np.ones(3)})
        assert run.read_part("located") is not None
    assert not marker.exists()


@pytest.mark.parametrize(
    "name", ["../../outside.npy", "/tmp/outside.npy", "..\\outside.npy", "sub/draws.npy"]
)
def test_an_entry_that_leads_outside_is_damage(tmp_path, finished_run, shard_file, manifest, draws, name):
    buffer = io.BytesIO(shard_file.read_bytes())
    with zipfile.ZipFile(buffer, "a") as archive, archive.open(name, "w") as entry:
        np.lib.format.write_array(entry, np.zeros(3))
    shard_file.write_bytes(resealed(buffer.getvalue()))
    check_recomputed(finished_run, manifest, draws, "its entry")
    assert not list(tmp_path.rglob("outside*"))


def test_an_entry_that_is_no_array_is_damage(finished_run, shard_file, manifest, draws):
    buffer = io.BytesIO(shard_file.read_bytes())
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr("draws2", b"text")
    shard_file.write_bytes(resealed(buffer.getvalue()))
    check_recomputed(finished_run, manifest, draws, "its entry")


def test_a_forged_zip_is_damage(finished_run, shard_file, manifest, draws):
    shard_file.write_bytes(resealed(b"PK\x03\x04" + bytes(200)))
    check_recomputed(finished_run, manifest, draws, "not readable")


def test_a_link_to_a_file_outside_is_neither_read_nor_written_through(
    tmp_path, finished_run, shard_file, manifest, draws
):
    outside = tmp_path / "outside.npz"
    os.replace(shard_file, outside)  # even the right content does not make a link right
    before = outside.read_bytes()
    shard_file.symlink_to(outside)
    check_recomputed(finished_run, manifest, draws, "link")
    assert outside.read_bytes() == before
    assert not shard_file.is_symlink()


def test_a_folder_in_place_of_a_file_is_set_aside(finished_run, shard_file, manifest, draws):
    shard_file.unlink()
    shard_file.mkdir()
    (shard_file / "precious").touch()
    check_recomputed(finished_run, manifest, draws, "not a regular file")
    assert (finished_run / "shards" / "00002.npz.damaged" / "precious").exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="This system has no named pipes.")
def test_a_pipe_in_place_of_a_file_does_not_hang(finished_run, shard_file, manifest, draws):
    shard_file.unlink()
    os.mkfifo(shard_file)
    check_recomputed(finished_run, manifest, draws, "not a regular file")


@pytest.mark.parametrize("name", ["shards", "manifest.json", "lock"])
def test_a_link_in_place_of_the_runs_own_files_is_refused(tmp_path, finished_run, manifest, name):
    outside = tmp_path / "outside"
    os.replace(finished_run / name, outside)
    before = None if outside.is_dir() else outside.read_bytes()
    (finished_run / name).symlink_to(outside)
    with pytest.raises(RunError, match="is a link"):
        Run.open(finished_run, manifest)
    if before is not None:
        assert outside.read_bytes() == before


@pytest.mark.parametrize("name", ["shards", "report.html"])
def test_a_run_with_a_link_is_not_discarded(tmp_path, finished_run, name):
    outside = tmp_path / "outside"
    (finished_run / "report.html").write_text("mine")
    os.replace(finished_run / name, outside)
    (finished_run / name).symlink_to(outside)
    before = sorted(path.name for path in (finished_run / "shards").iterdir())
    with Run(finished_run) as run, pytest.raises(RunError, match="is a link"):
        run.discard()
    assert sorted(path.name for path in (finished_run / "shards").iterdir()) == before


def test_a_damaged_file_is_kept_aside(finished_run, shard_file, manifest):
    shard_file.write_bytes(b"perhaps somebody's only copy")
    Run.open(finished_run, manifest).close()
    assert (finished_run / "shards" / "00002.npz.damaged").read_bytes() == b"perhaps somebody's only copy"


def test_strangers_among_the_shards_are_left_alone(finished_run, manifest):
    shards = finished_run / "shards"
    names = ["00005.npz", "2.npz", "notes.txt", "٠٠٠٠١.npz"]
    for name in names:
        (shards / name).write_text("x")
    with Run.open(finished_run, manifest) as run:
        assert run.finished() == [0, 1, 2, 3, 4]
        assert "left alone" in run.notes[-1]
    assert all((shards / name).exists() for name in names)


def test_what_a_killed_process_had_not_finished_is_removed(finished_run, manifest):
    rest = finished_run / "shards" / ".00002.npz.0123456789abcdef.tmp"
    rest.write_bytes(b"half")
    Run.open(finished_run, manifest).close()
    assert not rest.exists()


def test_damage_while_the_run_is_open_is_said(finished_run, shard_file, manifest):
    with Run.open(finished_run, manifest) as run:
        shard_file.write_bytes(b"")
        with pytest.raises(RunError, match="damaged while the run was open"):
            run.read(2)


@pytest.mark.parametrize(
    "name",
    [
        "../report.html",
        "/etc/passwd",
        "a/b",
        "a\\b",
        "..",
        ".",
        "",
        ".hidden",
        "-rf",
        "a\0b",
        "a\nb",
        "C:a",
        "x" * 300,
    ],
)
def test_names_never_lead_outside(tmp_path, manifest, name):
    with Run.open(tmp_path / "run", manifest) as run:
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(RunError, match="is not a valid name for a file"):
            run.path(name)
        assert sorted(tmp_path.rglob("*")) == before


def test_the_runs_own_names_are_not_for_results(tmp_path, manifest):
    with Run.open(tmp_path / "run", manifest) as run:
        for name in ("manifest.json", "lock", "lock.exclusive", "lock.json", "shards", "located.npz"):
            with pytest.raises(RunError, match="of the run itself"):
                run.path(name)


def test_a_result_that_is_a_link_is_not_written_through(tmp_path, manifest):
    outside = tmp_path / "outside.html"
    outside.write_text("mine")
    with Run.open(tmp_path / "run", manifest) as run:
        (tmp_path / "run" / "report.html").symlink_to(outside)
        with pytest.raises(RunError, match="is a link"):
            run.path("report.html")
    assert outside.read_text() == "mine"


@pytest.mark.parametrize("name", ["../draws", "a/b", "", "_header", "1st"])
def test_array_names_are_plain(tmp_path, manifest, draws, name):
    with (
        Run.open(tmp_path / "run", manifest) as run,
        pytest.raises(RunError, match="is not a name for a stored array"),
    ):
        run.write(0, {**draws(0), name: np.zeros(2)})
