"""Threads that compute: used again, waited for where results are needed, and ended with the process."""

import os
import subprocess
import sys
import threading
import time
from queue import SimpleQueue

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


FORKING = """
import os, sys, threading
from shardmc.programs.threads import aside
begun, ended = threading.Event(), threading.Event()
aside(lambda: (begun.set(), ended.wait(20)), "shardmc-test")
begun.wait()
child = os.fork()
if child:
    print(os.waitpid(child, 0)[1])
    ended.set()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="This system has no fork.")
def test_a_forked_process_does_not_wait_for_calls_of_the_other_one():
    done = subprocess.run(
        [sys.executable, "-c", FORKING], capture_output=True, text=True, check=True, timeout=15
    )
    assert done.stdout.split() == ["0"]


def test_calls_that_another_thread_takes_meanwhile_do_not_stop_the_end():
    """The queue is not empty when it is looked at, and empty when the call is taken."""

    class Taken(SimpleQueue):
        def empty(self):
            return False

    pool = Threads(1, "shardmc-test")
    pool._calls = Taken()
    closing = threading.Thread(target=pool.close, daemon=True)
    closing.start()
    closing.join(10)
    assert not closing.is_alive()
