"""Models that cannot be fitted are refused with one sentence, before anything heavy is compiled."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardmc.errors import ModelError
from shardmc.model import Model, validate

X = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=12).astype(np.float32)
TABLE = {"x": X, "y": Y, "income": Y}


def normal(params, rows):
    return -0.5 * (rows["y"] - rows["x"] @ params["beta"]) ** 2


def standard(params):
    return -0.5 * jnp.sum(params["beta"] ** 2)


GOOD = {
    "plain": (normal, standard),
    "flat": (normal, None),
    "jitted": (jax.jit(normal), jax.jit(standard)),
    "vmapped": (
        lambda params, rows: jax.vmap(
            lambda p, row: -((row["y"] - row["x"] @ p["beta"]) ** 2),
            in_axes=(None, {"x": 0, "y": 0, "income": 0}),
        )(params, rows),
        standard,
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_model_passes(name):
    validate(Model(*GOOD[name], {"beta": 3}), TABLE)


@pytest.mark.parametrize("length", [1, 2, 3, 12])
def test_any_number_of_rows_is_enough_of_a_sample(length):
    validate(Model(normal, standard, {"beta": 3}), {k: v[:length] for k, v in TABLE.items()})


def test_rows_may_be_an_array_or_a_tuple():
    validate(Model(lambda params, y: -((y - params["mu"]) ** 2), None, {"mu": ()}), Y)
    validate(Model(lambda params, rows: -((rows[1] - rows[0] @ params["b"]) ** 2), None, {"b": 3}), (X, Y))


def test_data_of_any_scale_passes():
    table = {"x": X * 1e4, "y": np.abs(np.round(Y * 10))}

    def poisson(params, rows):
        eta = rows["x"] @ params["beta"]
        return rows["y"] * eta - jnp.exp(eta)

    validate(Model(poisson, standard, {"beta": 3}), table)


BAD_LIKELIHOODS = {
    "sum": (lambda p, r: jnp.sum(normal(p, r)), "returns one number for all rows; .* leave out the sum"),
    "column": (
        lambda p, r: normal(p, r)[:, None],
        r"returns shape \(12, 1\) for 12 rows; .* axes after the first",
    ),
    "square": (lambda p, r: normal(p, r) - r["y"][:, None], r"shape \(12, 12\) .* broadcast to \(n, n\)"),
    "lagged": (lambda p, r: normal(p, r)[1:], r"returns shape \(11,\) for 12 rows"),
    "parameters": (lambda p, r: p["beta"] * 1.0, r"returns shape \(3,\) for 12 rows"),
    "dict": (lambda p, r: {"a": normal(p, r)}, "returns dict; it must return one array"),
    "integer": (lambda p, r: jnp.arange(len(r["y"])) + 0 * jnp.int32(p["beta"][0]), "numbers of type int"),
    "column name": (lambda p, r: r["incme"] * p["beta"][0], "reads column 'incme', .* There are: income, "),
    "parameter name": (lambda p, r: r["y"] * p["bata"], "reads parameter 'bata', .* There are: beta"),
    "raises": (lambda p, r: r["y"].nonsense, "log_likelihood raised AttributeError"),
    "numpy": (lambda p, r: np.log(np.asarray(r["y"])) * p["beta"][0], "use jax.numpy and jax.scipy"),
    "if": (lambda p, r: r["y"] * (1 if p["beta"][0] > 0 else 2), "uses `if`"),
    "filter": (lambda p, r: r["y"][r["y"] > 0] * p["beta"][0], "selects rows by a condition"),
    "loop": (lambda p, r: r["y"] * jnp.ones(int(r["y"].max())).sum() * p["beta"][0], "for a shape or a loop"),
    "nan": (
        lambda p, r: jnp.log(r["y"]) + p["beta"].sum(),
        "is NaN for . of 12 sampled rows at the starting point",
    ),
    "infinite": (lambda p, r: jnp.log(p["beta"][0] ** 2) + r["y"], "is not finite for 12 of 12 sampled rows"),
    "gradient": (lambda p, r: r["y"] * jnp.sqrt(p["beta"][1]), r"gradient .* in parameter 'beta\[1\]'"),
    "centred": (
        lambda p, r: -((r["y"] - (r["x"] - r["x"].mean(0)) @ p["beta"]) ** 2),
        "of a row depends on the other rows",
    ),
    "neighbour": (
        lambda p, r: -((r["y"] - p["beta"][0] * jnp.roll(r["y"], 1)) ** 2),
        "depends on the other rows",
    ),
}


@pytest.mark.parametrize("name", BAD_LIKELIHOODS)
def test_a_bad_likelihood_is_refused(name):
    function, message = BAD_LIKELIHOODS[name]
    with pytest.raises(ModelError, match=message) as raised:
        validate(Model(function, standard, {"beta": 3}), TABLE)
    assert "\n" not in str(raised.value)


def test_as_many_parameters_as_sampled_rows_do_not_hide_a_wrong_shape():
    with pytest.raises(ModelError, match=r"returns shape \(12,\) for 6 rows"):
        validate(Model(lambda params, rows: params["beta"] * 1.0, None, {"beta": 12}), TABLE)


BAD_PRIORS = {
    "vector": (lambda p: -(p["beta"] ** 2), r"log_prior returns shape \(3,\); it must return one number"),
    "none": (lambda p: None, "log_prior returns NoneType"),
    "nan": (lambda p: jnp.log(-1.0 + 0 * p["beta"].sum()), "log_prior is nan at the starting point"),
    "infinite": (lambda p: jnp.log(p["beta"][0] ** 2), "log_prior is -inf at the starting point"),
    "raises": (lambda p: p["beta"] @ jnp.ones(4), "log_prior raised TypeError"),
    "name": (lambda p: p["gamma"], "log_prior reads parameter 'gamma'"),
}


@pytest.mark.parametrize("name", BAD_PRIORS)
def test_a_bad_prior_is_refused(name):
    function, message = BAD_PRIORS[name]
    with pytest.raises(ModelError, match=message):
        validate(Model(normal, function, {"beta": 3}), TABLE)


def test_a_parameter_that_nothing_reads_is_refused():
    with pytest.raises(ModelError, match="No function of the model reads parameter 'unused'"):
        validate(Model(normal, standard, {"beta": 3, "unused": ()}), TABLE)


@pytest.mark.parametrize(
    ("derived", "message"),
    [
        (lambda p: p["beta"], "derived must return a dict"),
        (lambda p: {"beta": p["beta"]}, "derived returns 'beta', which is the name of a parameter"),
        (lambda p: {"x": p["gamma"]}, "derived reads parameter 'gamma'"),
    ],
)
def test_bad_derived_quantities_are_refused(derived, message):
    with pytest.raises(ModelError, match=message):
        validate(Model(normal, standard, {"beta": 3}, derived=derived), TABLE)


def test_the_starting_point_is_named_and_can_be_changed():
    def log_likelihood(params, rows):
        return jnp.log(params["a"] - 2) + 0 * rows

    with pytest.raises(ModelError, match=r"starting point \(a = 1"):
        validate(Model(log_likelihood, None, {"a": "positive"}), Y)
    validate(Model(log_likelihood, None, {"a": "positive"}, initial={"a": 3.0}), Y)
