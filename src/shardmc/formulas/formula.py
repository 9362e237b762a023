"""A parsed formula: its response, its terms, and the expressions in them."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

from formulaic import Formula as ParsedFormula
from formulaic import SimpleFormula, StructuredFormula
from formulaic.errors import FormulaicError
from formulaic.parser import DefaultFormulaParser
from formulaic.parser.types import ASTNode, Factor, Term

from shardmc.errors import ModelError
from shardmc.formulas.expression import (
    Expression,
    check_columns,
    parse_expression,
    quoted,
    refuse_words_of_python,
)
from shardmc.guards.limits import refuse_above

LONGEST = 100_000  # characters of a formula
_AVAILABLE = "__formulaic_variables_available__"
"""Formulaic's key for the columns of `.`: its error about `.` without a table says to pass them so."""
_ONE = "In a formula, a column called '1' looks like the intercept: rename it, for example to 'x1'."


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


def _parse(text: str, free: Sequence[str] | None = None) -> SimpleFormula | StructuredFormula:
    """What formulaic makes of a formula. `free` are the columns that `.` stands for, if it may have one."""
    if not isinstance(text, str) or len(text) > LONGEST:
        raise ModelError(
            f"A formula must be text such as 'y ~ x1 + x2' of at most {LONGEST} characters; {type(text).__name__} "
            f"{f'of {len(text)} characters ' if isinstance(text, str) else ''}was given."
        )
    try:
        context = None if free is None else {_AVAILABLE: free}
        tree = DefaultFormulaParser().parse(text, target="ast", context=context)
        refuse_above(
            "terms",
            _terms_of(tree, len(free or ())) if isinstance(tree, ASTNode) else 1.0,
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


def _terms_of(tree: ASTNode, columns: int) -> float:
    """An upper bound on the number of terms while formulaic expands a formula. Equal terms count separately.

    `columns` is what `.` stands for. The tree may be deeper than Python's stack.
    """
    counts: dict[int, float] = {}
    waiting = [tree]
    while waiting:
        node = waiting[-1]
        missing = [arg for arg in node.args if isinstance(arg, ASTNode) and id(arg) not in counts]
        if missing:
            waiting += missing
            continue
        waiting.pop()
        counts[id(node)] = _expanded_count(
            node.operator.symbol, [(counts.get(id(arg), 1.0), str(arg)) for arg in node.args], columns
        )
    return counts[id(tree)]


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
    terms = getattr(_parse(text, free), "rhs", None)
    return _joined(left, terms) if isinstance(terms, SimpleFormula) else text


def _joined(left: str, terms: Iterable[Term]) -> str:
    """A formula from its left-hand side and its terms."""
    texts = [":".join(_quoted(factor) for factor in term.factors) for term in terms]
    return f"{left.strip()} ~ {' + '.join(texts if '1' in texts else ['0', *texts])}"


def _quoted(factor: Factor) -> str:
    """A factor as a formula needs it."""
    is_code = factor.eval_method is Factor.EvalMethod.PYTHON
    return "{" + factor.expr + "}" if is_code else _source(factor)
