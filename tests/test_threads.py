"""Threads that compute: used again, waited for where results are needed, and ended with the process."""

import subprocess
import sys
import threading
import time

import pytest

from shardmc.programs.threads import Threads, aside, each


def compute_together(count):
    """As many calls at the same time, by threads of a new pool."""
    pool, together = Threads(count, "shardmc-test"), threading.Barrier(count)
    calls = [pool.submit(lambda: together.wait(10)) for _ in range(count)]
    assert sorted(call.result(10) for call in calls) == list(range(count))
    pool.close()


def test_threads_are_used_again(monkeypatch):
    started = []

    class Counted(threading.Thread):
        def start(self):
            started.append(self)
            super().start()

    monkeypatch.setattr("shardmc.programs.threads.Thread", Counted)
    for _ in range(100):  # a thread is free a moment after its last call
        before = len(started)
        compute_together(3)
        if len(started) == before:
            return
        time.sleep(0.01)
    pytest.fail("Every pool started threads of its own.")


def test_all_items_are_done_before_an_error_is_raised():
    done = []

    def work(item):
        if item == 1:
            raise ValueError("one")
        time.sleep(0.05)
        done.append(item)

    with pytest.raises(ValueError, match="one"):
        each(work, range(4), threads=3)
    assert sorted(done) == [0, 2, 3]


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_every_item_is_done_once(threads):
    done = []
    each(done.append, range(5), threads)
    assert sorted(done) == list(range(5))


def test_one_function_aside():
    assert aside(lambda: threading.current_thread().name, "shardmc-aside").result(10) == "shardmc-aside"


LEAVING = """
import atexit, threading
atexit.register(lambda: print(threading.active_count()))  # runs after that of shardmc, which is registered later
from shardmc.programs.threads import Threads
pools = [Threads(2, "shardmc-test") for _ in range(3)]
print([call.result() for call in [pool.submit(lambda: 1) for pool in pools]], threading.active_count() > 1)
pools[0].close()
"""


def test_no_thread_is_left_when_the_process_ends():
    done = subprocess.run([sys.executable, "-c", LEAVING], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["[1, 1, 1] True", "1"]
