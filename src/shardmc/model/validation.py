"""Try a model on a few rows before anything expensive is compiled, and say what is wrong in one sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.errors import ModelError
from shardmc.model.effects import GroupEffects
from shardmc.model.model import Density, Model
from shardmc.model.parameter import refuse_alike
from shardmc.model.shared import joined, with_shared
from shardmc.model.user_functions import MissingEntry, TwoSamples, WatchedDict, calling, num_rows, two_samples
from shardmc.programs.compiled import RUNS_ONCE, CompiledFor
from shardmc.types import Params, Rows, Tree

STEPS = (0.0, 1e-3, 0.1)
"""Distances from the starting point at which rows are compared: data of any scale is finite at one of them."""


def validate(model: Model, rows: Rows) -> None:
    """Refuse a model that cannot be fitted, with a sentence that says why.

    The checks are, in this order: shapes (without compiling anything), values and gradient at the starting point,
    and whether a row's log-likelihood depends on other rows.

    Parameters
    ----------
    model : Model
    rows : pytree of NumPy arrays
        A small sample of the rows; 8 to 64 are enough.

    Raises
    ------
    ModelError

    Examples
    --------
    >>> model = Model(lambda params, rows: -jnp.sum((rows - params["mu"]) ** 2), None, {"mu": ()})
    >>> validate(model, np.zeros(8))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    shardmc.errors.ModelError: log_likelihood returns one number for all rows; it must return one per row: ...
    """
    samples = two_samples(rows)
    if model.effects is not None:
        model = _check_effects(model, model.effects, samples.first)
    _check_shapes(model, samples)
    _check_values(model, samples)


def _check_effects(model: Model, effects: GroupEffects, rows: Rows) -> Model:
    """Refuse effects that cannot be used. Returns the model with the effects at a typical size."""
    effects.check(model)
    read: set[str] = set()
    tried = model.at_typical_effects(read.add)
    with calling("log_likelihood"):
        jax.eval_shape(tried.log_likelihood_function, model.constrain(model.initial), rows)
    unread = [name for name in effects.names if name not in read]
    if unread:
        raise ModelError(
            f"log_likelihood does not read {_listed('effect', unread)}: add it to the linear predictor, as in "
            f'effects["{unread[0]}"], or leave it out of local.'
        )
    return model.at_typical_effects()


def _check_shapes(model: Model, samples: TwoSamples) -> None:
    params = jax.eval_shape(model.constrain, jax.ShapeDtypeStruct((model.dim,), jnp.result_type(float)))
    read: set[str] = set()
    tracked = True
    for rows in (samples.first, samples.second):
        with calling("log_likelihood"):
            shape, seen = _shape_of(model.log_likelihood_function, read.add, params, rows)
        tracked &= seen
        _check_row_shape(shape, num_rows(rows))
    if model.log_prior_function is not None:
        with calling("log_prior"):
            shape, seen = _shape_of(model.log_prior_function, read.add, params)
        tracked &= seen
        _check_prior_shape(shape)
    if model.derived_function is not None:
        with calling("derived"):
            shape, _ = _shape_of(model.derived_function, read.add, params)
        _check_derived(model, shape)
    unread = [name for name in model.parameters if name not in read]
    if tracked and unread:
        raise ModelError(
            f"No function of the model reads {_listed('parameter', unread)}: use it in log_likelihood or log_prior, "
            "or leave it out."
        )


def _shape_of(
    function: Callable[..., Tree], on_read: Callable[[str], None], params: Params, *rows: Rows
) -> tuple[Tree, bool]:
    """Shape of a function's result, and whether the parameters that it reads could be recorded."""

    def watched(params: dict[str, jax.Array], *rows: Rows) -> Tree:
        columns = [WatchedDict.of(r, "column", lambda _: None) if type(r) is dict else r for r in rows]
        return function(WatchedDict.of(params, "parameter", on_read), *columns)

    try:
        return jax.eval_shape(watched, params, *rows), True
    except MissingEntry:
        raise
    except Exception:
        # Some functions need plain dicts (for example in_axes of vmap as a dict): try again with those.
        return jax.eval_shape(function, params, *rows), False


def _check_row_shape(result: Tree, length: int) -> None:
    if not hasattr(result, "shape"):
        raise ModelError(
            f"log_likelihood returns {type(result).__name__}; it must return one array with one number per row."
        )
    if result.shape == ():
        raise ModelError(
            "log_likelihood returns one number for all rows; it must return one per row: leave out the sum or mean "
            "over rows."
        )
    if result.shape != (length,):
        advice = "check its shapes"
        if result.shape[0] == length:
            advice = "sum it over the axes after the first"
        if result.shape == (length, length):
            advice = "two of its terms have shapes (n,) and (n, 1), which broadcast to (n, n)"
        raise ModelError(
            f"log_likelihood returns shape {result.shape} for {length} rows; it must return one number per row, "
            f"shape ({length},): {advice}."
        )
    if not jnp.issubdtype(result.dtype, jnp.floating):
        raise ModelError(
            f"log_likelihood returns numbers of type {result.dtype}; they must be floating point."
        )


