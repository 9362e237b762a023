"""A PyMC model as a shardmc model: `from_pymc`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeGuard, final

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.errors import ModelError
from shardmc.model.model import Model, Recipe
from shardmc.model.user_functions import (
    TwoSamples,
    calling,
    missing,
    num_rows,
    row_axis,
    structure_key,
    sum_to_rows,
    two_samples,
)
from shardmc.types import Params, Rows

if TYPE_CHECKING:
    import pymc

    from shardmc.model.pymc.graph import Parts


def from_pymc(model: pymc.Model, rows: Sequence[str] = ()) -> PyMCModel:
    """Use a PyMC model, unchanged, as a model for shardmc.

    Free variables become the parameters, with PyMC's own transforms. Observed variables and potentials that depend on
    the rows become the log-likelihood. Everything else that has a density becomes the prior. Deterministics that do
    not depend on the rows are reported with the parameters; the others are left out. The model's dims and coords are
    those of `posterior.tree`.

    Parameters
    ----------
    model : pymc.Model
        Its columns of data, including the observations, must be `pm.Data`. Their contents are not read when you fit
        the model to other rows. Every other `pm.Data` keeps its present value.
    rows : list of str
        Names of the `pm.Data` with one value (or vector) per row. Give `shardmc.fit` a dict or table with these
        columns, arrays in this order, or the model's own data: `recipe.data`.

    Examples
    --------
    >>> import pymc as pm
    >>> with pm.Model() as regression:
    ...     x, y = pm.Data("x", np.eye(6)[:, :2]), pm.Data("y", np.ones(6))
    ...     beta = pm.Normal("beta", 0, 10, shape=2)
    ...     sigma = pm.HalfNormal("sigma", 1)
    ...     _ = pm.Normal("response", x @ beta, sigma, observed=y)
    >>> recipe = from_pymc(regression, rows=["x", "y"])
    >>> recipe.bind(recipe.data).names
    ['beta[0]', 'beta[1]', 'sigma']
    """
    try:
        import pymc
    except ImportError:
        raise ModelError("from_pymc needs PyMC: pip install 'shardmc[pymc]'.") from None
    from shardmc.model.pymc.graph import take_apart

    if not isinstance(model, pymc.Model):
        raise ModelError(f"from_pymc takes a pymc.Model; {type(model).__name__} was given.")
    return PyMCModel(take_apart(model, [rows] if isinstance(rows, str) else list(rows)))


def is_pymc_model(given: object) -> TypeGuard[pymc.Model]:
    """Whether something is a pymc.Model; PyMC is not imported for that."""
    return any(kind.__module__.startswith("pymc.") for kind in type(given).__mro__) and hasattr(
        given, "free_RVs"
    )


def call_to_write(model: pymc.Model) -> str:
    """The call of `from_pymc` for a PyMC model: its rows are the longest of its pm.Data."""
    known = {data.name: data.get_value() for data in model.data_vars if hasattr(data, "get_value")}
    lengths = {name: len(values) for name, values in known.items() if np.ndim(values)}
    rows = [name for name, length in lengths.items() if length == max(lengths.values())]
    listed = ", ".join(f'"{name}"' for name in rows or ["x", "y"])
    return f"shardmc.from_pymc(model, rows=[{listed}])"


@final
class PyMCModel(Recipe):
    """A PyMC model that becomes a Model once it sees rows; made by `from_pymc`."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._columns = _Columns({name: values.dtype.kind for name, values in parts.columns.items()})
        self._bound: dict[Hashable, Model] = {}

    @property
    def data(self) -> dict[str, np.ndarray]:
        """The rows that the PyMC model holds itself."""
        return dict(self._parts.columns)

    def bind(self, rows: Rows) -> Model:
        """The model for rows of this structure. A sample of rows shows what each row contributes."""
        chosen = self._columns.select(rows)
        key = jax.tree.structure(rows), structure_key(chosen)
        if key not in self._bound:
            self._bound[key] = self._model(two_samples(chosen))
        return self._bound[key]

    def columns_used(self, rows: Mapping[str, Rows]) -> list[str]:
        """The columns that the model reads, in the table's order."""
        self._columns.select(dict(rows))
        return [name for name in rows if name in self._parts.columns]

    def _model(self, samples: TwoSamples) -> Model:
        parts = self._parts
        functions = _Functions(parts, self._columns, self._row_axes(samples))
        model = Model(
            functions.log_likelihood,
            functions.log_prior,
            parts.parameters,
            derived=functions.derived if parts.derived else None,
            initial=parts.initial,
        )
        model.variables = parts.variables
        return model

    def _row_axes(self, samples: TwoSamples) -> tuple[int, ...]:
        """For each term that depends on the rows, the axis of its log density that stands for the rows."""
        from shardmc.model.pymc.graph import refuse_one_value_per_row

        parts, both = self._parts, (samples.first, samples.second)
        lengths = (num_rows(samples.first), num_rows(samples.second))
        values = [parts.initial[name] for name in parts.parameters]
        try:
            with calling("The PyMC model"):
                shapes = [
                    [term.shape for term in jax.eval_shape(parts.rows, *values, *self._columns.arrays(rows))]
                    for rows in both
                ]
        except ModelError:
            refuse_one_value_per_row(parts.initial, parts.columns)
            raise
        axes = []
        for what, first, second in zip(parts.terms, *shapes, strict=True):
            axis = row_axis(what, first, second, lengths)
            if axis is None:
                raise ModelError(
                    f"The log density of {what} is one number for all rows: it must have one value per row, "
                    "without the sum."
                )
            axes.append(axis)
        return tuple(axes)


