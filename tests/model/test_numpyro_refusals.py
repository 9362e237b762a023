"""NumPyro model functions that are refused: each message names the site and says what to do."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from shardmc.errors import ModelError
from shardmc.model import from_numpyro, validate

RNG = np.random.default_rng(0)
N = 12
X = RNG.normal(size=(N, 3)).astype(np.float32)
Y = RNG.normal(size=N).astype(np.float32)
B = (RNG.random(N) < 0.5).astype(np.float32)
G = np.arange(N) % 4
V = RNG.normal(size=(N, 2)).astype(np.float32)


def _refused(function, rows, message, **constants):
    with pytest.raises(ModelError, match=message) as raised:
        from_numpyro(function, **constants).bind(rows)
    assert "\n" not in str(raised.value)


class TestRefusals:
    """Each names the site and says what to do."""

    def test_one_latent_value_per_row(self):
        def labels(y):
            p = numpyro.sample("p", dist.Beta(1, 1))
            with numpyro.plate("rows", y.shape[0]):
                z = numpyro.sample("z", dist.Bernoulli(p))
                numpyro.sample("y", dist.Normal(z, 1.0), obs=y)

        _refused(
            labels,
            {"y": Y},
            r"Latent site 'z' has one value per row \(shape \(12,\) .* Marginalise it .* Gibbs",
        )

        def effects(y):
            u = numpyro.sample("u", dist.Normal(0, 1).expand([y.shape[0]]))
            numpyro.sample("y", dist.Normal(u, 1.0), obs=y)

        _refused(effects, {"y": Y}, "Latent site 'u' has one value per row")

    def test_a_response_that_was_not_given(self):
        def optional(x, y=None):
            beta = numpyro.sample("beta", dist.Normal(0, 2).expand([x.shape[1]]).to_event(1))
            numpyro.sample("y", dist.Normal(x @ beta, 1.0), obs=y)

        _refused(
            optional, {"x": X, "z": Y}, r"Latent site 'y' has one value per row .*Nothing was given for .*'y'"
        )
        _refused(optional, X, r"Latent site 'y' has one value per row .*Nothing was given for .*'y'")

    def test_missing_values_imputed_per_row(self):
        def imputed(y, b):
            mu = numpyro.sample("mu", dist.Normal(0, 1))
            numpyro.sample("y", dist.Normal(mu, 1.0).expand([y.shape[0]]), obs=y, obs_mask=b > 0)

        _refused(imputed, {"y": Y, "b": B}, "Latent site 'y_unobserved' has one value per row")

    def test_a_discrete_latent(self):
        def switch(y):
            k = numpyro.sample("k", dist.Categorical(probs=jnp.ones(3) / 3))
            numpyro.sample("y", dist.Normal(k, 1.0), obs=y)

        _refused(switch, {"y": Y}, "Latent site 'k' is discrete. Marginalise it")

    def test_a_subsampling_plate(self):
        def minibatch(y):
            mu = numpyro.sample("mu", dist.Normal(0, 1))
            with numpyro.plate("rows", y.shape[0], subsample_size=3) as index:
                numpyro.sample("y", dist.Normal(mu, 1.0), obs=y[index])

        _refused(minibatch, {"y": Y}, "Plate 'rows' takes a subsample of 3 of 12: leave subsample_size out")

    @pytest.mark.parametrize("scale", [lambda y: jnp.std(y), lambda y: 1 / jnp.sqrt(y.shape[0])])
    def test_a_prior_that_depends_on_the_rows(self, scale):
        def empirical(y):
            mu = numpyro.sample("mu", dist.Normal(0, scale(y)))
            numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

        _refused(empirical, {"y": Y}, "prior of latent site 'mu' depends on the rows .* extra argument")

    def test_a_support_that_depends_on_another_site(self):
        def bounded(y):
            high = numpyro.sample("high", dist.HalfNormal(1))
            mu = numpyro.sample("mu", dist.Uniform(0, high))
            numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

        _refused(bounded, {"y": Y}, r"support of latent site 'mu' depends on another site .* Uniform\(0, 1\)")

    def test_a_support_without_bijection(self):
        def direction(v):
            mu = numpyro.sample("mu", dist.ProjectedNormal(jnp.ones(2)))
            numpyro.sample("v", dist.Normal(mu, 1.0).to_event(1), obs=v)

        _refused(direction, {"v": V}, "Latent site 'mu' has support .* no bijection")

    def test_no_observed_site(self):
        def nothing(x):
            numpyro.sample("beta", dist.Normal(0, 1).expand([3]))

        _refused(nothing, {"x": X}, "no observed site with one value per row")

    def test_no_latent_site(self):
        _refused(lambda y: numpyro.sample("y", dist.Normal(0, 1), obs=y), {"y": Y}, "no latent site")

    def test_an_observed_site_whose_event_is_all_rows(self):
        def event(x, y):
            beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3]))
            numpyro.sample("y", dist.Normal(x @ beta, 1.0).to_event(1), obs=y)

        _refused(event, (X, Y), "Observed site 'y' has one log density for all rows .* leave out .to_event")

    def test_a_factor_that_sums_over_rows(self):
        def summed(x, y):
            beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3]))
            numpyro.factor("fit", -jnp.sum((y - x @ beta) ** 2))

        _refused(summed, (X, Y), "Factor 'fit' is one number for all rows")

    def test_rows_that_broadcast_against_themselves(self):
        def square(x, y):
            beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3, 1]))
            numpyro.sample("y", dist.Normal(x @ beta, 1.0), obs=y)

        _refused(square, (X, Y), r"observed site 'y' has shape \(12, 12\) .* broadcast to \(n, n\)")

    def test_an_autoregression(self):
        def lagged(y):
            a = numpyro.sample("a", dist.Normal(0, 1))
            numpyro.sample("y", dist.Normal(a * y[:-1], 1.0), obs=y[1:])

        _refused(
            lagged,
            {"y": Y},
            r"observed site 'y' has shape \(11,\) for 12 rows .* one axis with one value per row",
        )

    def test_a_row_that_depends_on_other_rows(self):
        def centred(x, y):
            beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3]))
            numpyro.sample("y", dist.Normal((x - x.mean(0)) @ beta, 1.0), obs=y)

        model = from_numpyro(centred).bind((X, Y))
        with pytest.raises(ModelError, match="depends on the other rows"):
            validate(model, (X, Y))

    def test_a_param_site(self):
        def optimised(y):
            scale = numpyro.param("scale", 1.0)
            numpyro.sample("y", dist.Normal(numpyro.sample("mu", dist.Normal(0, 1)), scale), obs=y)

        _refused(optimised, {"y": Y}, r"Site 'scale' is a numpyro.param, .* numpyro.sample")

    def test_a_plate_of_a_fixed_number_of_rows(self):
        def fixed(y):
            mu = numpyro.sample("mu", dist.Normal(0, 1))
            with numpyro.plate("rows", 1000):
                numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

        _refused(fixed, {"y": Y}, "The NumPyro model raised .*")

    def test_values_of_rows_used_as_sizes(self):
        def sized(y, group):
            effect = numpyro.sample("effect", dist.Normal(0, 1).expand([int(group.max()) + 1]))
            numpyro.sample("y", dist.Normal(effect[group], 1.0), obs=y)

        _refused(sized, {"y": Y, "group": G}, "give it to the model as a constant")

    def test_something_that_is_no_function(self):
        with pytest.raises(ModelError, match="from_numpyro takes a NumPyro model function; int was given"):
            from_numpyro(3)  # type: ignore[arg-type]

    def test_values_outside_the_support_of_the_likelihood(self):
        def bernoulli(x, b):
            beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3]))
            numpyro.sample("b", dist.Bernoulli(logits=x @ beta), obs=b)

        model = from_numpyro(bernoulli).bind((X, B))
        wrong = np.where(np.arange(N) == 3, 2.0, B).astype(np.float32)
        with pytest.raises(ModelError, match="is not finite for 1 of 12 sampled rows"):
            validate(model, (X, wrong))
