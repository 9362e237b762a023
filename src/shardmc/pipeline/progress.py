"""What a run shows while it works: a bar for each stage, on stderr or in a notebook, and how long it will take."""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, cast

from rich.console import Console
from rich.progress import (
    BarColumn,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import Progress as RichProgress
from rich.text import Text

from shardmc.errors import OptionError
from shardmc.names import shown_text
from shardmc.types import Progress

P = ParamSpec("P")
R = TypeVar("R")

_IN_NOTEBOOK = 1.0
"""Seconds between two pictures of the bars in a notebook."""

_shown = threading.Lock()
"""Held while bars are on the screen: a fit inside another function that shows some does not add its own."""


def shows_progress(function: Callable[P, R]) -> Callable[P, R]:
    """A function whose `progress` may be True, False, a function, or None for the default.

    Inside, `progress` is a function or None. Bars are taken from the screen when it returns or fails.
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        options = cast("dict[str, Any]", kwargs)
        with reporting(options.pop("progress", None)) as report:
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
    if progress is False:
        return None
    console = Console(stderr=True)
    if console.is_jupyter:
        return NotebookBars(console, title)
    # Rich takes FORCE_COLOR for a terminal, which log files of servers often have.
    if console.is_interactive and sys.stderr.isatty():
        return Bars(console, title)
    return Lines(title) if progress else None


class Left(ProgressColumn):
    """About how long a stage will still take, from the time that its finished part took."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        seconds = seconds_left(task.completed, task.total or 0, task.fields["since"], task.get_time())
        return Text("" if seconds is None else f"about {_in_words(seconds)} left")


def seconds_left(done: float, total: float, since: tuple[float, float], now: float) -> float | None:
    """The rest of a stage that began at since[0] and was last heard of at since[1]; None if that is not known.

    >>> seconds_left(1, 5, (0.0, 10.0), 10.0), seconds_left(1, 5, (0.0, 10.0), 22.0), seconds_left(0, 5, (0, 0), 9.0)
    (40.0, 28.0, None)
    """
    if not 0 < done < total:
        return None
    start, heard = since
    return max((heard - start) * (total - done) / done - (now - heard), 0.0)


def _in_words(seconds: float) -> str:
    """Time as people say it.

    >>> _in_words(12.4), _in_words(250), _in_words(8000)
    ('12 s', '4 min', '2 h 13 min')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


class Bars:
    """One bar for each stage in a terminal. They disappear at the end."""

    def __init__(self, console: Console, title: str = "") -> None:
        self._title = title
        self._tasks: dict[str, TaskID] = {}
        self.bars = RichProgress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[count]}", justify="right"),
            TimeElapsedColumn(),
            Left(),
            console=console,
            transient=True,
            # What the user prints stays on stdout.
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bars.stop()

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = self.bars.get_time()
        task = self._task(stage, total, now)
        known = int(task.total or 0)
        if total < known:  # a stage that counts its shards ends with the "1 of 1" that every stage reports
            done, total = (known, known) if done == total else (int(task.completed), known)
        self.bars.update(
            task.id,
            total=total,
            completed=done,
            count=f"{done:,}/{total:,}" if total > 1 else "",
            since=(task.fields["since"][0], now),
        )

    def _task(self, stage: str, total: int, now: float) -> Task:
        if stage not in self._tasks:
            label = shown_text(f"{self._title}{stage}")
            self._tasks[stage] = self.bars.add_task(label, total=total, count="", since=(now, now))
        return self.bars.tasks[self.bars.task_ids.index(self._tasks[stage])]


class NotebookBars(Bars):
    """The same bars in the output of a notebook's cell. They need no widgets, and leave its other output alone."""

    def __enter__(self) -> Self:
        from IPython.display import display  # type: ignore[import-not-found]

        self._over = threading.Event()
        self._handle = display(self.bars, display_id=True)
        self._clock = threading.Thread(target=self._tick, name="shardmc-progress", daemon=True)
        self._clock.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._clock.join()
        self._handle.update({"text/plain": ""}, raw=True)

    def _tick(self) -> None:
        while not self._over.wait(_IN_NOTEBOOK):
            self._handle.update(self.bars)


class Lines:
    """A line on stderr when a stage begins, and one when it ends, for log files."""

    def __init__(self, title: str = "") -> None:
        self._title = title
        self._began: dict[str, float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        if stage not in self._began:
            self._began[stage] = now
            self._say(f"{stage} ...")
            return
        took = now - self._began[stage]
        if done == total:
            self._say(f"{stage}: done after {_in_words(took)}.")
        elif done * 4 // total > (done - 1) * 4 // total:
            left = seconds_left(done, total, (self._began[stage], now), now)
            self._say(
                f"{stage}: {done:,} of {total:,}" + (f", about {_in_words(left)} left." if left else ".")
            )

    def _say(self, text: str) -> None:
        print(shown_text(f"shardmc: {self._title}{text}"), file=sys.stderr, flush=True)
