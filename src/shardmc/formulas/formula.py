"""A parsed formula (response, terms, expressions), and the other columns: offset, exposure, trials, censored."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
import pandas as pd
from formulaic import Formula as ParsedFormula
from formulaic import SimpleFormula
from formulaic.errors import FormulaicError
from formulaic.parser import DefaultFormulaParser
from formulaic.parser.types import ASTNode, Factor, Term, Token

from shardmc.data import Source
from shardmc.errors import DataError, ModelError, OptionError
from shardmc.formulas.chunk import Chunk, Kind, Level, ordered_levels, refuse_level
from shardmc.formulas.expression import (
    Expression,
    check_columns,
    parse_expression,
    quoted,
    refuse_words_of_python,
)
from shardmc.formulas.families import Family, families_with
from shardmc.guards.limits import refuse_above

LONGEST = 100_000  # characters of a formula
_AVAILABLE = "__formulaic_variables_available__"
"""Formulaic's key for the columns of `.`: its error about `.` without a table says to pass them so."""
_ONE = "In a formula, a column called '1' looks like the intercept: rename it, for example to 'x1'."

_LOGARITHM = re.compile(r"(?:np\.)?log(?:2|10|1p)?\((.+)\)")


@final
@dataclass(frozen=True)
class Formula:
    """`response ~ predictors`, in the language of R and formulaic.

    Parameters
    ----------
    text
        The formula as it was written, with `.` replaced by the columns it stands for.

    Examples
    --------
    >>> formula = Formula.parse("y ~ age + C(region) + age:income", ["y", "age", "region", "income"])
    >>> formula.columns
    ('age', 'region', 'income')
    >>> formula.has_intercept
    True
    """

    text: str

    @staticmethod
    def parse(text: str, columns: Sequence[str], taken: Sequence[str] = ()) -> Formula:
        """Parse a formula; `.` means all columns except the response and those `taken` by something else."""
        formula = Formula(_expanded(text, columns, taken))
        _ = formula.response, formula.expressions  # parse, so that mistakes are refused now
        return formula

    def refuse_functions(self, columns: Sequence[str]) -> None:
        """Refuse columns with the name of a function that the formula calls: the name could mean either."""
        called = {f for e in (self.response, *self.expressions.values()) for f in e.functions}
        for name in columns:
            if name in called:
                raise ModelError(
                    f"The formula calls {name!r} and reads a column of that name: rename the column."
                )

    def without(self, names: Collection[str]) -> Formula:
        """The formula without the terms of that name that share no factor with other terms.

        >>> Formula("y ~ a + b + C(g) + b:d").without(["a", "b", "C(g)"]).text
        'y ~ 1 + b + b:d'
        """
        terms = list(self.predictors)
        counts = Counter(factor.expr for term in terms for factor in term.factors)

        def stays(term: Term) -> bool:
            first, *others = term.factors
            named = first.expr in names or f"`{first.expr}`" in names
            return bool(others) or counts[first.expr] > 1 or not named

        kept = [term for term in terms if stays(term)]
        return self if len(kept) == len(terms) else Formula(_joined(self.text.partition("~")[0], kept))

    @cached_property
    def _sides(self) -> tuple[SimpleFormula, SimpleFormula]:
        parsed = _parse(self.text)
        if "`1`" in self.text:
            raise ModelError(_ONE)
        left, right = getattr(parsed, "lhs", None), getattr(parsed, "rhs", None)
        if left is None or right is None:
            raise ModelError(
                f"The formula {self.text!r} has no response: write 'response ~ predictors', such as 'y ~ x1 + x2'."
            )
        if "|" in self.text.partition("~")[0]:
            raise ModelError(
                f"The left-hand side of {self.text!r} has a bar: give trials, weights and the like as options, such as "
                "trials=."
            )
        if not isinstance(right, SimpleFormula) or not isinstance(left, SimpleFormula):
            raise ModelError(
                f"The formula {self.text!r} has several parts (a `|`, or more than one `~`). Write effects of groups "
                "in parentheses, as in 'y ~ x + (1 | g)'."
            )
        return left, right

    @cached_property
    def response(self) -> Expression:
        """The left-hand side."""
        terms = list(self._sides[0])
        if len(terms) != 1 or len(terms[0].factors) != 1:
            raise ModelError(
                f"The left-hand side of {self.text!r} must be one column or expression; put arithmetic into I(...)."
            )
        return parse_expression(_source(terms[0].factors[0]))

    @property
    def predictors(self) -> SimpleFormula:
        """The right-hand side, as formulaic reads it."""
        return self._sides[1]

    @property
    def has_intercept(self) -> bool:
        return any(is_intercept(term) for term in self.predictors)

    @cached_property
    def expressions(self) -> Mapping[str, Expression]:
        """The different factors of the predictors' terms, by formulaic's name."""
        factors = [factor for term in self.predictors for factor in term.factors]
        return {
            f.expr: parse_expression(_source(f))
            for f in factors
            if f.eval_method is not Factor.EvalMethod.LITERAL
        }

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Columns that the predictors read."""
        return tuple(
            dict.fromkeys(name for expression in self.expressions.values() for name in expression.columns)
        )

    def check_columns(self, available: Mapping[str, str]) -> None:
        """Refuse columns that do not exist, and text where numbers are needed; `available` is name -> kind."""
        for expression in (self.response, *self.expressions.values()):
            check_columns(expression, available)


def is_intercept(term: Term) -> bool:
    """Whether a term is the constant 1, and not a column of any name."""
    return all(factor.eval_method is Factor.EvalMethod.LITERAL for factor in term.factors)


def _parse(text: str, context: Mapping[str, Any] | None = None) -> Any:
    if not isinstance(text, str) or len(text) > LONGEST:
        raise ModelError(
            f"A formula must be text such as 'y ~ x1 + x2' of at most {LONGEST} characters; {type(text).__name__} "
            f"{f'of {len(text)} characters ' if isinstance(text, str) else ''}was given."
        )
    try:
        free = (context or {}).get(_AVAILABLE, ())
        refuse_above(
            "terms",
            _terms_of(DefaultFormulaParser().parse(text, target="ast", context=context), len(free)),
            f"The formula {_shortened(text)!r} expands to many terms, or its powers are too high",
            ModelError,
        )
        return ParsedFormula.from_spec(text, context=context)
    except (FormulaicError, SyntaxError, ValueError, RecursionError) as error:
        refuse_words_of_python(text)
        if re.search(r"\bas\.factor\b", text):
            raise ModelError(f"as.factor in {text!r} is not allowed: write C(...) for a category.") from None
        if re.match(r"\s*(bf|brmsformula|mvbind)\s*\(", text):
            raise ModelError(
                f"The formula {text!r} is not understood: write one formula, such as 'y ~ x'. Only the mean has "
                "predictors."
            ) from None
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        if text.count("(") != text.count(")"):
            reason = f"it has {text.count('(')} opening and {text.count(')')} closing brackets"
        raise ModelError(f"The formula {text!r} is not understood: {reason}.") from None


def _shortened(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}..."


def _terms_of(tree: ASTNode | Token | None, columns: int) -> float:
    """At most so many terms, equal ones counted separately, appear while formulaic expands a formula.

    `columns` is what `.` stands for. The tree may be deeper than Python's stack.
    """
    counts: dict[int, float] = {}
    waiting: list[Any] = [tree]
    while waiting:
        node = waiting[-1]
        inner = [arg for arg in node.args if isinstance(arg, ASTNode)] if isinstance(node, ASTNode) else []
        missing = [arg for arg in inner if id(arg) not in counts]
        if missing:
            waiting += missing
            continue
        waiting.pop()
        if isinstance(node, ASTNode):
            counts[id(node)] = _expanded_count(
                node.operator.symbol, [(counts.get(id(arg), 1.0), str(arg)) for arg in node.args], columns
            )
    return counts.get(id(tree), 1.0)


def _expanded_count(symbol: str, parts: list[tuple[float, str]], columns: int) -> float:
    """Terms of an operator, from the number of terms and the text of each argument."""
    counts = [count for count, _ in parts]
    if symbol == "." and not parts:
        return float(columns)
    if symbol in ("**", "^") and parts[-1][1].isdecimal():
        power = float(parts[-1][1])
        # The power itself counts too: formulaic multiplies so many times.
        return max(power, counts[0] ** power if power * math.log(max(counts[0], 1)) < 700 else math.inf)
    if symbol in ("*", ":"):
        return math.prod(counts) + (sum(counts) if symbol == "*" else 0)
    return sum(counts)


def _source(factor: Factor) -> str:
    """A factor as an expression. A column is quoted, so that any name is possible."""
    return quoted(factor.expr) if factor.eval_method is Factor.EvalMethod.LOOKUP else factor.expr


def _expanded(text: str, columns: Sequence[str], taken: Sequence[str]) -> str:
    """The formula with `.` replaced by its columns."""
    left, tilde, right = text.partition("~") if isinstance(text, str) else (text, "", "")
    if not tilde or not re.search(r"(?<![\w.])\.(?![\w.])", right):
        return text
    free = [name for name in columns if name not in taken]
    for name in free:
        if name == "1":
            raise ModelError(_ONE)
        if not name or "`" in name:
            raise ModelError(
                f"A formula cannot name the column {name!r}, which `.` includes: rename it, or write out the columns."
            )
    parsed = _parse(text, {_AVAILABLE: free})
    if not isinstance(getattr(parsed, "rhs", None), SimpleFormula):
        return text
    return _joined(left, parsed.rhs)


def _joined(left: str, terms: Iterable[Term]) -> str:
    """A formula from its left-hand side and its terms."""
    texts = [":".join(_quoted(factor) for factor in term.factors) for term in terms]
    return f"{left.strip()} ~ {' + '.join(texts if '1' in texts else ['0', *texts])}"


def _quoted(factor: Factor) -> str:
    """A factor as a formula needs it."""
    is_code = factor.eval_method is Factor.EvalMethod.PYTHON
    return "{" + factor.expr + "}" if is_code else _source(factor)


@final
@dataclass(frozen=True)
class Roles:
    """The expressions of the response and of what belongs to it."""

    response: Expression
    offset: Expression | None = None
    exposure: Expression | None = None
    trials: Expression | int | None = None
    censored: Expression | None = None
    counts: tuple[str, ...] = ()
    """Columns with the counts of each level, of families that take them; the response is then the first."""

    @staticmethod
    def of(
        response: Expression,
        family: Family,
        columns: Sequence[str],
        offset: str | None,
        exposure: str | None,
        trials: str | int | None,
        censored: str | None,
        counts: tuple[str, ...] = (),
    ) -> Roles:
        """From the user's options: names of columns, expressions, or a number of trials."""
        if exposure is not None and not family.takes_exposure:
            raise OptionError(
                f"exposure belongs to families with a log link ({families_with('takes_exposure')}), not to "
                f"{family.name!r}."
            )
        if offset is not None and family.several_predictors:
            raise OptionError(
                f"Family {family.name!r} has a linear predictor for each level, so an offset could belong to any of "
                "them; leave it out."
            )
        if family.takes_trials and trials is None:
            raise OptionError(
                f"Family {family.name!r} needs the number of trials: give trials= a column's name or a whole number. "
                "For responses that are 0 or 1 use family 'bernoulli'."
            )
        if trials is not None and not family.takes_trials:
            raise OptionError(
                f"trials belongs to family {families_with('takes_trials')}, not to {family.name!r}."
            )
        if censored is not None and not family.takes_censoring:
            raise OptionError(
                f"censored belongs to family {families_with('takes_censoring')}, not to {family.name!r}."
            )
        is_number = isinstance(trials, int | np.integer)
        if is_number and trials < 1:
            raise OptionError(
                f"trials must be a positive whole number or a column's name; {trials!r} was given."
            )
        return Roles(
            response,
            _expression("offset", offset, columns),
            _expression("exposure", exposure, columns),
            int(trials) if is_number else _expression("trials", trials, columns),
            _expression("censored", censored, columns),
            counts,
        )

    @property
    def besides_response(self) -> dict[str, Expression]:
        """Offset, exposure and trials, which new rows must have too, by name."""
        named = {"offset": self.offset, "exposure": self.exposure, "trials": self.trials}
        return {name: given for name, given in named.items() if isinstance(given, Expression)}

    @property
    def columns(self) -> tuple[str, ...]:
        every = (self.response, *self.besides_response.values(), *([self.censored] if self.censored else []))
        named = (name for expression in every for name in expression.columns)
        return tuple(dict.fromkeys([*named, *self.counts]))

    @property
    def response_text(self) -> str:
        """The left-hand side as it was written."""
        return f"c({', '.join(self.counts)})" if self.counts else self.response.text

    def check_columns(self, kinds: Mapping[str, Kind]) -> None:
        censored = {} if self.censored is None else {"censored": self.censored}
        for role, expression in (self.besides_response | censored).items():
            check_columns(expression, kinds)
            name = expression.column or expression.text
            if kinds.get(name) == "text":
                raise DataError(f"{role} column {name!r} holds text; numbers are needed.")
        for name in self.counts:
            if kinds.get(name) == "text":
                raise DataError(f"The column of counts {name!r} holds text; numbers are needed.")

    def response_values(self, chunk: Chunk, levels: Sequence[Level] | None) -> np.ndarray:
        """The response as numbers; with levels, the number of each row's level, or counts (row, level)."""
        if self.counts:
            return np.stack([np.asarray(chunk[name], np.float64) for name in self.counts], axis=1)
        expression = self.response
        values = expression.values(chunk, expression.category)
        if levels is not None:
            codes = pd.Index(list(levels)).get_indexer(pd.Index(values))
            if (codes < 0).any():
                refuse_level(expression.text, values[codes < 0].tolist(), levels)
            return codes.astype(np.float64)
        if values.dtype.kind not in "fiub":
            first = next(iter(values.tolist()), "yes")
            raise DataError(
                f"The response {expression.text!r} holds text, such as {first!r}; numbers are needed. For two "
                f'outcomes write which is a success: "I({expression.text} == {first!r}) ~ ...". Three or more are '
                "family 'categorical', or 'ordinal' if they have an order."
            )
        return values.astype(np.float64)

    def explained(self, chunk: Chunk, levels: Sequence[Level] | None, family: Family) -> np.ndarray:
        """What the predictors must explain: the response, less the offset if both have the same units."""
        response = self.response_values(chunk, levels)
        offset = self.offset_values(chunk) if family.location_scale else None
        return response if offset is None else response - offset

    def offset_values(self, chunk: Chunk) -> np.ndarray | None:
        """The term added to the linear predictor: the offset plus the logarithm of the exposure."""
        total = None if self.offset is None else self.offset.values(chunk).astype(np.float64)
        if self.exposure is None:
            return total
        with np.errstate(all="ignore"):
            log_exposure = np.log(self.exposure.values(chunk).astype(np.float64))
        return log_exposure if total is None else total + log_exposure

    def trial_values(self, chunk: Chunk, count: int) -> np.ndarray | None:
        """Number of trials of each row."""
        if self.trials is None:
            return None
        if isinstance(self.trials, int):
            return np.full(count, float(self.trials))
        return self.trials.values(chunk).astype(np.float64)

    def censored_values(self, chunk: Chunk, count: int) -> np.ndarray:
        """Whether each row's response is censored, as 0 or 1."""
        if self.censored is None:
            return np.zeros(count)
        values = self.censored.values(chunk).astype(np.float64)
        bad = values[(values != 0) & (values != 1)]
        if len(bad):
            raise DataError(
                f"The column of censored={self.censored.text!r} must be 1 (or true) where the response is censored and "
                f"0 where it is not, but it is {bad[0]:g} in {len(bad)} rows."
            )
        return values

    def refuse(self, chunk: Chunk, count: int) -> None:
        """Refuse impossible exposures, offsets and trials, with the number of rows that have them."""
        if self.exposure is not None:
            exposure = self.exposure.values(chunk).astype(np.float64)
            bad = ~(exposure > 0) | np.isinf(exposure)
            if bad.any():
                raise DataError(
                    f"The exposure {self.exposure.text!r} must be positive, but it is {exposure[bad][0]:g} in "
                    f"{int(bad.sum())} rows; {_advice_on_exposure(self.exposure.text)}"
                )
        if self.offset is not None and not np.isfinite(self.offset.values(chunk).astype(np.float64)).all():
            inside = _LOGARITHM.fullmatch(self.offset.text)
            why = "" if inside is None else f": where {inside[1]!r} is zero or below, it has no logarithm"
            raise DataError(
                f"The offset {self.offset.text!r} is not finite in some rows{why}. Drop those rows."
            )
        trials = self.trial_values(chunk, count)
        bad = np.empty(0) if trials is None else trials[~((trials >= 1) & (trials == np.floor(trials)))]
        if len(bad):
            raise DataError(
                f"The number of trials must be a positive whole number, but it is {bad[0]:g} in {len(bad)} rows; drop "
                "rows without trials."
            )

    def to_dict(self) -> dict[str, Any]:
        texts = {role: expression.text for role, expression in self.besides_response.items()}
        if self.censored is not None:
            texts["censored"] = self.censored.text
        counts = {"counts": list(self.counts)} if self.counts else {}
        return {"response": self.response.text, "trials": self.trials} | texts | counts

    @staticmethod
    def from_dict(stored: Mapping[str, Any]) -> Roles:
        trials = stored["trials"]
        return Roles(
            parse_expression(stored["response"]),
            _expression("offset", stored.get("offset")),
            _expression("exposure", stored.get("exposure")),
            trials if isinstance(trials, int) else _expression("trials", trials),
            _expression("censored", stored.get("censored")),
            tuple(stored.get("counts", ())),
        )


