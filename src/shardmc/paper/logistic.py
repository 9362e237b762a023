"""Example 2, Table 2: Bayesian logistic regression on synthetic rows and on Covertype."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shardmc.combiners.distance import gaussian_kl, marginal_l2, mean_distance
from shardmc.combiners.recenter import Recenter
from shardmc.errors import DataError
from shardmc.model import Model
from shardmc.paper.comparison import (
    OURS,
    TABLE_2,
    LocatedShards,
    MethodComparison,
    combined_draws,
    default_draws,
    default_is_closest,
    distance_table,
    ranking_table,
    record,
    rivals,
)
from shardmc.paper.result import Call, Claim, Reproduction, Table, prose, scientific
from shardmc.types import Mode, Params

if TYPE_CHECKING:
    import jax

_ATTRIBUTES = 3
_FILE = "covtype.npz"


@dataclass(frozen=True)
class Covertype:
    """Elevation, aspect and slope, and whether the cover type is the second one."""

    attributes: np.ndarray  # (row, 3)
    response: np.ndarray  # (row,) 0 or 1

    def rows(self, count: int, seed: int) -> dict[str, np.ndarray]:
        """`count` random rows, or all if there are fewer: an intercept, the standardised attributes, and y."""
        chosen = np.random.default_rng([seed, 9]).permutation(len(self.response))[:count]
        x = self.attributes[chosen].astype(np.float64)
        x = (x - x.mean(axis=0)) / x.std(axis=0)
        design = np.concatenate([np.ones((len(x), 1)), x], axis=1)
        return {"x": design.astype(np.float32), "y": self.response[chosen].astype(np.float32)}


def load_covertype(path: str | None = None) -> Covertype | None:
    """The data set from a file, or from its usual places; None if it is not found.

    Parameters
    ----------
    path
        An .npz file with the arrays `X10` (or `X`) and `cover_type` (or `y`), or UCI's `covtype.data`, also as `.gz`.
        Without it: `covtype.npz` in the folder named by SHARDMC_DATA, then in ../shared/data, then scikit-learn's
        `fetch_covtype`.
    """
    if path is not None:
        return _read(Path(path))
    folders = [os.environ.get("SHARDMC_DATA"), os.path.join(os.pardir, "shared", "data")]
    for folder in filter(None, folders):
        file = Path(folder)
        file = file / _FILE if file.is_dir() else file
        if file.is_file():
            return _read(file)
    return _fetch()


def _read(path: Path) -> Covertype:
    if not path.is_file():
        raise DataError(f"There is no file {path}. Give covtype.npz or UCI's covtype.data.")
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                x = arrays["X10" if "X10" in arrays else "X"]
                y = arrays["cover_type" if "cover_type" in arrays else "y"]
        else:
            table = np.loadtxt(path, delimiter=",", dtype=np.int32)
            x, y = table[:, :-1], table[:, -1]
    except (KeyError, ValueError, OSError, IndexError) as error:
        raise DataError(
            f"{path} does not hold the Covertype data ({error}). It must be an .npz file with X10 and cover_type, or "
            "UCI's covtype.data."
        ) from None
    return Covertype(np.asarray(x[:, :_ATTRIBUTES]), np.asarray(y) == 2)


def _fetch() -> Covertype | None:
    try:
        from sklearn.datasets import fetch_covtype  # pyright: ignore[reportMissingImports]

        x, y = fetch_covtype(return_X_y=True)
    except (ImportError, OSError):
        return None  # no scikit-learn, or no network
    return Covertype(np.asarray(x[:, :_ATTRIBUTES]), np.asarray(y) == 2)


_BLOCK = 50_000


def newton_from(x: np.ndarray, y: np.ndarray, prior_sd: float, start: np.ndarray, steps: int) -> np.ndarray:
    """Iterates (step + 1, dim) for the mode of a logistic regression with independent N(0, prior_sd^2) priors.

    >>> x, y = np.array([[1.0], [1.0], [1.0]]), np.array([1.0, 1.0, 0.0])
    >>> newton_from(x, y, 1e6, np.zeros(1), 5)[-1].round(6)
    array([0.693147])
    """
    theta = np.asarray(start, dtype=np.float64)
    found = [theta]
    for _ in range(steps):
        gradient, curvature = -theta / prior_sd**2, np.eye(len(theta)) / prior_sd**2
        for first in range(0, len(y), _BLOCK):
            rows = x[first : first + _BLOCK].astype(np.float64)
            probability = 1 / (1 + np.exp(-rows @ theta))
            gradient = gradient + rows.T @ (y[first : first + _BLOCK] - probability)
            curvature = curvature + (rows.T * (probability * (1 - probability))) @ rows
        theta = theta + np.linalg.solve(curvature, gradient)
        found.append(theta)
    return np.stack(found)


TRUE = (0.3, 5.0, -7.0, 2.4, -20.0)
PRIOR_SD = 10.0
NEWTON_STEPS = 5
PLAIN = "AR without Newton"

Rows = dict[str, np.ndarray]
_DISTANCES: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "l2": marginal_l2,
    "kl": gaussian_kl,
    "mean": mean_distance,
}


@cache
def model(dim: int) -> Model:
    """Logistic regression with independent N(0, 10^2) priors. The paper gives no prior."""
    import jax
    import jax.numpy as jnp

    def log_likelihood(params: Params, rows: dict[str, jax.Array]) -> jax.Array:
        return -jax.nn.softplus((1 - 2 * rows["y"]) * (rows["x"] @ params["theta"]))

    def log_prior(params: Params) -> jax.Array:
        return -0.5 * jnp.sum(params["theta"] ** 2) / PRIOR_SD**2

    return Model(log_likelihood, log_prior, {"theta": dim})


def synthetic(num_rows: int, seed: Sequence[int]) -> Rows:
    """x_1 = 1, the other four uniform on (0, 1)."""
    rng = np.random.default_rng([*seed, 8])
    x = np.concatenate([np.ones((num_rows, 1)), rng.random((num_rows, 4))], axis=1)
    y = rng.random(num_rows) < 1 / (1 + np.exp(-x @ np.array(TRUE)))
    return {"x": x.astype(np.float32), "y": y.astype(np.float32)}


@dataclass(frozen=True)
class _Job:
    """One source of rows: its data sets (or one that is split repeatedly), and numbers of shards and draws."""

    source: str
    shards: tuple[int, ...]
    sets: tuple[Rows, ...]
    repeats: int  # of each data set
    reference: int  # draws on all rows
    output: int  # draws of every method
    rescaled: int  # of every shard, for the methods that pool them

    @property
    def steps(self) -> int:
        return len(self.sets) * self.repeats * len(self.shards)


@dataclass(frozen=True)
class _Reference:
    """Draws by the default sampler on all rows, further sets of draws to measure the noise, and the mode."""

    draws: np.ndarray
    noise: list[np.ndarray]
    mode: Mode

    @staticmethod
    def of(rows: Rows, job: _Job, seed: int) -> _Reference:
        whole = LocatedShards.of(model(rows["x"].shape[1]), rows, 1, seed)
        values = whole.draws("rescaled", job.reference + _NOISE_SETS * job.output, seed).values[0]
        further = values[job.reference : job.reference + _NOISE_SETS * job.output]
        return _Reference(values[: job.reference], np.split(further, _NOISE_SETS), whole.located.mode)


@dataclass
class _Cell:
    """Distances found so far for one source and number of shards."""

    distances: dict[str, dict[str, list[float]]]  # distance -> method -> one value per data set
    noise: dict[str, list[float]]  # distance -> values
    newton: list[np.ndarray]  # each (step + 1,), error of AR's centre in posterior standard deviations


_NOISE_SETS = 2


def table_2(call: Call) -> Reproduction:
    """Distances from a long run on all rows, for synthetic data sets and for partitions of Covertype."""
    covertype = load_covertype(call.covtype)
    cells = _Cells(call, _jobs(call, covertype))
    return Reproduction(
        "table-2",
        "Example 2, Table 2: Bayesian logistic regression",
        (*prose("table-2"), *([] if covertype is not None else [_MISSING])),
        cells.tables(),
        claims=cells.claims(),
        numbers=cells.numbers(),
    )


_MISSING = (
    "Covertype is left out, because its file was not found. Give the file with --covtype, set SHARDMC_DATA to the "
    "folder of covtype.npz, or install scikit-learn, which downloads it."
)


def _jobs(call: Call, covertype: Covertype | None) -> list[_Job]:
    draws = {
        "reference": call.choose(40_000, 4_000),
        "output": call.choose(10_000, 1_000),
        "rescaled": call.choose(2_000, 1_000),
    }
    count, num_rows = call.choose(10, 2), call.choose(100_000, 50_000)
    sets = tuple(synthetic(num_rows, (call.seed, number)) for number in range(count))
    jobs = [_Job("synthetic", call.choose((50, 100), (50,)), sets, 1, **draws)]
    if covertype is not None:
        rows = covertype.rows(call.choose(500_000, 50_000), call.seed)
        jobs.append(_Job("Covertype", call.choose((100, 500), (100,)), (rows,), call.choose(5, 2), **draws))
    return jobs


class _Cells:
    """The cells of the table. The constructor computes them."""

    def __init__(self, call: Call, jobs: list[_Job]) -> None:
        self.cells: dict[tuple[str, int], _Cell] = {}
        done, total = 0, sum(job.steps for job in jobs)
        for job in jobs:
            for number, rows in enumerate(job.sets):
                reference = _Reference.of(rows, job, call.seed + number)
                for repeat in range(job.repeats):
                    for num_shards in job.shards:
                        call.tell(done, total)
                        self._add(job, num_shards, rows, reference, call.seed + number + repeat)
                        done += 1
        call.tell(total, total)

    def _add(self, job: _Job, num_shards: int, rows: Rows, reference: _Reference, seed: int) -> None:
        draws, newton = _methods(rows, num_shards, reference.mode, job, seed)
        empty = _Cell(
            {name: {m: [] for m in draws} for name in _DISTANCES}, {name: [] for name in _DISTANCES}, []
        )
        cell = self.cells.setdefault((job.source, num_shards), empty)
        for name, measure in _DISTANCES.items():
            for method, values in draws.items():
                cell.distances[name][method].append(measure(values, reference.draws))
            cell.noise[name] += [measure(values, reference.draws) for values in reference.noise]
        cell.newton.append(newton)

    def comparisons(self, distance: str, printed: bool = False) -> list[MethodComparison]:
        return [
            MethodComparison(
                f"{source}, K = {num_shards}",
                {method: np.array(values) for method, values in cell.distances[distance].items()},
                np.array(cell.noise[distance]),
                TABLE_2[source, num_shards] if printed else {},
            )
            for (source, num_shards), cell in self.cells.items()
        ]

    def tables(self) -> tuple[Table, ...]:
        l2 = self.comparisons("l2", printed=True)
        spread = "mean ± sd over data sets (synthetic) or partitions (Covertype)"
        return (
            distance_table(f"Mean L2 distance of the marginal densities, standardised, {spread}", l2),
            ranking_table("Order of the methods", l2),
            distance_table(
                f"Gaussian KL divergence of mean and covariance, {spread}", self.comparisons("kl")
            ),
            distance_table(
                f"Error of the mean in posterior standard deviations, {spread}", self.comparisons("mean")
            ),
            self._newton_table(),
        )

    def _newton_table(self) -> Table:
        rows = tuple(
            (f"{source}, K = {num_shards}", *(scientific(float(v)) for v in np.mean(cell.newton, axis=0)))
            for (source, num_shards), cell in self.cells.items()
        )
        title = "Distance of AR's centre from the mode of all rows, in posterior standard deviations"
        columns = ("", *(f"{i} step{'s' * (i != 1)}" for i in range(NEWTON_STEPS + 1)))
        return Table(
            title, columns, rows, "Step 0 is the centre of Algorithm 1, the mean of the shards' means."
        )

    def claims(self) -> tuple[Claim, ...]:
        l2 = self.comparisons("l2")
        newton = all(cell.order(["CMC", "AR", "WS", "MP"])[0] == "AR" for cell in l2)
        return (
            default_is_closest(l2, "Example 2, L2"),
            default_is_closest(self.comparisons("kl"), "Example 2, KL"),
            Claim(
                "AR with Newton's centre is closer than CMC, WS and MP at every K, as the paper claims.",
                newton,
            ),
        )

    def numbers(self) -> dict[str, object]:
        return {name: record(self.comparisons(name, printed=name == "l2")) for name in _DISTANCES}


def _methods(
    rows: Rows, num_shards: int, mode: Mode, job: _Job, seed: int
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Draws of every method, and the distance from the mode after each Newton step."""
    rng = np.random.default_rng([seed, num_shards])
    shards = LocatedShards.of(model(rows["x"].shape[1]), rows, num_shards, seed)
    rescaled = shards.draws("rescaled", job.rescaled, seed)
    fractional = shards.draws("fractional", job.output, seed)
    center = rescaled.shares @ rescaled.means
    path = newton_from(rows["x"], rows["y"], PRIOR_SD, center, NEWTON_STEPS)
    recentred = Recenter(tuple(path[-1]), "none", small_sample=False)
    methods = {**rivals(), "AR": recentred, PLAIN: Recenter.algorithm_1()}
    draws = {
        name: combined_draws(method, rescaled, fractional, job.output, rng)
        for name, method in methods.items()
    }
    draws[OURS] = default_draws(shards.model, rows, num_shards, job.output, seed)
    whitened = (path - mode.theta) @ np.linalg.cholesky(mode.curvature)
    return draws, np.linalg.norm(whitened, axis=1)
