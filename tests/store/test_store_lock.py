"""A second process is refused, and a lock whose holder is dead is taken over."""

import errno
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from shardmc.errors import RunError
from shardmc.store import lock as lock_module
from shardmc.store.lock import Lock, Owner, process_start, read_owner
from shardmc.store.run import Run
from shardmc.store.status import status

HOLDER = """
import sys
from pathlib import Path
from shardmc.store.manifest import Manifest
from shardmc.store.run import Run

folder = Path(sys.argv[1])
with Run.open(folder, Manifest.from_json(sys.argv[2], "argument")):
    print("held", flush=True)
    sys.stdin.readline()
"""

FORKER = """
import os, sys, time
from pathlib import Path
from shardmc.store.lock import Lock

lock = Lock(Path(sys.argv[1]))
if os.fork() == 0:
    lock.release()  # must not release the parent's
    print(os.getpid(), flush=True)  # only now has the child surely run, and let go of what it shared with its parent
    time.sleep(60)
    os._exit(0)
time.sleep(60)
"""

needs_posix = pytest.mark.skipif(os.name != "posix", reason="Signals and fork are POSIX's.")


@pytest.fixture
def holder(tmp_path, manifest):
    """Another process that holds the run folder `tmp_path/run`."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "run"), manifest.to_json()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        if process.poll() is None:
            process.communicate("\n", timeout=60)


def test_a_second_process_is_refused_and_told_who_has_it(tmp_path, manifest, holder):
    owner = read_owner(tmp_path / "run")
    assert owner is not None
    assert owner.pid == holder.pid
    with pytest.raises(
        RunError, match=f"in use by process {holder.pid} on {owner.host} since {owner.since[:4]}"
    ):
        Run.open(tmp_path / "run", manifest)
    assert status(tmp_path / "run").running is True


def test_an_orderly_end_leaves_nothing_to_note(tmp_path, manifest, holder):
    holder.communicate("\n", timeout=60)
    with Run.open(tmp_path / "run", manifest) as run:
        assert run.notes == ["0 of 5 shards were already done."]


@needs_posix
def test_the_lock_of_a_killed_process_is_taken_over(tmp_path, manifest, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait(timeout=60)
    seen = status(tmp_path / "run")
    assert seen.owner is not None
    assert (seen.owner.pid, seen.running) == (holder.pid, False)
    with Run.open(tmp_path / "run", manifest) as run:
        assert run.notes[0].startswith(f"The lock of process {holder.pid} on ")
        assert status(tmp_path / "run").owner.pid == os.getpid()


@needs_posix
def test_a_forked_child_neither_keeps_nor_releases_the_lock(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", FORKER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as parent:
        child = int(parent.stdout.readline())
        try:
            with pytest.raises(RunError, match=f"process {parent.pid}"):
                Lock(tmp_path)
            parent.kill()
            parent.wait(timeout=60)
            assert process_start(child) is not None
            Lock(tmp_path).release()
        finally:
            os.kill(child, signal.SIGKILL)


def test_one_process_does_not_open_a_run_twice(tmp_path, manifest):
    with Run.open(tmp_path / "run", manifest), pytest.raises(RunError, match=f"process {os.getpid()}"):
        Run.open(tmp_path / "run", manifest)
    Run.open(tmp_path / "run", manifest).close()


def test_release_twice_is_harmless(tmp_path):
    lock = Lock(tmp_path)
    lock.release()
    lock.release()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', "\x80", "[" * 100_000])
def test_a_lock_file_with_nonsense_is_no_hindrance(tmp_path, text):
    (tmp_path / "lock").write_text(text)
    lock = Lock(tmp_path)
    assert lock.previous is None
    assert read_owner(tmp_path).pid == os.getpid()
    lock.release()


@pytest.mark.parametrize(
    "change", [{"pid": 0}, {"pid": -1}, {"pid": "1"}, {"pid": True}, {"host": 3}, {"since": None}]
)
def test_an_owner_that_cannot_be_is_none(tmp_path, change):
    values = {"pid": 1, "host": "h", "process_start": "s", "since": "2026-01-01", **change}
    (tmp_path / "lock").write_text(json.dumps(values))
    assert read_owner(tmp_path) is None


@needs_posix
def test_a_recycled_pid_is_not_mistaken_for_the_owner():
    owner = Owner.this_process()
    assert owner.is_alive() is True
    assert replace(owner, process_start="another").is_alive() is False
    assert replace(owner, host="elsewhere.invalid").is_alive() is None


@needs_posix
def test_a_process_that_ended_but_was_not_waited_for_is_dead():
    with subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE) as process:
        start = process_start(process.pid)
        process.stdout.read()  # ends when the process does
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert start is not None
        assert process_start(process.pid) is None


class TestWithoutFlock:
    """A file system without locks: the exclusive file."""

    @pytest.fixture(autouse=True)
    def no_flock(self, monkeypatch):
        fcntl = pytest.importorskip("fcntl")

        def flock(descriptor, operation):
            raise OSError(errno.ENOSYS, "Function not implemented")

        monkeypatch.setattr(fcntl, "flock", flock)

    def test_the_second_is_refused_and_the_third_not(self, tmp_path):
        lock = Lock(tmp_path)
        with pytest.raises(RunError, match=f"process {os.getpid()}"):
            Lock(tmp_path)
        lock.release()
        assert not (tmp_path / "lock.exclusive").exists()
        Lock(tmp_path).release()

    @pytest.mark.parametrize("change", [{"process_start": "before the boot"}])
    def test_a_dead_owner_is_replaced(self, tmp_path, change):
        dead = replace(Owner.this_process(), **change)
        (tmp_path / "lock.exclusive").write_text(json.dumps(dead.__dict__))
        lock = Lock(tmp_path)
        assert lock.previous == dead
        lock.release()

    @pytest.mark.parametrize("change", [{"host": "elsewhere.invalid"}, None])
    def test_where_nobody_can_tell_the_user_is_asked(self, tmp_path, change):
        text = "" if change is None else json.dumps(replace(Owner.this_process(), **change).__dict__)
        (tmp_path / "lock.exclusive").write_text(text)
        with pytest.raises(RunError, match=r"if it does not, delete .*lock\.exclusive"):
            Lock(tmp_path)
        assert (tmp_path / "lock.exclusive").read_text() == text


def test_no_lock_is_left_in_the_table_of_forked_children(tmp_path):
    lock = Lock(tmp_path)
    assert lock in lock_module._held
    lock.release()
    assert lock not in lock_module._held