def levels_of(
    family: Family,
    response: Expression,
    source: Source,
    kinds: Mapping[str, Kind],
    ordered: Mapping[str, Sequence[Level]],
) -> Sequence[Level] | None:
    """Levels of a response of text, or as declared; None if the response is numbers."""
    if not family.takes_levels:
        if response.category is not None:
            raise ModelError(
                f"The response {response.text!r} is a category; only {families_with('takes_levels')} take one. "
                f"For two outcomes take 'bernoulli' and write which is a success, as in I({response.category} == ...)."
            )
        return None
    if family.levels_of_response:
        return family.levels_of_response
    if response.levels is not None:
        return response.levels
    name = response.category_column or response.column or response.text
    if kinds.get(name) != "text":
        return None
    if not family.levels_are_ordered:
        return ordered_levels(source, name)
    if name not in ordered:
        raise DataError(
            f"The response {name!r} is text without an order; write its levels from low to high, as in "
            f"\"C({name}, levels=['low', 'mid', 'high']) ~ ...\", or make it an ordered categorical."
        )
    return ordered[name]


def _advice_on_exposure(text: str) -> str:
    inside = _LOGARITHM.fullmatch(text)
    if inside is not None:
        return f"give exposure={inside[1]!r} instead: its logarithm is taken for you."
    return "drop those rows: nothing was at risk in them."


def _expression(role: str, given: str | None, columns: Sequence[str] = ()) -> Expression | None:
    if given is None:
        return None
    if not isinstance(given, str):
        raise OptionError(
            f"{role} must be the name of a column, or an expression of columns such as 'np.log(months)'; "
            f"{type(given).__name__} was given."
        )
    # The name of a column may look like arithmetic.
    expression = parse_expression(quoted(given) if given in columns else given)
    if expression.transforms or expression.category is not None:
        raise ModelError(f"{role} {given!r} must be a column or an elementwise expression of columns.")
    return expression
