"""Models that differ in their numbers only share compiled programs, and each computes with its own numbers."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardmc
from shardmc.model.shared import SharedDensity, joined, split, with_shared

ROWS = {"x": np.linspace(-1, 1, 100, dtype=np.float32), "y": np.arange(100, dtype=np.float32)}


def normal(scale, center=0.0, table=(1.0, 2.0), power=2.0):
    """A model with numbers of every kind: in the prior, in the likelihood before it meets rows, and an array."""
    table = np.array(table)

    def log_likelihood(params, rows):
        mean = params["a"] / scale + params["b"] * rows["x"]
        return -0.5 * (rows["y"] - mean) ** 2 + jnp.sum(jnp.asarray(table) * params["a"])

    def log_prior(params):
        return -0.5 * jnp.abs((params["a"] - center) / scale) ** power - 0.5 * params["b"] ** 2

    return shardmc.Model(log_likelihood, log_prior, {"a": (), "b": ()})


def values(kind, numbers, theta, rows):
    density = joined(kind, numbers)
    return density.log_prior(theta), jax.grad(lambda t: jnp.sum(density.log_likelihood(t, rows)))(theta)


def check_values(model):
    theta = jnp.array([0.3, -0.7])
    found = with_shared(jax.jit(values, static_argnums=0), model, ROWS, theta, ROWS)
    expected = values(model, None, theta, ROWS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)


MODELS = {
    "scale": normal(3.0),
    "centre": normal(2.0, 5.0),
    "array": normal(2.0, table=(3.0, 4.0)),
    "all": normal(0.5, -1.0, (0.0, -1.0)),
}


@pytest.mark.parametrize("name", MODELS)
def test_other_numbers_are_arguments_of_the_same_program(name):
    first = normal(2.0)
    kind, numbers = split(first, ROWS)
    other, more = split(MODELS[name], ROWS)
    assert isinstance(kind, SharedDensity)
    assert kind == other
    assert not all(map(np.array_equal, jax.tree.leaves(numbers), jax.tree.leaves(more)))
    check_values(first)
    check_values(MODELS[name])  # fails if it computed with the first one's numbers


def test_other_steps_are_another_program():
    kinds = {
        split(model, ROWS)[0] for model in (normal(2.0), normal(2.0, power=3.0), normal(2.0, table=(1.0,)))
    }
    assert len(kinds) == 3


def test_results_of_one_step_are_told_apart():
    """After a step with several results, programs that differ in the result they read are others."""

    def model(last):
        def log_likelihood(params, rows):
            first, second = jnp.split(params["v"], 2)
            third = jnp.exp(second)
            return -((rows["y"] - first) ** 2) * third - (second if last == "second" else third)

        return shardmc.Model(log_likelihood, lambda params: -jnp.sum(params["v"] ** 2), {"v": 2})

    one, same, other = model("second"), model("second"), model("third")
    assert split(one, ROWS)[0] == split(same, ROWS)[0] != split(other, ROWS)[0]
    assert one.fingerprint(ROWS) == same.fingerprint(ROWS) != other.fingerprint(ROWS)
    check_values(one)
    check_values(other)


def with_own_derivative(function, factor):
    """A model whose likelihood has a derivative of its own, times a factor."""
    own = jax.custom_jvp(function)
    own.defjvp(lambda at, along: (own(*at), factor * jax.grad(function)(*at) * along[0]))
    return shardmc.Model(
        lambda params, rows: -jax.vmap(own)(rows["x"] * params["a"] + params["b"]),
        lambda params: -(params["a"] ** 2) - params["b"] ** 2,
        {"a": (), "b": ()},
    )


@pytest.mark.parametrize(
    "function", [lambda a: 0.5 * a**2, lambda a: jnp.maximum(a, 0) + jnp.log1p(jnp.exp(-jnp.abs(a)))]
)
def test_models_with_other_derivatives_of_their_own_are_others(function):
    one, same, other = (with_own_derivative(function, factor) for factor in (1.0, 1.0, 3.0))
    kinds = [split(model, ROWS)[0] for model in (one, same, other)]
    assert kinds[0] == kinds[1] != kinds[2]
    # So are their programs in files.
    contents = [kind.likelihood.kept_content() for kind in kinds]
    assert contents[0] == contents[1] != contents[2]
    check_values(one)
    check_values(other)


def test_packages_beside_jax_have_derivatives_of_their_own():
    """A folder whose name begins like JAX's is not a part of it."""
    code = """
def own(function, factor):
    function = jax.custom_jvp(function)
    function.defjvp(lambda at, along: (function(*at), factor * along[0]))
    return function
"""
    kinds = []
    for folder in (f"{Path(jax.__file__).parent}opt", str(Path(shardmc.__file__).parent) + "_more"):
        made = {"jax": jax}
        exec(compile(code, f"{folder}/own.py", "exec"), made)
        for factor in (1.0, 5.0):
            own = made["own"](lambda a: a * 1.0, factor)
            model = shardmc.Model(
                lambda p, r, own=own: -((r["y"] - jax.vmap(own)(r["x"] * p["a"])) ** 2), None, {"a": ()}
            )
            kinds.append(split(model, ROWS)[0])
    assert kinds[0] != kinds[1]
    assert kinds[2] != kinds[3]


