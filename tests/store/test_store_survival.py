"""Whenever a writer is killed, and when the disk is full, every file that can be seen is complete."""

import errno
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from shardmc.errors import RunError
from shardmc.guards import files
from shardmc.store.run import Run, status

WRITER = Path(__file__).with_name("writer.py")


def visible(folder: Path) -> list[Path]:
    return sorted((folder / "shards").glob("[0-9]*"))


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL is POSIX's.")
@pytest.mark.slow
def test_a_writer_killed_twenty_times_leaves_only_complete_files(tmp_path, manifest):
    folder = tmp_path / "run"
    delays = random.Random(1)
    for _ in range(20):
        command = [sys.executable, str(WRITER), str(folder), manifest.to_json()]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            assert writer.stdout.readline() == b"open\n"
            time.sleep(delays.uniform(0, 0.05))
            writer.kill()
        seen = status(folder)
        assert seen.damaged == {}
        assert [path.name for path in visible(folder)] == [f"{shard:05d}.npz" for shard in seen.done]
        with Run.open(folder, manifest) as run:
            assert run.notes[0].startswith(f"The lock of process {writer.pid} on ")
            assert run.finished() == list(seen.done)
            for shard in run.finished():
                assert (run.read(shard)["draws"] == shard).all()
            assert {path.suffix for path in (folder / "shards").iterdir()} <= {".npz"}


KILLED_AT = """
import os, signal, sys
import numpy as np
from shardmc.store.records import Manifest
from shardmc.store.run import Run

folder, manifest, name = sys.argv[1:]
run = Run.open(folder, Manifest.from_json(manifest, "argument"))
original = getattr(os, name)

def killed(*arguments):
    if name == "write":
        original(arguments[0], arguments[1][:100])
    os.kill(os.getpid(), signal.SIGKILL)

setattr(os, name, killed)
run.write(int(sys.stdin.readline()), {"draws": np.ones((8, 3))})
"""


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL is POSIX's.")
@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
@pytest.mark.parametrize("shard", [0, 1])
def test_a_kill_at_each_step_of_a_write_leaves_the_folder_as_it_was(tmp_path, manifest, draws, call, shard):
    folder = tmp_path / "run"
    with Run.open(folder, manifest) as run:
        run.write(0, draws(0))
    command = [sys.executable, "-c", KILLED_AT, str(folder), manifest.to_json(), call]
    ended = subprocess.run(command, input=f"{shard}\n", text=True, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert any(files.is_temporary(entry.name) for entry in (folder / "shards").iterdir())
    assert (status(folder).done, status(folder).damaged) == ((0,), {})
    with Run.open(folder, manifest) as run:
        np.testing.assert_array_equal(run.read(0)["draws"], draws(0)["draws"])
        assert [path.name for path in (folder / "shards").iterdir()] == ["00000.npz"]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of one mebibyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("A small tmpfs cannot be mounted here: that takes Linux and root.")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_said_and_earlier_shards_are_intact(small_disk, manifest):
    folder = small_disk / "run"
    arrays = {"draws": np.random.default_rng(0).normal(size=(12_000, 3))}  # 288 kB: three fit
    with Run.open(folder, manifest) as run:
        for shard in range(3):
            run.write(shard, arrays)
        with pytest.raises(RunError, match=r"The disk is full: .*00003\.npz could not be written\."):
            run.write(3, arrays)
        assert run.finished() == [0, 1, 2]
        assert [path.name for path in (folder / "shards").iterdir() if files.is_temporary(path.name)] == []
        with pytest.raises(RunError, match="The disk is full"):
            files.write_file(run.path("report.html"), b"x" * 2**20)
        with pytest.raises(RunError, match="The disk is full"):
            run.write(0, {"draws": np.zeros((30_000, 3))})  # replacing: the old one stays
        for shard in run.finished():
            np.testing.assert_array_equal(run.read(shard)["draws"], arrays["draws"])
    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
    with Run.open(folder, manifest) as run:
        assert run.notes == ["3 of 5 shards were already done."]
        for shard in (3, 4):
            run.write(shard, arrays)
        assert run.finished() == [0, 1, 2, 3, 4]


def test_a_disk_that_is_full_from_the_start(small_disk, manifest):
    with pytest.raises(OSError, match="No space left"):
        (small_disk / "filler").write_bytes(bytes(2**21))
    with pytest.raises(RunError, match=r"The disk is full|cannot be a run folder: No space left"):
        Run.open(small_disk / "run", manifest)


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_call_that_fails_leaves_the_old_file(tmp_path, manifest, draws, monkeypatch, call, code):
    def fail(*_):
        raise OSError(code, os.strerror(code))

    with Run.open(tmp_path / "run", manifest) as run:
        run.write(0, draws(0))
        with monkeypatch.context() as patch:
            patch.setattr(files.os, call, fail)
            for shard in (0, 1):
                with pytest.raises(
                    RunError, match="disk is full" if code == errno.ENOSPC else "Input/output error"
                ):
                    run.write(shard, draws(7))
        assert run.finished() == [0]
        np.testing.assert_array_equal(run.read(0)["draws"], draws(0)["draws"])
        assert [path.name for path in (tmp_path / "run" / "shards").iterdir()] == ["00000.npz"]


def test_a_short_write_goes_on_until_all_is_written(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(files.os, "write", lambda descriptor, content: write(descriptor, content[:7]))
    files.write_file(tmp_path / "a", bytes(range(100)))
    assert (tmp_path / "a").read_bytes() == bytes(range(100))


def test_an_interrupted_write_removes_its_temporary_file(tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "write", interrupt)
    with pytest.raises(KeyboardInterrupt):
        files.write_file(tmp_path / "a", b"content")
    assert list(tmp_path.iterdir()) == []
