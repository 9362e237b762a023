"""What `combine` returns: the combined draws under the names they came with."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shardmc.combine.layout import Layout
from shardmc.combine.read import RENAMED
from shardmc.errors import RunError
from shardmc.names import shown, stored

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr


@dataclass(frozen=True)
class CombinedDraws:
    """Draws of the full posterior, by name and as one array, and what the combiner has to say about them."""

    values: np.ndarray  # (draw, dim)
    layout: Layout
    shard: np.ndarray | None  # (draw,) the shard each draw came from, where that makes sense
    notes: tuple[str, ...]
    method: str

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        notes = "".join(f"\n  {note}" for note in self.notes)
        return f"<CombinedDraws by {self.method}: {len(self)} draws of {', '.join(map(shown, self.draws))}>{notes}"

    @property
    def names(self) -> tuple[str, ...]:
        """The name of every column of `values`."""
        return self.layout.names

    @cached_property
    def draws(self) -> dict[str, np.ndarray]:
        """Arrays (draw, ...) by name."""
        return self.layout.unflatten(self.values)

    @cached_property
    def tree(self) -> xr.DataTree:
        """The draws in ArviZ's layout: group `posterior`, and `sample_stats` with the shard of each draw."""
        import arviz_base

        groups = {"posterior": {stored(name): values[None] for name, values in self.draws.items()}}
        if self.shard is not None:
            groups["sample_stats"] = {"shard": self.shard[None]}
        tree = arviz_base.from_dict(groups)
        tree["posterior"].attrs.update(method=self.method, notes="\n".join(self.notes))
        renamed = {stored(name): name for name in self.draws if stored(name) != name}
        if renamed:
            tree["posterior"].attrs[RENAMED] = json.dumps(renamed)
        return tree

    def to_pandas(self) -> pd.DataFrame:
        """One row per draw, one column per coordinate."""
        import pandas as pd

        return pd.DataFrame(self.values, columns=list(self.names))

    def save(self, path: str | Path) -> Path:
        """Write the tree as a netCDF file, which `combine`, ArviZ and xarray can read."""
        path = Path(path)
        if not path.parent.is_dir():
            raise RunError(f"There is no folder {str(path.parent)!r} to write {path.name!r} into.")
        try:
            self.tree.to_netcdf(path, engine="h5netcdf")
        except OSError as error:
            raise RunError(f"{path} could not be written: {error.strerror or error}.") from error
        return path
