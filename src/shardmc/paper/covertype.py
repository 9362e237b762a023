"""The Covertype rows of Example 2, from a file or through scikit-learn."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shardmc.errors import DataError

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
