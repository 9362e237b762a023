"""The parts of a PyMC model: parameters, prior, the rows' log-likelihood, and deterministics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from shardmc.errors import DataError, ModelError, unknown
from shardmc.model.parameter import Parameter
from shardmc.model.pymc.translate import (
    PyMCBijection,
    PyMCSupport,
    Translated,
    Variable,
    roots,
    similar_constraint,
)
from shardmc.model.user_functions import calling
from shardmc.model.variables import Variable as NamedVariable
from shardmc.model.variables import as_labels, partly_named

if TYPE_CHECKING:
    import pymc

MARGINALISE = "Marginalise it (labels of a mixture: pm.Mixture), or write a Gibbs sampler"


@final
@dataclass(frozen=True, eq=False)
class Parts:
    """A PyMC model as functions of its natural parameters, in the order of `parameters`, and of rows."""

    parameters: dict[str, Parameter]
    initial: dict[str, np.ndarray]
    prior: Translated  # parameters -> log density of each part of the prior
    terms: tuple[str, ...]  # observed variables and potentials that depend on the rows, in words
    rows: Translated  # parameters, then columns -> log density of each of these terms
    derived: tuple[str, ...]
    deterministics: Translated  # parameters -> the derived quantities
    columns: dict[str, np.ndarray]
    """The rows that the model holds itself: name of a pm.Data -> its value."""
    variables: tuple[NamedVariable, ...]
    """Parameters and derived quantities with PyMC's dims and coords."""


def take_apart(model: pymc.Model, names: Sequence[str]) -> Parts:
    """Split a model into its prior and its likelihood: the graphs that depend on the rows' pm.Data."""
    columns = _columns(model, names)
    _refuse_variables(model)
    data = [model[name] for name in names]
    parameters, start = _parameters(model, data)
    _refuse_fixed_observations(model, data)
    graphs = _graphs(model)
    refuse_one_value_per_row({k: v for k, v in start.items() if _depends(graphs.priors[k], data)}, columns)
    _refuse_rows_in_prior(graphs, start, data, columns)
    of_rows = {what: graph for what, graph in graphs.terms.items() if _depends(graph, data)}
    if not of_rows:
        raise ModelError(
            f"No observed variable of the PyMC model depends on {_listed(names)}: name in rows= the pm.Data that hold "
            "one value per row."
        )
    _refuse_forgotten(model, names, columns, of_rows.values())
    others = [graph for what, graph in graphs.terms.items() if what not in of_rows]
    constant = {name: graph for name, graph in graphs.derived.items() if not _depends(graph, data)}
    # A prior may read the number of columns from the rows; two rows are enough for that.
    few = {variable: columns[variable.name][:2] for variable in data}
    return Parts(
        parameters=parameters,
        initial=start,
        prior=Translated(graphs.values, [*graphs.priors.values(), *others], few),
        terms=tuple(of_rows),
        rows=Translated([*graphs.values, *data], list(of_rows.values())),
        derived=tuple(constant),
        deterministics=Translated(graphs.values, list(constant.values())),
        columns=columns,
        variables=_with_dims(model, [*parameters, *constant]),
    )


def _with_dims(model: pymc.Model, names: Iterable[str]) -> tuple[NamedVariable, ...]:
    """Those of the named variables whose axes have names in the model."""
    found = []
    for name in names:
        if name in model.named_vars_to_dims:
            dims = partly_named(name, model.named_vars_to_dims[name])
            coords = {dim: as_labels(model.coords[dim]) for dim in dims if model.coords.get(dim) is not None}
            found.append(NamedVariable(name, dims, coords))
    return tuple(found)


@dataclass(frozen=True)
class _Graphs:
    """The graphs of a model, as functions of its free variables on the natural scale and of its data."""

    values: list[Variable]
    priors: dict[str, Variable]
    terms: dict[str, Variable]  # observed variables and potentials, in words
    derived: dict[str, Variable]


