"""Expressions and formulas: what is allowed, what is read from them, and that nothing else can be run."""

import numpy as np
import pandas as pd
import pytest

from shardmc.errors import ModelError
from shardmc.formulas.expression import parse_expression
from shardmc.formulas.families import Moments
from shardmc.formulas.formula import Formula

COLUMNS = ["y", "a", "b", "my col", "w"]


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "().__class__.__bases__[0]",
        "open('file')",
        "x.mean()",
        "x - np.mean(x)",
        "np.load('file')",
        "[v for v in x]",
        "(lambda: x)()",
        "x if y else 0",
        "x[0]",
        "f'{x}'",
        "(z := x)",
        "9 ** 9 ** 9",
        "lag(x)",
        "hashed(x)",
        "bs(scale(x), df=4)",
        "scale(x, center=y)",
        "I(C(x))",
        "log(C(x))",
        "C()",
    ],
)
def test_what_is_not_an_elementwise_function_is_refused(text):
    with pytest.raises(ModelError, match=r"is not allowed|is not understood"):
        parse_expression(text)


def test_columns_and_their_use():
    assert parse_expression("np.where(g == 'a', x, 0) + `my col`").columns == ("my col", "x", "g")
    assert parse_expression("np.where(g == 'a', x, 0)").numeric == ("x",)
    assert parse_expression("C(g, Treatment('b'))").category == "g"
    assert parse_expression("C(`my g`, levels=['lo', 'hi'])").category_column == "my g"
    assert parse_expression("C(g, levels=['lo', 'hi'])").levels == ("lo", "hi")
    assert [t.key for t in parse_expression("I(scale(x) * center(z))").transforms] == [
        "scale(x)",
        "center(z)",
    ]


def test_values_on_rows():
    chunk = {"x": np.array([1.0, 4.0]), "my col": np.array([2, 3]), "g": pd.Categorical(["a", "b"])}
    np.testing.assert_array_equal(parse_expression("np.sqrt(x) * `my col`").values(chunk), [2, 6])
    np.testing.assert_array_equal(parse_expression("I(g == 'b')").values(chunk), [False, True])
    np.testing.assert_array_equal(parse_expression("2 + 0 * x").values(chunk), [2, 2])


@pytest.mark.parametrize(
    "call",
    [
        "scale(x)",
        "center(x)",
        "standardize(x)",
        "scale(x, center=False)",
        "scale(x, False, True, 0)",
        "scale(x, center=3, scale=2)",
        "standardize(x, rescale=False)",
    ],
)
def test_scales_of_all_rows_are_formulaics(call):
    from formulaic import model_matrix

    x = np.random.default_rng(0).normal(5, 2, size=200)
    moments = Moments()
    for part in np.array_split(x, 7):
        moments.add(part)
    state = parse_expression(call).transforms[0].state(moments)
    theirs = model_matrix(f"0 + {call}", pd.DataFrame({"x": x})).model_spec.transform_state[call]
    for key in ("center", "scale"):
        expected = theirs.get(key)
        assert state[key] == (None if expected is None else pytest.approx(float(expected), rel=1e-12))


def test_formulas_are_taken_apart():
    formula = Formula.parse("np.log(y) ~ a * b + C(`my col`)", COLUMNS)
    assert formula.response.text == "np.log(y)"
    assert formula.columns == ("a", "b", "my col")
    assert formula.has_intercept
    assert not Formula.parse("y ~ 0 + a", COLUMNS).has_intercept
    assert not Formula.parse("y ~ a - 1", COLUMNS).has_intercept


def test_a_dot_stands_for_the_other_columns():
    assert Formula.parse("y ~ .", COLUMNS, ["w"]).columns == ("a", "b", "my col")
    assert Formula.parse("y ~ . - a", COLUMNS, ["w"]).columns == ("b", "my col")
    assert Formula.parse("y ~ np.log(a) + b", COLUMNS).text == "y ~ np.log(a) + b"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a + b", "has no response"),
        ("y ~ a | b", "has several parts"),
        ("y + a ~ b", "must be one column or expression"),
        ("y ~ a +", "is not understood"),
        ("y ~ a.mean()", "is not allowed"),
        (7, "must be text"),
    ],
)
def test_formulas_that_cannot_be_are_refused(text, message):
    with pytest.raises(ModelError, match=message):
        Formula.parse(text, COLUMNS)
