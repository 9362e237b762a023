"""A point near the mode, and the posterior's scale there, from few rows."""

from __future__ import annotations

import numpy as np

from shardmc.data.batch import Blocks
from shardmc.locate.newton import _climb, _Evaluator, _samples_of_shards
from shardmc.model import Model
from shardmc.model.precision import double_precision
from shardmc.types import Engine, Frame

_NEAR = 1.0
"""Posterior standard deviations off the sample's mode that are near enough."""


def near_mode(model: Model, blocks: Blocks, engine: Engine) -> Frame | None:
    """A point near the mode with the full posterior's scale around it, or None where no mode is found.

    A sample of the shards stands for all rows, and all shards only where there are few. Where rounding keeps the search
    from its end in the caller's precision, it is repeated in double precision.
    """
    start = np.asarray(model.initial, np.float64) + 1e-3 * np.random.default_rng(0).normal(size=model.dim)
    frame = _search(model, blocks, engine, start)
    if frame is None:
        with double_precision():
            frame = _search(model, blocks, engine, start)
    return frame


def _search(model: Model, blocks: Blocks, engine: Engine, start: np.ndarray) -> Frame | None:
    evaluate = _Evaluator(model, blocks, engine)
    frame = Frame(start, np.eye(model.dim))
    for some in (*list(_samples_of_shards(blocks, model.dim))[:1], None):
        frame, mode = _climb(evaluate, frame, some, model, None, tolerance=_NEAR, may_fail=True)
        if mode is not None:
            return frame
    return None