def _graphs(model: pymc.Model) -> _Graphs:
    from pymc.logprob import conditional_logp
    from pymc.logprob.utils import replace_rvs_by_values

    values = {rv: rv.type(rv.name) for rv in model.free_RVs}
    every = values | {rv: model.rvs_to_values[rv] for rv in model.observed_RVs}
    beside = [*model.potentials, *model.deterministics]
    with calling("The PyMC model"):
        densities = conditional_logp(every, warn_rvs=False)
        replaced = replace_rvs_by_values(beside, rvs_to_values=every) if beside else []
    potentials, derived = replaced[: len(model.potentials)], replaced[len(model.potentials) :]
    observed = {f"observed variable {rv.name!r}": densities[every[rv]] for rv in model.observed_RVs}
    return _Graphs(
        list(values.values()),
        {rv.name: densities[value] for rv, value in values.items()},
        observed | {f"potential {p.name!r}": g for p, g in zip(model.potentials, potentials, strict=True)},
        {d.name: graph for d, graph in zip(model.deterministics, derived, strict=True)},
    )


def _columns(model: pymc.Model, names: Sequence[str]) -> dict[str, np.ndarray]:
    """The values of the pm.Data that are rows."""
    known = {data.name: data for data in model.data_vars if hasattr(data, "get_value")}
    if not known:
        raise ModelError(
            "from_pymc needs the columns of the rows, observations included, as pm.Data, and this PyMC model has none: "
            'write pm.Data("y", y) in the model where it uses y.'
        )
    if not names:
        raise ModelError(
            f"rows= of from_pymc must name the pm.Data that hold one value per row. There are: {_listed(known)}."
        )
    for name in names:
        if name not in known:
            raise ModelError(str(unknown("pm.Data in rows= of from_pymc", name, known)))
    columns = {name: np.asarray(known[name].get_value()) for name in names}
    for name, values in columns.items():
        if values.ndim == 0:
            raise ModelError(
                f"pm.Data {name!r} is a single number, the same for all rows: leave it out of rows=."
            )
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{name!r} ({length})" for name, length in lengths.items())
        raise DataError(f"The pm.Data named in rows= differ in their number of rows: {said}.")
    return columns


def _refuse_variables(model: pymc.Model) -> None:
    """Refuse variables that shardmc cannot sample."""
    from pymc.variational.minibatch_rv import MinibatchRandomVariable

    if not model.free_RVs:
        raise ModelError("The PyMC model has no free variable, so there is nothing to infer.")
    # PyMC splits partly missing observations into three variables. A user's variable may have one of these names.
    observed = {rv.name for rv in model.observed_RVs}
    derived = {variable.name for variable in model.deterministics}
    for rv in model.free_RVs:
        whole = rv.name.removesuffix("_unobserved")
        if rv.name != whole and f"{whole}_observed" in observed and whole in derived:
            raise ModelError(
                f"Variable {rv.name!r} stands for missing observations, which shardmc does not impute: drop those rows."
            )
        if np.dtype(rv.dtype).kind in "iub":
            raise ModelError(f"Variable {rv.name!r} is discrete. {MARGINALISE}.")
    holders: dict[Variable, str] = {}
    for rv in model.observed_RVs:
        other = holders.setdefault(model.rvs_to_values[rv], rv.name)
        if other != rv.name:
            raise ModelError(
                f"Observed variables {other!r} and {rv.name!r} share their observations. Give each a pm.Data of "
                "its own, because PyMC tells observations apart by their pm.Data."
            )
        if isinstance(rv.owner.op, MinibatchRandomVariable):
            raise ModelError(
                f"Observed variable {rv.name!r} has total_size=, for minibatches: leave it out, shardmc weights the "
                "rows itself."
            )


def _refuse_rows_in_prior(
    graphs: _Graphs, start: dict[str, np.ndarray], data: Sequence[Variable], columns: dict[str, np.ndarray]
) -> None:
    """Refuse priors that change with the rows; to read only the number of columns is fine."""
    for name, density in graphs.priors.items():
        if not _depends(density, data):
            continue
        function = Translated([*graphs.values, *data], [density])
        whole, half = (
            np.asarray(function(*start.values(), *(column[::step] for column in columns.values()))[0])
            for step in (1, -2)
        )
        if not np.allclose(whole, half, rtol=1e-5):
            raise ModelError(
                f"The prior of variable {name!r} depends on the rows, so it would differ from shard to shard. Compute "
                "that number from all rows beforehand."
            )


