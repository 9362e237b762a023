"""What stays on the disk after a fault: no second holder of a lock, no half page, no copy of the rows."""

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from filelock import SoftFileLock

import shardmc
from shardmc.errors import RunError
from shardmc.store.lock import Lock, Owner

needs_posix = pytest.mark.skipif(os.name != "posix", reason="Signals are POSIX's.")

DEAD = Owner(2**22 + 1, socket.gethostname(), "before the boot", "2026-01-01T00:00:00+00:00")
"""Linux gives out no pid above 2^22."""

CONTENDER = """
import errno, fcntl, sys
from pathlib import Path

def flock(descriptor, operation):
    raise OSError(errno.ENOSYS, "Function not implemented")

fcntl.flock = flock
from shardmc.errors import RunError
from shardmc.store import lock as lock_module

lock_module._PATIENCE = 0.3
for line in sys.stdin:
    folder = Path(line.strip())
    while not (folder / "go").exists():
        pass
    try:
        lock = lock_module.Lock(folder)
    except RunError:
        lock = None
    print("refused" if lock is None else "held", flush=True)
    sys.stdin.readline()  # all contenders have answered
    if lock is not None:
        lock.release()
"""


def dead_marker(folder: Path) -> None:
    """What a process that was killed leaves on a file system without `flock`."""
    with SoftFileLock(folder / "probe"):
        host = (folder / "probe").read_text().splitlines()[1]
    (folder / "lock.exclusive").write_text(f"{DEAD.pid}\n{host}\n")
    (folder / "lock.json").write_text(json.dumps(DEAD.__dict__))


@needs_posix
@pytest.mark.slow
def test_a_dead_lock_has_one_heir_without_flock(tmp_path):
    """Forty takeovers by eight processes. A lock with two holders in 5 of 40 passes with a probability of 0.005."""
    with contextlib.ExitStack() as stack:
        contenders = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", CONTENDER],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(8)
        ]
        for number in range(40):
            folder = tmp_path / str(number)
            folder.mkdir()
            dead_marker(folder)
            for each in contenders:
                print(folder, file=each.stdin, flush=True)
            (folder / "go").touch()
            answers = [each.stdout.readline().strip() for each in contenders]
            for each in contenders:
                print(file=each.stdin, flush=True)
            assert sorted(answers) == ["held", *["refused"] * 7]
        for each in contenders:
            each.stdin.close()


@needs_posix
def test_where_a_dead_lock_cannot_be_replaced_safely_the_user_is_told(tmp_path, monkeypatch):
    """A file system without `flock` that cannot exchange two names either."""
    import fcntl

    import filelock._soft

    def flock(descriptor, operation):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(filelock._soft, "exchange_names", lambda *names: False)
    monkeypatch.setattr("shardmc.store.lock._PATIENCE", 0.1)
    dead_marker(tmp_path)
    with pytest.raises(RunError, match=r"That process has ended.*delete .*lock\.exclusive"):
        Lock(tmp_path)


# The copy of the rows.

SPLIT = """
import sys, time
from shardmc.data import Partition, as_source

blocks = as_source(sys.argv[1], memory=1).split(Partition(2), seed=0)
print("split", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    x = np.random.default_rng(0).normal(size=(200_000, 2))
    pd.DataFrame({"x": x[:, 0], "y": x[:, 0] + x[:, 1]}).to_parquet(path)
    return path


def until(found, seconds=60.0):
    """Wait until `found()` is true; whether it became so."""
    end = time.monotonic() + seconds
    while not found() and time.monotonic() < end:
        time.sleep(0.05)
    return found()


@needs_posix
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_copy_of_the_rows_stays_after_a_signal(table, tmp_path, number):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", SPLIT, str(table)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout.readline() == "split\n"
        assert list(tmp_path.glob("*/*.bin"))  # the rows are there
        process.send_signal(number)
        process.wait(timeout=60)
    assert until(lambda: not list(tmp_path.iterdir()), 20)


@needs_posix
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_no_copy_of_the_rows_stays_after_a_command(table, tmp_path, number):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    call = ["fit", str(table), "y ~ x", "--memory", "0.000001", "--out", str(tmp_path / "run")]
    with subprocess.Popen(
        [sys.executable, "-m", "shardmc", *call],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert until(lambda: list(temporary.glob("*/*.bin")))
        process.send_signal(number)
        process.wait(timeout=60)
    assert until(lambda: not list(temporary.glob("shardmc-rows-*")), 20)


@needs_posix
def test_an_orderly_end_leaves_neither_rows_nor_processes(table, tmp_path, monkeypatch):
    from shardmc.data import Partition, as_source

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = children()
    blocks = as_source(table, memory=1).split(Partition(2), seed=0)
    assert list(tmp_path.glob("*/*.bin"))
    del blocks
    assert not list(tmp_path.iterdir())
    assert children() == before


def children():
    """Child processes of this one, zombies included."""
    listed = subprocess.run(
        ["ps", "-o", "pid=,comm=", "--ppid", str(os.getpid())], capture_output=True, text=True
    )
    return {line for line in listed.stdout.splitlines() if not line.endswith(" ps")}


# The page.


@pytest.fixture(scope="module")
def posterior():
    y = np.random.default_rng(0).normal(3.0, 1.0, size=2_000).astype(np.float32)
    model = shardmc.Model(lambda params, y: -0.5 * (y - params["mu"]) ** 2, None, {"mu": ()})
    return shardmc.fit(model, y, shards=2, draws=200, check=False, precision="single")


def test_a_report_does_not_follow_a_link_out_of_the_folder(posterior, tmp_path):
    precious = tmp_path / "precious.txt"
    precious.write_text("mine")
    run = tmp_path / "run"
    run.mkdir()
    (run / "report.html").symlink_to(precious)
    posterior.report(run)
    assert precious.read_text() == "mine"
    assert not (run / "report.html").is_symlink()
    assert "<html" in (run / "report.html").read_text()


def test_a_report_does_not_follow_a_link_to_another_folder(posterior, tmp_path):
    other, run = tmp_path / "other", tmp_path / "run"
    other.mkdir()
    run.mkdir()
    (run / "report.html").symlink_to(other)
    posterior.report(run / "report.html")
    assert not list(other.iterdir())
    assert (run / "report.html").is_file()


def test_a_report_is_complete_or_the_old_one(posterior, tmp_path, monkeypatch):
    page = tmp_path / "report.html"
    page.write_text("the old page")

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"disk is full: .*report\.html"):
        posterior.report(page)
    assert page.read_text() == "the old page"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
