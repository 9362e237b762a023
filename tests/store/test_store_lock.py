"""A second process is refused, and a lock whose holder is dead is taken over."""

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace

import pytest
from filelock import SoftFileLock

from shardmc.errors import RunError
from shardmc.store.lock import Lock, Owner, process_start, read_owner
from shardmc.store.run import Run, status

HOLDER = """
import sys
from pathlib import Path
from shardmc.store.records import Manifest
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
    for name in ("lock", "lock.json"):
        (tmp_path / name).write_text(text)
    lock = Lock(tmp_path)
    assert lock.previous is None
    assert read_owner(tmp_path).pid == os.getpid()
    lock.release()


@pytest.mark.parametrize(
    "change", [{"pid": 0}, {"pid": -1}, {"pid": "1"}, {"pid": True}, {"host": 3}, {"since": None}]
)
def test_an_owner_that_cannot_be_is_none(tmp_path, change):
    values = {"pid": 1, "host": "h", "process_start": "s", "since": "2026-01-01", **change}
    (tmp_path / "lock.json").write_text(json.dumps(values))
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


DEAD = Owner(2**22 + 1, socket.gethostname(), "before the boot", "2026-01-01T00:00:00+00:00")
"""Linux gives out no pid above 2^22."""


def marker(pid: int, host: str) -> str:
    """What the lock writes to its marker file."""
    return f"{pid}\n{host}\n"


class TestWithoutFlock:
    """A file system without locks: the marker file."""

    @pytest.fixture(autouse=True, params=[errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK])
    def no_flock(self, monkeypatch, request):
        fcntl = pytest.importorskip("fcntl")

        def flock(descriptor, operation):
            raise OSError(request.param, os.strerror(request.param))

        monkeypatch.setattr(fcntl, "flock", flock)
        monkeypatch.setattr("shardmc.store.lock._PATIENCE", 0.2)

    def test_the_second_is_refused_and_the_third_not(self, tmp_path):
        lock = Lock(tmp_path)
        with pytest.raises(RunError, match=f"process {os.getpid()}"):
            Lock(tmp_path)
        lock.release()
        assert not (tmp_path / "lock.exclusive").exists()
        Lock(tmp_path).release()

    def test_a_dead_owner_is_replaced(self, tmp_path):
        held = Lock(tmp_path)
        host = (tmp_path / "lock.exclusive").read_text().splitlines()[1]  # with its namespace of pids
        held.release()
        (tmp_path / "lock.exclusive").write_text(marker(DEAD.pid, host))
        (tmp_path / "lock.json").write_text(json.dumps(DEAD.__dict__))
        lock = Lock(tmp_path)
        assert lock.previous == DEAD
        lock.release()

    @pytest.mark.parametrize("text", ["", marker(1, "elsewhere.invalid")])
    def test_where_nobody_can_tell_the_user_is_asked(self, tmp_path, text):
        (tmp_path / "lock.exclusive").write_text(text)
        (tmp_path / "lock.json").write_text(json.dumps(replace(DEAD, host="elsewhere.invalid").__dict__))
        with pytest.raises(
            RunError, match=r"process .* on elsewhere\.invalid .*If it does not, delete .*lock\.exclusive"
        ):
            Lock(tmp_path)
        assert (tmp_path / "lock.exclusive").read_text() == text


CONTENDER = """
import errno, fcntl, os, sys
from pathlib import Path

def flock(descriptor, operation):
    raise OSError(errno.ENOSYS, "Function not implemented")

fcntl.flock = flock
from shardmc.errors import RunError
from shardmc.store import lock as lock_module
from shardmc.store.lock import Lock

lock_module._PATIENCE = 0.05
for line in sys.stdin:  # a folder each, until the input ends
    folder = Path(line.strip())
    while not (folder / "go").exists():
        pass
    try:
        lock = Lock(folder)
    except RunError:
        print("refused", flush=True)
        continue
    print("held", flush=True)
    sys.stdin.readline()  # all contenders have answered
    lock.release()
"""


@needs_posix
def test_of_many_that_take_over_a_dead_lock_at_once_one_gets_it(tmp_path):
    """Twenty takeovers by four processes. A lock that removes the dead marker and then creates its own had two holders
    in 24 of 100 takeovers: it passes this test with a probability of 0.004."""
    probe = tmp_path / "probe"
    probe.mkdir()
    command = [sys.executable, "-c", CONTENDER]
    with contextlib.ExitStack() as stack:
        contenders = [
            stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            for _ in range(4)
        ]
        with SoftFileLock(probe / "lock.exclusive"):
            name = (probe / "lock.exclusive").read_text().splitlines()[1]
        for number in range(20):
            folder = tmp_path / str(number)
            folder.mkdir()
            (folder / "lock.exclusive").write_text(marker(DEAD.pid, name))
            for each in contenders:
                each.stdin.write(f"{folder}\n")
                each.stdin.flush()
            (folder / "go").touch()
            answers = [each.stdout.readline().strip() for each in contenders]
            assert sorted(answers) == ["held", "refused", "refused", "refused"]
            holder = contenders[answers.index("held")]
            holder.stdin.write("\n")
            holder.stdin.flush()
        for each in contenders:
            each.stdin.close()