def _check_prior_shape(result: Tree) -> None:
    if not hasattr(result, "shape") or result.shape != ():
        given = f"shape {result.shape}" if hasattr(result, "shape") else type(result).__name__
        raise ModelError(
            f"log_prior returns {given}; it must return one number: sum the log densities of all parameters."
        )


def _check_derived(model: Model, result: Tree) -> None:
    if not isinstance(result, Mapping):
        raise ModelError(
            f"derived must return a dict of named quantities; it returns {type(result).__name__}."
        )
    taken = [name for name in result if name in model.parameters]
    if taken:
        raise ModelError(
            f"derived returns {taken[0]!r}, which is the name of a parameter: choose another name."
        )
    refuse_alike(model.parameters, {str(name): tuple(jnp.shape(value)) for name, value in result.items()})


@partial(CompiledFor, static=1, most=4, compiler_options=RUNS_ONCE)
def _values(
    kind: Density, numbers: Tree, thetas: jax.Array, first: Rows, second: Rows
) -> tuple[jax.Array, ...]:
    """Log prior and gradient at the first point, and the rows' log-likelihoods at all points for both samples."""
    model = joined(kind, numbers)

    def log_posterior(theta: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        prior, each = model.log_prior(theta), model.log_likelihood(theta, first)
        return prior + jnp.sum(each), (prior, each)

    gradients, (priors, whole) = jax.vmap(jax.grad(log_posterior, has_aux=True))(thetas)
    part = jax.vmap(lambda theta: model.log_likelihood(theta, second))(thetas)
    return priors[0], gradients[0], whole, part


def _check_values(model: Model, samples: TwoSamples) -> None:
    direction = np.random.default_rng(0).standard_normal(model.dim)
    thetas = np.stack([model.initial + step * direction for step in STEPS])

    with calling("The model"), jax.default_matmul_precision("highest"):
        at = thetas.astype(jnp.result_type(float))
        results = with_shared(_values, model, samples.first, at, samples.first, samples.second)
    prior, gradient, whole, part = (np.asarray(x) for x in results)
    _check_start(model, samples, prior, gradient, whole[0])
    _check_independence(whole[:, samples.index], part)


def _check_start(
    model: Model, samples: TwoSamples, prior: np.ndarray, gradient: np.ndarray, values: np.ndarray
) -> None:
    advice = (
        "Look for log(0), 0/0 and overflow in the function, or give a shardmc.Model another starting point "
        "(initial=)"
    )
    bad = ~np.isfinite(values)
    if bad.any():
        what = "NaN" if np.isnan(values[bad]).all() else "not finite"
        raise ModelError(
            f"log_likelihood is {what} for {int(bad.sum())} of {num_rows(samples.first)} sampled rows at the "
            f"starting point ({_start_in_words(model)}). {advice}."
        )
    if not np.isfinite(prior):
        raise ModelError(
            f"log_prior is {float(prior)} at the starting point ({_start_in_words(model)}). {advice}."
        )
    flawed = [name for name, value in zip(model.names, gradient, strict=True) if not np.isfinite(value)]
    if flawed:
        raise ModelError(
            f"The gradient of the log posterior is not finite in {_listed('parameter', flawed)} at the starting "
            f"point ({_start_in_words(model)}). {advice}."
        )


def _check_independence(together: np.ndarray, apart: np.ndarray) -> None:
    """Refuse a log-likelihood of a row that changes with the rows around it; both are (step, row)."""
    finite = np.isfinite(together) & np.isfinite(apart)
    together, apart = together[finite], apart[finite]
    # Float32 sums in another order differ by about 1e-6 of their size; the term of another row by far more.
    if (np.abs(together - apart) > 1e-3 * (1 + np.abs(together))).any():
        raise ModelError(
            "log_likelihood of a row depends on the other rows (the model takes a mean, a rank or a neighbour), but "
            "shards see different rows: compute such quantities beforehand and make them columns."
        )


def _start_in_words(model: Model) -> str:
    natural = {name: v[0] for name, v in model.natural(model.initial[None]).items()}
    shown = [
        f"{name} = {np.array2string(value, precision=3, threshold=4)}" for name, value in natural.items()
    ]
    return ", ".join(shown[:4]) + (", ..." if len(shown) > 4 else "")


def _listed(kind: str, names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{kind}{'s' if len(names) > 1 else ''} {', '.join(map(repr, names[:5]))}{more}"