@dataclass(frozen=True)
class _Columns:
    """The columns in the model's order, from rows of any structure."""

    kinds: dict[str, str]  # name -> kind of NumPy type in the model

    def select(self, rows: Rows) -> dict[str, Rows]:
        names = list(self.kinds)
        if isinstance(rows, Mapping):
            for name in names:
                if name not in rows:
                    raise ModelError(missing("The PyMC model", "column", name, list(rows)))
            return {name: rows[name] for name in names}
        columns = tuple(rows) if isinstance(rows, tuple | list) else (rows,)
        if len(columns) != len(names):
            raise ModelError(
                f"The PyMC model reads {len(names)} arrays of rows ({', '.join(names)}); {len(columns)} were given."
            )
        return dict(zip(names, columns, strict=True))

    def arrays(self, rows: Rows) -> list[jax.Array]:
        """Columns in the types of the model; an index of an array must be whole numbers."""
        types = {"f": jnp.result_type(float), "i": jnp.result_type(int), "u": jnp.result_type(int)}
        return [
            jnp.asarray(column, types.get(self.kinds[name])) for name, column in self.select(rows).items()
        ]


@dataclass(frozen=True, eq=False)
class _Functions:
    """The densities of a PyMC model as functions of natural parameters and rows."""

    parts: Parts
    columns: _Columns
    row_axes: tuple[int, ...]

    def log_likelihood(self, params: Params, rows: Rows) -> jax.Array:
        terms = self.parts.rows(*self._values(params), *self.columns.arrays(rows))
        per_row = [sum_to_rows(term, axis) for term, axis in zip(terms, self.row_axes, strict=True)]
        return sum(per_row[1:], start=per_row[0])

    def log_prior(self, params: Params) -> jax.Array:
        return sum(map(jnp.sum, self.parts.prior(*self._values(params))), start=jnp.zeros(()))

    def derived(self, params: Params) -> dict[str, jax.Array]:
        return dict(zip(self.parts.derived, self.parts.deterministics(*self._values(params)), strict=True))

    def _values(self, params: Params) -> list[jax.Array]:
        return [params[name] for name in self.parts.parameters]
