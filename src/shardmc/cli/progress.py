"""Progress bars for the stages of a run."""

from __future__ import annotations

from types import TracebackType

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)


class StageBars:
    """One bar per stage, as `fit(progress=...)` reports them; use it as a context manager."""

    def __init__(self, title: str = "") -> None:
        self._title = title
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description:<24}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> StageBars:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def __call__(self, stage: str, done: int, total: int) -> None:
        name = f"{self._title}{stage}"
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=total)
        task = self._tasks[name]
        known = self._progress.tasks[self._progress.task_ids.index(task)].total or 0
        # A stage that counts its shards ends with the plain "1 of 1" that every stage reports.
        if total >= known:
            self._progress.update(task, total=total, completed=done)
        elif done == total:
            self._progress.update(task, completed=known)