def test_products_beside_a_derivative_of_its_own():
    """Derivatives are traced for the hash, and those of exchanged products can be traced at any time."""
    square = jax.custom_jvp(lambda a: a**2)
    square.defjvp(lambda at, along: (square(*at), 2 * at[0] * along[0]))
    model = shardmc.Model(
        lambda params, rows: -square(rows["y"] - jnp.stack([rows["x"], rows["y"]], 1) @ params["v"]),
        lambda params: -jnp.sum(params["v"] ** 2),
        {"v": 2},
    )
    assert isinstance(split(model, ROWS)[0], SharedDensity)
    check_values(model)


def test_a_model_with_python_in_it_shares_nothing():
    """No hash covers it."""

    def identity(a):
        return jax.pure_callback(lambda a: a, jax.ShapeDtypeStruct((), a.dtype), a)

    model = shardmc.Model(
        lambda p, r: -((r["y"] - identity(p["a"])) ** 2), lambda p: -(p["a"] ** 2), {"a": ()}
    )
    assert split(model, ROWS) == (model, None)
    assert model.numbers_are_fixed


def test_numbers_that_meet_rows_stay_in_the_program():
    """They are faster there. Models that differ in them share nothing."""

    def model(factor):
        return shardmc.Model(lambda params, rows: -((rows["y"] * factor - params["a"]) ** 2), None, {"a": ()})

    assert split(model(2.0), ROWS)[0] != split(model(3.0), ROWS)[0]
    assert split(model(2.0), ROWS)[0] == split(model(2.0), ROWS)[0]


def by_rows(function):
    """A model whose likelihood is a function of the parameter and the number of rows."""
    return shardmc.Model(
        lambda params, rows: -((rows["y"] - function(params["a"], rows["y"].shape[0])) ** 2),
        lambda params: -(params["a"] ** 2),
        {"a": ()},
    )


@pytest.mark.parametrize(
    "function",
    [lambda a, n: a * (1 / n), lambda a, n: a + np.arange(n), lambda a, n: a * (2.0 if n < 80 else 3.0)],
)
def test_numbers_that_depend_on_the_number_of_rows_are_not_taken_out(function):
    model = by_rows(function)
    theta = jnp.array([0.3])
    found = with_shared(jax.jit(values, static_argnums=0), model, ROWS, theta, ROWS)
    np.testing.assert_allclose(found[1], values(model, None, theta, ROWS)[1], rtol=1e-5)
    assert model.numbers_are_fixed


def test_a_model_that_differs_only_for_many_rows_is_another():
    """Both compute the same for the few rows by which models are compared first."""
    plain, branching = by_rows(lambda a, n: 2.0 * a), by_rows(lambda a, n: 2.0 * a if n < 80 else jnp.sin(a))
    theta = jnp.array([0.3])
    program = jax.jit(values, static_argnums=0)
    with_shared(program, plain, ROWS, theta, ROWS)
    found = with_shared(program, branching, ROWS, theta, ROWS)
    np.testing.assert_allclose(found[1], values(branching, None, theta, ROWS)[1], rtol=1e-5)
    assert branching.numbers_are_fixed


