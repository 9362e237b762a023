"""Progress bars in a terminal or a notebook: one for each stage, and how long it will take."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

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

from shardmc.names import shown_text
from shardmc.pipeline.progress import duration, seconds_left

__all__ = ["Bars", "Console", "NotebookBars"]

_IN_NOTEBOOK = 1.0
"""Seconds between two pictures of the bars in a notebook."""


class TimeLeft(ProgressColumn):
    """About how long a stage will still take, from the time that its finished part took."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        seconds = seconds_left(task.completed, task.total or 0, task.fields["since"], task.get_time())
        return Text("" if seconds is None else f"about {duration(seconds)} left")


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
            TimeLeft(),
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
