"""Austerity Metropolis-Hastings: accept or reject by t-tests on growing samples of the rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from scipy import special

from shardmc.field.method import check_range
from shardmc.field.metropolis import RowMetropolis, Widths


@final
@dataclass(frozen=True)
class Austerity(RowMetropolis):
    """Approximate Metropolis-Hastings by sequential t-tests (Korattikara, Chen and Welling 2014).

    After n rows the mean difference has the standard error s / sqrt(n) sqrt(1 - (n - 1) / (N - 1)). The test stops as
    soon as the probability of Student's t beyond the distance to the threshold is below `tolerance`; with all rows the
    decision is exact. The smaller the tolerance, the smaller the bias, and the more rows are read.

    The t-test takes the mean of a minibatch for normal. If a few rows matter much (rare events), it decides too early.

    Parameters
    ----------
    tolerance
        The authors' epsilon: the probability of a wrong decision, at one look, that is accepted.
    minibatch
        Rows that are read before each look.
    chains, warmup
        As for `SGLD`. Chains run one after another.
    thin
        Steps per draw. By default the number of parameters.
    scale
        Standard deviation of a step in posterior standard deviations. By default 2.38 / sqrt(dim).

    Examples
    --------
    >>> Austerity(tolerance=0.01).minibatch
    500
    """

    minibatch: int = 500
    tolerance: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "tolerance", 0.0, 0.5)

    def widths(self, num_rows: int, read: np.ndarray) -> Widths:
        unread = 1 - (read - 1) / max(num_rows - 1, 1)
        quantile = special.stdtrit(np.maximum(read - 1, 1), 1 - self.tolerance)
        return Widths.of(quantile * np.sqrt(unread / read), np.zeros(len(read)))
