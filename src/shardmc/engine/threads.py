"""Threads that compute: neither an interruption nor the end of an interrupted process waits for them."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import weakref
from collections.abc import Callable
from concurrent.futures import Future, wait
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, TypeVar, final

T = TypeVar("T")

_Call = tuple[Future[Any], Callable[[], Any]]

_running: set[Future[Any]] = set()
_ending = False
_lock = Lock()


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
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._count, self._name = count, name
        self._started = 0

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Run a function as soon as a thread is free."""
        call: Future[T] = Future()
        self._calls.put((call, function))
        if self._started < self._count:
            self._started += 1
            Thread(target=_work, args=(self._calls,), name=self._name, daemon=True).start()
        return call

    def close(self, *, cancel: bool = True) -> None:
        """Take no more calls, and cancel those that have not begun. Does not wait for the others."""
        while cancel and not self._calls.empty():
            call = self._calls.get()
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


def _work(calls: SimpleQueue[_Call | None]) -> None:
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


@atexit.register
def _leave() -> None:
    """Before Python ends: a thread that comes back from a compiled program after that would crash the process."""
    global _ending
    with _lock:
        _ending = True
        running = set(_running)
    if not running:
        return
    if getattr(sys, "last_type", None) is not KeyboardInterrupt:
        wait(running)
        return
    weakref.finalize._exitfunc()  # type: ignore[attr-defined]  # removes temporary folders
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
