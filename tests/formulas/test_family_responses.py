"""Families by name, and responses that they refuse."""

import numpy as np
import pytest

from shardmc.errors import DataError, OptionError
from shardmc.formulas.families import (
    FAMILIES,
    Bernoulli,
    Beta,
    Binomial,
    Gamma,
    Gaussian,
    InverseGaussian,
    Lognormal,
    NegativeBinomial,
    Ordinal,
    Poisson,
    ResponseSummary,
    StudentT,
    ZeroInflatedNegativeBinomial,
    ZeroInflatedPoisson,
    family_from_dict,
    named_family,
)


def test_families_by_name():
    assert named_family("Negative-Binomial") == NegativeBinomial()
    assert named_family("negbinomial") == NegativeBinomial()
    assert named_family("normal") == named_family("gaussian")
    assert named_family("bernoulli(link=probit)") == Bernoulli("probit")
    assert named_family("bernoulli(link=cloglog)") == Bernoulli("cloglog")
    assert named_family(StudentT(df=3.0)) == StudentT(df=3.0)
    for name in FAMILIES:
        family = named_family(name)
        assert family_from_dict(family.to_dict()) == family
    with pytest.raises(OptionError, match=r"Unknown family 'poison'\. Did you mean 'poisson'"):
        named_family("poison")
    with pytest.raises(OptionError, match="link"):
        named_family("bernoulli(link=cauchit)")
    with pytest.raises(OptionError, match="no options"):
        named_family("poisson(df=3)")


def test_options_of_families_are_checked():
    assert named_family("student_t(df=1e1)") == named_family("student_t(df=.1e2)") == StudentT(df=10.0)
    for text in ("student_t(df=-3)", "student_t(df=0)", "student_t(df=1e999)", "student_t(df=many)"):
        with pytest.raises(OptionError, match="df of family 'student_t' must be a positive number; "):
            named_family(text)
    for text in ("ordinal(levels=low)", "categorical(levels=3)"):
        with pytest.raises(OptionError, match=r"must be a list such as \['low', 'mid', 'high'\]; "):
            named_family(text)
    assert Ordinal(levels=["low", "mid", "high"]).levels == ("low", "mid", "high")
    with pytest.raises(OptionError, match=r"Unknown link of family 'bernoulli' 3\.0"):
        named_family("bernoulli(link=3)")


def seen(values, trials=None):
    found = ResponseSummary("y")
    for part in np.array_split(np.asarray(values, float), 3):
        found.add(part, None if trials is None else np.full(len(part), float(trials)), None)
    return found


def test_responses_that_cannot_be_are_refused():
    with pytest.raises(DataError, match=r"must be 0 or 1, but it has 3 different values \(0, 1, 2\)"):
        Bernoulli().refuse(seen([0, 1, 2, 1, 0]))
    with pytest.raises(DataError, match=r"2 of 4 values are not whole numbers, such as 1.5"):
        Poisson().refuse(seen([0, 1.5, 2.5, 3]))
    with pytest.raises(DataError, match="1 of 4 values are negative"):
        NegativeBinomial().refuse(seen([0, 1, -2, 3]))
    with pytest.raises(DataError, match="2 of 4 values are zero or negative"):
        Gamma().refuse(seen([0, 1, -2, 3]))
    with pytest.raises(DataError, match="is 2 in every row"):
        Gaussian().refuse(seen([2, 2, 2, 2]))
    with pytest.raises(DataError, match="exceeds the number of trials in 1 row;"):
        Binomial().refuse(seen([0, 1, 2, 6], trials=5))
    with pytest.raises(DataError, match="'lognormal' must be positive, but 1 of 4 values"):
        Lognormal().refuse(seen([0, 1, 2, 3]))
    with pytest.raises(DataError, match="'inverse_gaussian' must be positive, but 1 of 4 values"):
        InverseGaussian().refuse(seen([-1, 1, 2, 3]))
    with pytest.raises(
        DataError, match=r"without the ends, but its values go from 0 to 0.5; drop rows with 0"
    ):
        Beta().refuse(seen([0, 0.1, 0.2, 0.5]))
    with pytest.raises(DataError, match="from 3 to 50; divide percentages by 100"):
        Beta().refuse(seen([3, 10, 20, 50]))
    with pytest.raises(
        DataError, match=r"must be counts, but 1 of 4 values are not whole numbers, such as 0.5"
    ):
        ZeroInflatedPoisson().refuse(seen([0, 0.5, 2, 3]))
    with pytest.raises(DataError, match=r"has no zeros.*take family 'negative_binomial'"):
        ZeroInflatedNegativeBinomial().refuse(seen([1, 2, 2, 3]))
    with pytest.raises(DataError, match="2 levels; it needs three or more"):
        Ordinal((0, 1)).refuse(seen([0, 1, 0, 1]))


def test_moments_in_pieces_are_those_of_the_whole():
    values = np.random.default_rng(0).normal(5, 2, size=1000)
    found = seen(values)
    assert found.mean == pytest.approx(values.mean())
    assert found.sd == pytest.approx(values.std(ddof=1))
    assert (found.moments.low, found.moments.high) == (values.min(), values.max())