def refuse_one_value_per_row(start: dict[str, np.ndarray], columns: dict[str, np.ndarray]) -> None:
    """Refuse variables that have as many values as the model has rows."""
    length = len(next(iter(columns.values())))
    for name, value in start.items():
        if length > 1 and length in value.shape:
            raise ModelError(
                f"Variable {name!r} has one value per row (shape {value.shape} for {length} rows), but shardmc samples "
                f"a fixed number of parameters. {MARGINALISE}."
            )


def _refuse_fixed_observations(model: pymc.Model, data: Sequence[Variable]) -> None:
    """Refuse observed variables that depend on the rows while their observations are not rows."""
    for rv in model.observed_RVs:
        observed = model.rvs_to_values[rv]
        if observed.ndim and not _depends(observed, data) and _depends(rv, data):
            own = f"pm.Data {observed.name!r}" if observed in model.data_vars else "an array of its own"
            raise ModelError(
                f"Observed variable {rv.name!r} depends on the rows, but its observations are {own}: make them a "
                "pm.Data that is named in rows= of from_pymc."
            )


def _refuse_forgotten(
    model: pymc.Model, names: Sequence[str], columns: dict[str, np.ndarray], terms: Iterable[Variable]
) -> None:
    """Refuse other pm.Data that the likelihood reads and that have one value per row too."""
    length = len(next(iter(columns.values())))
    for data in model.data_vars:
        if data.name in names or not hasattr(data, "get_value") or not np.ndim(data.get_value()):
            continue
        if length > 1 and len(data.get_value()) == length and any(_depends(term, [data]) for term in terms):
            every = ", ".join(repr(name) for name in (*names, data.name))
            raise ModelError(
                f"rows= of from_pymc leaves out {data.name!r}, which has {length} values, as many as there are rows: "
                f"write rows=[{every}]."
            )


def _parameters(
    model: pymc.Model, data: Sequence[Variable]
) -> tuple[dict[str, Parameter], dict[str, np.ndarray]]:
    """The free variables with their supports (PyMC's transforms), and PyMC's starting point."""
    from pytensor.configdefaults import config

    # Without a C compiler: compiling takes longer than it saves for one evaluation.
    with calling("The PyMC model"), config.change_flags(cxx=""):
        point = model.initial_point(random_seed=0)
    parameters, start = {}, {}
    for rv in model.free_RVs:
        value = np.asarray(point[model.rvs_to_values[rv].name], np.float64)
        if model.rvs_to_transforms[rv] is None:
            parameters[rv.name], start[rv.name] = Parameter(value.shape), value
            continue
        bijection = _bijection(model, rv, value.shape, data)
        start[rv.name] = np.asarray(bijection(value), np.float64)
        support = PyMCSupport(bijection, similar_constraint(model.rvs_to_transforms[rv]))
        parameters[rv.name] = Parameter(start[rv.name].shape, support)
    return parameters, start


def _bijection(
    model: pymc.Model, rv: Variable, shape: tuple[int, ...], data: Sequence[Variable]
) -> PyMCBijection:
    """PyMC's transform of a free variable whose unconstrained values have that shape."""
    from pytensor.tensor.random.type import RandomType

    transform, inputs = model.rvs_to_transforms[rv], rv.owner.inputs
    unconstrained, natural = model.rvs_to_values[rv].type("unconstrained"), rv.type("natural")
    with calling("The PyMC model"):
        back = [transform.backward(unconstrained, *inputs), transform.log_jac_det(unconstrained, *inputs)]
        forth = [transform.forward(natural, *inputs)]
    is_random = any(isinstance(variable.type, RandomType) for variable in roots(*back, *forth))
    if is_random or _depends(back[0], data):
        raise ModelError(
            f"The support of variable {rv.name!r} depends on another variable or on the rows: sample it on a fixed "
            "support, such as pm.Uniform(0, 1), and make what you need of it a pm.Deterministic."
        )
    return PyMCBijection(Translated([unconstrained], back), Translated([natural], forth), shape)


def _depends(graph: Variable, data: Sequence[Variable]) -> bool:
    return any(variable in roots(graph) for variable in data)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
