"""What a run shows while it works: a bar for each stage, on stderr or in a notebook, and how long it will take."""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, ParamSpec, Self, TypeVar, cast

from shardmc.errors import OptionError
from shardmc.names import shown_text
from shardmc.types import Progress

if TYPE_CHECKING:
    from shardmc.pipeline.bars import Bars

P = ParamSpec("P")
R = TypeVar("R")

_shown = threading.Lock()
"""Held while bars are on the screen: a fit inside another function that shows some does not add its own."""


def shows_progress(function: Callable[P, R]) -> Callable[P, R]:
    """A function whose `progress` may be True, False, a function, or None for the default.

    Inside, `progress` is a function or None. Bars are taken from the screen when it returns or fails.
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        given = cast("Progress | bool | None", kwargs.pop("progress", None))
        with reporting(given) as report:
            return function(*args, **kwargs, progress=report)  # type: ignore[call-arg]

    return run


@contextmanager
def reporting(progress: Progress | bool | None, title: str = "") -> Iterator[Progress | None]:
    """What to call as (stage, done, total): the given function, bars, lines of text, or nothing.

    None shows bars where a person is looking: if stderr is a terminal, and in notebooks. True shows them there, and
    writes a line for each stage to stderr elsewhere, such as in a log file. Nothing is written to stdout.

    Examples
    --------
    >>> with reporting(None) as report:  # stderr is not a terminal here
    ...     print(report)
    None
    >>> with reporting("yes"):
    ...     pass
    Traceback (most recent call last):
    shardmc.errors.OptionError: progress must be True, False or a function of (stage, done, total), not 'yes'.
    """
    if callable(progress):
        yield progress
        return
    if progress is not None and not isinstance(progress, bool):
        raise OptionError(
            f"progress must be True, False or a function of (stage, done, total), not {progress!r}."
        )
    display = _display(progress, title)
    if display is None or not _shown.acquire(blocking=False):
        yield None
        return
    try:
        with display:
            yield display
    finally:
        _shown.release()


def _display(progress: bool | None, title: str) -> Bars | Lines | None:
    """What shows progress here, if anything does."""
    terminal = sys.stderr is not None and sys.stderr.isatty()
    if progress is False or (progress is None and not terminal and "IPython" not in sys.modules):
        return None
    from shardmc.pipeline.bars import (  # imported here because Rich is slow to import
        Bars,
        Console,
        NotebookBars,
    )

    console = Console(stderr=True)
    if console.is_jupyter:
        return NotebookBars(console, title)
    # Rich takes FORCE_COLOR for a terminal, which log files of servers often have.
    if console.is_interactive and terminal:
        return Bars(console, title)
    return Lines(title) if progress else None


def seconds_left(done: float, total: float, since: tuple[float, float], now: float) -> float | None:
    """The rest of a stage that began at since[0] and was last heard of at since[1]; None if that is not known.

    >>> seconds_left(1, 5, (0.0, 10.0), 10.0), seconds_left(1, 5, (0.0, 10.0), 22.0), seconds_left(0, 5, (0, 0), 9.0)
    (40.0, 28.0, None)
    """
    if not 0 < done < total:
        return None
    start, heard = since
    return max((heard - start) * (total - done) / done - (now - heard), 0.0)


def duration(seconds: float) -> str:
    """Time as people say it.

    >>> duration(12.4), duration(250), duration(8000)
    ('12 s', '4 min', '2 h 13 min')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


class Lines:
    """Lines on stderr for log files: when a stage begins, after each quarter of its steps, and when it ends."""

    def __init__(self, title: str = "") -> None:
        self._title = title
        self._began: dict[str, float | None] = {}  # None for a stage that has ended
        self._quarters: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __call__(self, stage: str, done: int, total: int) -> None:
        now, began = time.monotonic(), self._began.get(stage)
        if began is None:
            if stage in self._began and done == total:
                return  # a stage that counts its steps ends with the "1 of 1" that every stage reports
            self._began[stage], self._quarters[stage] = now, 0
            self._say(f"{stage} ...")
            return
        if done == total:
            self._began[stage] = None
            self._say(f"{stage}: done after {duration(now - began)}.")
        elif (quarter := 4 * done // total) > self._quarters[stage]:
            self._quarters[stage] = quarter
            left = seconds_left(done, total, (began, now), now)
            self._say(
                f"{stage}: {done:,} of {total:,}" + (f", about {duration(left)} left." if left else ".")
            )

    def _say(self, text: str) -> None:
        print(shown_text(f"shardmc: {self._title}{text}"), file=sys.stderr, flush=True)
