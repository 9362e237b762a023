"""How long each stage of a run took, how often it read all rows, and who is told about it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from shardmc.types import Progress

P = ParamSpec("P")
R = TypeVar("R")


class Clock:
    """Calls the verbs of a run one by one and keeps the book: `clock("locate", locate, model, ...)`."""

    def __init__(self, progress: Progress | None = None) -> None:
        self._progress = progress
        self.seconds: dict[str, float] = {}
        self.passes: dict[str, float] = {}

    def __call__(self, stage: str, verb: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        self._tell(stage, 0, 1)
        start = time.perf_counter()
        result = verb(*args, **kwargs)
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start
        passes = getattr(result, "passes", None)
        if passes is not None:
            self.passes[stage] = self.passes.get(stage, 0.0) + passes
        self._tell(stage, 1, 1)
        return result

    def counter(self, stage: str, total: int) -> Callable[[object], None]:
        """A function that a verb calls after each of `total` steps."""
        done = 0

        def advance(_: object) -> None:
            nonlocal done
            done += 1
            self._tell(stage, min(done, total), total)

        return advance

    def _tell(self, stage: str, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(stage, done, total)