def test_models_that_differ_only_for_more_rows_than_both_have_seen_are_others():
    """They agreed for all numbers of rows when the second came. The first to read more rows shows the difference."""
    more = {name: np.tile(values, 5) for name, values in ROWS.items()}
    plain, branching = by_rows(lambda a, n: 3.0 * a), by_rows(lambda a, n: 3.0 * a if n < 300 else jnp.sin(a))
    theta = jnp.array([0.3])
    program = jax.jit(values, static_argnums=0)
    for model in (plain, branching):
        with_shared(program, model, ROWS, theta, ROWS)
    assert split(plain, ROWS)[0] == split(branching, ROWS)[0]
    for model in (branching, plain):
        found = with_shared(program, model, more, theta, more)
        np.testing.assert_allclose(found[1], values(model, None, theta, more)[1], rtol=1e-5)
    assert (plain.numbers_are_fixed, branching.numbers_are_fixed) == (False, True)


def test_fits_of_models_that_differ_in_their_numbers_compile_nothing(compilations):
    rng = np.random.default_rng(0)
    rows = rng.normal(1.0, size=4_000).astype(np.float32)

    def fitted(scale):
        model = shardmc.Model(
            lambda params, y: -0.5 * (y - params["mu"]) ** 2,
            lambda params: -0.5 * (params["mu"] / scale) ** 2,
            {"mu": ()},
        )
        return shardmc.fit(model, rows, shards=4, draws=400)

    wide = fitted(10.0)
    assert compilations
    compilations.clear()
    narrow = fitted(0.01)
    assert not compilations
    exact = {scale: rows.sum() / (len(rows) + scale**-2) for scale in (10.0, 0.01)}
    error = 6 / np.sqrt(len(rows) * 400)  # six standard errors
    assert abs(wide.draws["mu"].mean() - exact[10.0]) < error
    assert abs(narrow.draws["mu"].mean() - exact[0.01]) < error
    assert abs(exact[10.0] - exact[0.01]) > 10 * error


@pytest.mark.slow
def test_formulas_with_other_names_and_priors_compile_nothing(compilations):
    rng = np.random.default_rng(0)

    def fitted(name, scale):
        table = {name: rng.normal(size=2_000), "z": rng.normal(size=2_000)}
        table["count"] = rng.poisson(np.exp(0.3 * table[name] + 0.1 * table["z"]))
        priors = {name: f"normal(0, {scale})"}
        return shardmc.glm(f"count ~ {name} + z", table, "poisson", priors, shards=2, draws=100, keep=None)

    fitted("x", 2)
    compilations.clear()
    posterior = fitted("speed", 1)
    assert not compilations
    assert abs(posterior.draws["speed"].mean() - 0.3) < 0.2


def test_shapes_of_many_tables_are_forgotten():
    """Otherwise every new model would be compared with the first one for every number of rows that was ever seen."""
    kind, numbers = split(normal(7.0), ROWS)
    theta = jnp.array([0.3, -0.7])
    for count in range(2, 40):
        rows = {name: column[:count] for name, column in ROWS.items()}
        jax.make_jaxpr(lambda t, rows=rows: joined(kind, numbers).log_likelihood(t, rows))(theta)
    assert (len(kind.likelihood._traced), len(kind.likelihood._hashes)) == (8, 32)


@pytest.mark.slow
def test_products_of_rows_and_parameters_are_exchanged_for_values_only():
    rng = np.random.default_rng(0)
    rows = {"x": rng.normal(size=(40, 3)).astype(np.float32), "y": rng.normal(size=40).astype(np.float32)}

    def log_likelihood(params, rows):
        return -jnp.logaddexp(0.0, rows["x"] @ params["b"] - rows["y"])

    model = shardmc.Model(log_likelihood, lambda params: -0.5 * jnp.sum(params["b"] ** 2), {"b": 3})
    kind, numbers = split(model, rows)

    def total(theta):
        return jnp.sum(joined(kind, numbers).log_likelihood(theta, rows))

    def expected(theta):
        return jnp.sum(log_likelihood({"b": theta}, rows))

    points = jnp.asarray(rng.normal(size=(5, 3)), jnp.float32)
    for of in (lambda f: f, jax.grad, jax.hessian):
        np.testing.assert_allclose(
            jax.vmap(of(total))(points), jax.vmap(of(expected))(points), rtol=2e-5, atol=1e-5
        )

    def stored(function):
        """The shapes of products at five points: point by point, or row by row."""
        return [
            shape
            for shape in ("5,40", "40,5")
            if f"f32[{shape}] = dot_general" in str(jax.make_jaxpr(function)(points))
        ]

    assert stored(jax.vmap(total)) == ["5,40"]
    assert stored(jax.vmap(expected)) == ["40,5"]  # the control
