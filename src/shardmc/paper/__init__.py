"""The paper's results by name, recomputed: `shardmc reproduce NAME`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from datetime import date
from importlib import import_module
from pathlib import Path

from shardmc.errors import OptionError, unknown
from shardmc.paper.result import ORDER, Call, Provenance, Reproduction, write_index, write_result
from shardmc.store.records import package_versions
from shardmc.types import Progress

_MODULES = {
    "table-1": "gaussian",
    "table-2": "logistic",
    "table-3": "beta_bernoulli",
    "figure-1": "beta_bernoulli",
    "figure-2": "mixture",
    "theorem-1": "convergence",
    "remark-2": "convergence",
    "nonparametric": "nonparametric",
}
"""Where each result is computed, by a function of the same name with underscores."""

NAMES = (*ORDER, "all")
"""What can be reproduced."""


def reproduce(
    name: str,
    out: str | Path,
    quick: bool = False,
    covtype: str | Path | None = None,
    progress: Progress | None = None,
    seed: int = 0,
) -> list[Path]:
    """Recompute a result of the paper and write it next to the paper's values.

    Parameters
    ----------
    name
        One of `NAMES`; "all" for every one.
    out
        The folder for Markdown, JSON, figures and `index.html`, which shows all results in the folder.
    quick
        A smaller version: fewer rows, draws and data sets.
    covtype
        The Covertype data for table-2: an .npz file, or UCI's covtype.data. Without it, the file `covtype.npz` in the
        folder SHARDMC_DATA or in ../shared/data is used, and otherwise scikit-learn's `fetch_covtype`.
    progress
        Called as progress(name of the result, done, total).
    seed
        Seed of all random numbers.

    Returns
    -------
    The files that were written, the index last.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.name for path in reproduce("remark-2", folder, quick=True)]
    ['remark-2.md', 'remark-2.json', 'remark-2.png', 'remark-2.svg', 'index.html']
    """
    if name not in NAMES:
        raise unknown("result", name, NAMES)
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise OptionError(f"seed must be a whole number that is not negative, not {seed!r}.")
    out = Path(out)
    written: list[Path] = []
    for chosen in ORDER if name == "all" else (name,):
        start, cpu = time.perf_counter(), time.process_time()
        result = recompute(chosen, Call(quick, seed, None if covtype is None else str(covtype)), progress)
        origin = provenance(quick, seed, time.perf_counter() - start, time.process_time() - cpu)
        written += write_result(result, out, origin)
    return [*written, write_index(out)]


def recompute(name: str, call: Call, progress: Progress | None = None) -> Reproduction:
    """Recompute one result without writing it."""

    def tell(done: int, total: int) -> None:
        if progress is not None:
            progress(name, done, total)

    module = import_module(f"shardmc.paper.{_MODULES[name]}")
    function: Callable[[Call], Reproduction] = getattr(module, name.replace("-", "_"))
    return function(Call(call.quick, call.seed, call.covtype, tell))


def provenance(quick: bool, seed: int, seconds: float, cpu_seconds: float) -> Provenance:
    """When, how and with which versions a result was recomputed, in how much wall and CPU time."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "date": date.today().isoformat(),
        "quick": quick,
        "seed": seed,
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu_seconds, 1),
        "cores": cores,
        "peak_memory_gb": _peak_memory(),
        "versions": package_versions(),
    }


def _peak_memory() -> float | None:
    """The largest memory use of this process so far, in GB; None if the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9, 2)
