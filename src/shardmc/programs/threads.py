"""Threads that compute: neither an interruption nor the end of an interrupted process waits for them."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import time
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, Thread, current_thread
from typing import Any, TypeVar, final

import numpy as np

T = TypeVar("T")

_Call = tuple[Future[Any], Callable[[], Any]]
_Calls = SimpleQueue[_Call | None]
"""Calls to run one after another. None ends them."""

_running: set[Future[Any]] = set()
_ending = False
_lock = Lock()

_Work = tuple[_Calls, str]
"""What a thread does next: the calls it takes, and its name meanwhile."""
_idle: list[SimpleQueue[_Work | None]] = []
"""Threads that wait for work, each by the queue from which it takes it. Starting a thread waits until it runs, which
takes a millisecond while others compute. A fit would start a hundred."""
_MOST_IDLE = 16
_open: weakref.WeakSet[Threads] = weakref.WeakSet()
_alive: weakref.WeakSet[Thread] = weakref.WeakSet()
_PATIENCE = 2.0
"""Seconds for which the end of the process waits for threads that have nothing to do."""
_LEAST_ENTRIES = 1 << 17
"""From this number of entries of an array, several threads are faster than one."""
_MOST_PARTS = 4


@final
class Threads:
    """A few threads that run calls in the order in which they come.

    A thread inside a compiled program cannot be stopped. Python's own pools make the process wait for it at its end,
    however it ends. These threads do not.

    Examples
    --------
    >>> threads = Threads(2, "example")
    >>> [call.result() for call in (threads.submit(lambda: 1), threads.submit(lambda: 2))]
    [1, 2]
    >>> threads.close()
    """

    def __init__(self, count: int, name: str) -> None:
        self._calls: _Calls = SimpleQueue()
        self._count, self._name = count, name
        self._started = 0
        _open.add(self)

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Run a function as soon as a thread is free."""
        call: Future[T] = Future()
        self._calls.put((call, function))
        if self._started < self._count:
            self._started += 1
            _start(self._calls, self._name)
        return call

    def close(self, *, cancel: bool = True) -> None:
        """Take no more calls, and cancel those that have not begun. Does not wait for the others."""
        while cancel:
            try:
                call = self._calls.get_nowait()
            except Empty:  # one of the threads may have taken the last call
                break
            if call is not None:
                call[0].cancel()
        for _ in range(self._started):
            self._calls.put(None)


def aside(function: Callable[[], T], name: str) -> Future[T]:
    """Run one function in a thread of its own."""
    threads = Threads(1, name)
    call = threads.submit(function)
    threads.close(cancel=False)
    return call


def each(function: Callable[[T], None], items: Iterable[T], threads: int) -> None:
    """Call a function of every item, in this thread and in others, and wait for all. Raises the first error."""
    pool = Threads(threads - 1, "shardmc-each")
    first, *others = items
    calls = [pool.submit(partial(function, item)) for item in others] if threads > 1 else []
    try:
        function(first)
        for item in others[len(calls) :]:
            function(item)
    finally:
        wait(calls)
        pool.close()
    for call in calls:
        call.result()


def in_parts(function: Callable[[slice], None], parts: int, entries: int) -> None:
    """Call a function of slices that together are 0, ..., parts - 1, in a few threads if there are many entries.

    >>> squares = np.empty(5)
    >>> in_parts(lambda part: squares.__setitem__(part, np.arange(5)[part] ** 2), 5, entries=1_000_000)
    >>> squares
    array([ 0.,  1.,  4.,  9., 16.])
    """
    threads = min(_MOST_PARTS, os.cpu_count() or 1, parts)
    if entries < _LEAST_ENTRIES or threads < 2:
        function(slice(0, parts))
        return
    edges = np.linspace(0, parts, threads + 1).astype(int).tolist()
    each(function, [slice(edges[k], edges[k + 1]) for k in range(threads)], threads)


def _start(calls: _Calls, name: str) -> None:
    """Run calls in a thread that waits for work, or else in a new one."""
    with _lock:
        work = _idle.pop() if _idle else None
    if work is None:
        work = SimpleQueue()
        thread = Thread(target=_serve, args=(work,), daemon=True)
        _alive.add(thread)
        thread.start()
    work.put((calls, name))


def _serve(work: SimpleQueue[_Work | None]) -> None:
    while (following := work.get()) is not None:
        calls, current_thread().name = following
        _run(calls)
        del calls, following
        with _lock:
            if _ending or len(_idle) >= _MOST_IDLE:
                return
            _idle.append(work)


def _run(calls: _Calls) -> None:
    while (following := calls.get()) is not None:
        call, function = following
        with _lock:
            if _ending or not call.set_running_or_notify_cancel():
                continue
            _running.add(call)
        try:
            result = function()
        except BaseException as error:
            call.set_exception(error)
        else:
            call.set_result(result)
            del result
        _running.discard(call)
        del call, function, following  # what they hold is not needed while this thread waits


def _forget() -> None:
    """In a forked process: its threads are those of the other one."""
    global _lock
    _lock = Lock()
    _idle.clear()
    _open.clear()
    _alive.clear()
    _running.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _end_threads() -> None:
    """End the threads that have nothing to do, so that none is left when Python and the libraries end."""
    for threads in list(_open):
        threads.close()
    with _lock:
        for work in _idle:
            work.put(None)
        _idle.clear()
    until = time.monotonic() + _PATIENCE
    for thread in list(_alive):
        thread.join(max(0.0, until - time.monotonic()))


@atexit.register
def _leave() -> None:
    """Before Python ends: a thread that comes back from a compiled program after that would crash the process."""
    global _ending
    with _lock:
        _ending = True
        running = set(_running)
    if not running or getattr(sys, "last_type", None) is not KeyboardInterrupt:
        wait(running)
        _end_threads()
        return
    # The process ends by a signal, so Python's own end is done here. `weakref` has no public name for its part of it,
    # which removes temporary folders.
    weakref.finalize._exitfunc()  # type: ignore[attr-defined]
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
