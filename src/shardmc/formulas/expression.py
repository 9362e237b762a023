"""Expressions in formulas: which are allowed, which columns they read, and their values on some rows.

Only listed functions are allowed, so that a formula read from a file is harmless. They must be elementwise, because a
table is read piece by piece: the mean or rank of a piece is not that of the table. Transforms that need all rows, such
as scale(x), get what they need from the first pass over the table.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np
from formulaic.transforms import TRANSFORMS as FUNCTIONS
from formulaic.utils.code import sanitize_variable_names

from shardmc.errors import DataError, ModelError, unknown
from shardmc.formulas.chunk import Chunk, Level
from shardmc.formulas.transforms import TRANSFORMS, Transform, source_of
from shardmc.guards.limits import refuse_above

_ELEMENTWISE = """
abs absolute arccos arcsin arctan arctan2 cbrt ceil clip cos cosh exp exp2 expm1 fabs floor fmax fmin
hypot log log10 log1p log2 logical_and logical_not logical_or maximum minimum mod power sign sin sinh
sqrt square tan tanh trunc where
"""
_NUMPY = frozenset(_ELEMENTWISE.split())
_NUMBERS = frozenset(["pi", "e"])
_PLAIN = frozenset(["I", "exp", "exp2", "log", "log10", "log2"])
_CONTRASTS = frozenset(["Diff", "Helmert", "Poly", "Sum", "Treatment"])
_CODINGS = frozenset(["SAS", "diff", "helmert", "poly", "sum", "treatment"])
_NODES = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Call, ast.keyword, ast.Name, ast.Constant)
_NODES += (ast.List, ast.Tuple, ast.Attribute, ast.Load, ast.operator, ast.unaryop, ast.cmpop)
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)
_ARITHMETIC += (ast.BitAnd, ast.BitOr, ast.BitXor)
_SYMBOLS = "+ - * / // % ** & | ^"
_LARGEST_POWER = 64
_SPLINE = "write a spline with a fixed number of columns, such as bs(x, df=5) or cr(x, df=5)"
_TRIALS = "give the number of trials as the option trials= (--trials on the command line)"
_ELSEWHERE = {
    "lag": "it reads neighbouring rows, but rows are assigned to shards at random; make it a column first",
    "hashed": "give the levels themselves with C(...)",
    "Q": "quote the column's name in backticks instead",
    "offset": "an offset is a term of its own, as in 'y ~ x + offset(log(z))', or the option offset=",
    "cbind": "cbind(successes, failures) stands on the left of ~, for family 'binomial'",
    "weights": "give weights as the option weights= or survey_weights=",
    "trials": _TRIALS,
    "p": _TRIALS,
    "prop": _TRIALS,
    "proportion": _TRIALS,
    "factor": "write C(...) for a category",
    "relevel": "write C(g, contr.treatment('b')) for a category whose reference level is 'b'",
    "ifelse": "write np.where(...)",
    "Surv": "write the time alone on the left, and give a column that is 1 where the time is censored, and 0 where the "
    "event happened, as the option censored= (--censored on the command line)",
    "gp": f"there are no Gaussian processes; {_SPLINE}",
    "mo": "there are no monotonic effects; write C(...) for a category",
    "ns": _SPLINE,
    "s": _SPLINE,
    "t2": _SPLINE,
    "te": _SPLINE,
}
"""Functions of other programs, and how the same is written here."""
_QUOTED = re.compile("`([^`]+)`")


@final
@dataclass(frozen=True)
class Expression:
    """One expression: the columns that it reads, those that must be numbers, its transforms, its category if any."""

    text: str
    columns: tuple[str, ...]
    numeric: tuple[str, ...]
    code: str = ""
    """The text in Python, with other names for columns quoted in backticks."""
    transforms: tuple[Transform, ...] = ()
    category: str | None = None
    """The argument of C(...)."""
    levels: tuple[Level, ...] | None = None
    """The levels that C(..., levels=[...]) lists."""
    aliases: tuple[tuple[str, str], ...] = ()
    """Python's name -> column, for columns quoted in backticks."""
    functions: frozenset[str] = frozenset()
    """What it calls: C, np, log, ..."""
    column: str | None = None
    """The column, if the whole expression is one quoted column; its name may be anything."""

    @property
    def category_column(self) -> str | None:
        """The column that a category consists of; None if it is an expression."""
        column = dict(self.aliases).get(str(self.category), self.category)
        return column if column in self.columns else None

    def values(self, chunk: Chunk, part: str | None = None) -> np.ndarray:
        """Values on some rows, (row,), of the expression or of the argument of a transform or category in it."""
        if self.column is not None and part is None:
            return np.asarray(chunk[self.column])
        renamed = {new: chunk[old] for new, old in self.aliases}
        return evaluate(self.code if part is None else part, {**chunk, **renamed})


def parse_expression(text: str) -> Expression:
    """Read an expression and refuse what is not allowed in it.

    Examples
    --------
    >>> parse_expression("np.log(income) * age").columns
    ('age', 'income')
    >>> parse_expression("x - x.mean()")
    Traceback (most recent call last):
    shardmc.errors.ModelError: 'x.mean' in 'x - x.mean()' is not allowed: ...
    """
    expression = _parsed(text)
    for transform in expression.transforms:
        made = transform.num_columns
        refuse_above("basis", made, f"{transform.key!r} makes {made:,.0f} columns", ModelError)
    return expression


@lru_cache(maxsize=512)
def _parsed(text: str) -> Expression:
    whole = _QUOTED.fullmatch(text)
    if whole:
        return Expression(text, (whole[1],), (), column=whole[1])
    refuse_words_of_python(text)
    aliases: dict[str, str] = {}
    try:
        code = sanitize_variable_names(text, {}, aliases)
        tree = ast.parse(code, mode="eval")
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ModelError(f"{text!r} in the formula is not understood: {error}.") from None
    _Checker(text).check(tree)
    used = list(_columns(tree))
    columns = tuple(dict.fromkeys(aliases.get(name, name) for name, _ in used))
    for new, old in aliases.items():
        if new != old and any(name == new for name, _ in used) and new in columns:
            raise ModelError(
                f"Columns {old!r} and {new!r} cannot be told apart in {text!r}: rename one of them."
            )
    numeric = tuple(dict.fromkeys(aliases.get(name, name) for name, as_number in used if as_number))
    category, levels = _category(tree)
    transforms = tuple(
        Transform.of(node, _called(node))
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and _called(node) in TRANSFORMS
    )
    called = frozenset(node.id for node in _functions(tree) if isinstance(node, ast.Name))
    return Expression(
        text, columns, numeric, code, transforms, category, levels, tuple(aliases.items()), called
    )


def quoted(name: str) -> str:
    """A column's name as an expression needs it: in backticks if it is not a Python name.

    >>> quoted("age"), quoted("a/b"), quoted("class")
    ('age', '`a/b`', '`class`')
    """
    return name if name.isidentifier() and not keyword.iskeyword(name) else f"`{name}`"


def refuse_words_of_python(text: str) -> None:
    """Refuse quoted names that are Python keywords: a table can hold them, but no expression can compute with them."""
    for name in _QUOTED.findall(text):
        if keyword.iskeyword(name):
            raise ModelError(
                f"{text!r} computes with the column {name!r}, whose name is a Python keyword: rename the column."
            )


def evaluate(text: str, chunk: Chunk) -> np.ndarray:
    """Values of an expression on some rows: numbers (row,), or text.

    >>> evaluate("np.log(x) * 2", {"x": np.array([1.0, np.e])})
    array([0., 2.])
    """
    try:
        with np.errstate(all="ignore"):
            # `parse_expression` has allowed it: it calls nothing but listed functions.
            value = eval(text, {"__builtins__": {}, **FUNCTIONS}, dict(chunk))
    except Exception as error:
        raise ModelError(f"{text!r} in the formula cannot be computed: {error}.") from error
    value = getattr(value, "__wrapped__", value)  # what I(...) wraps
    length = len(next(iter(chunk.values())))
    array = np.asarray(value)
    if array.ndim == 0:
        array = np.full(length, array)
    if array.shape != (length,):
        raise ModelError(
            f"{text!r} in the formula gives shape {array.shape} for {length} rows; it must give one value per row."
        )
    return array


def check_columns(expression: Expression, available: Mapping[str, str]) -> None:
    """Refuse columns that do not exist, and text where numbers are needed; `available` is name -> kind."""
    for name in expression.columns:
        if name not in available:
            raise unknown("column", name, available)
    for name in expression.numeric:
        if available[name] == "text":
            raise DataError(
                f"Column {name!r} holds text or a category, but {expression.text!r} needs numbers; make the "
                f"column numbers first, or write C({name}) to use its values as levels."
            )


class _Checker:
    """Refuses every part of an expression that is not on the lists above."""

    def __init__(self, text: str) -> None:
        self.text = text

    def check(self, tree: ast.Expression) -> None:
        for node in ast.walk(tree):
            if not isinstance(node, _NODES):
                raise self._refusal(node, "use only arithmetic, comparisons and functions")
            if isinstance(node, ast.Attribute):
                self._check_attribute(node)
            elif isinstance(node, ast.Call):
                self._check_call(node)
            elif isinstance(node, ast.BinOp):
                self._check_arithmetic(node)
        self._check_nesting(tree)

    def _check_attribute(self, node: ast.Attribute) -> None:
        home = node.value.id if isinstance(node.value, ast.Name) else ""
        if (home == "np" and node.attr in _NUMPY | _NUMBERS) or (home == "contr" and node.attr in _CODINGS):
            return
        raise self._refusal(node, f"of NumPy, use only {', '.join(sorted(_NUMPY | _NUMBERS))}")

    def _check_call(self, node: ast.Call) -> None:
        name = _called(node)
        if name in _ELSEWHERE:
            raise self._refusal(node, _ELSEWHERE[name])
        if name in _NUMPY - _PLAIN:
            raise self._refusal(node.func, f"write np.{name}(...)")
        known = _PLAIN | TRANSFORMS | _CONTRASTS | {"C"}
        if not isinstance(node.func, ast.Attribute) and name not in known:
            functions = ", ".join([*sorted(known), "np.log and other functions of NumPy"])
            raise self._refusal(node.func, f"it is not a known function; the known ones are {functions}")
        if name in TRANSFORMS | {"C"} and (not node.args or isinstance(node.args[0], ast.Constant)):
            raise self._refusal(node, "it needs a column to be applied to")
        if name == "C":
            self._check_category(node)

    def _check_category(self, node: ast.Call) -> None:
        """Options of C(...): a coding, and a list of levels."""
        options = {k.arg: k.value for k in node.keywords}
        levels = options.get("levels")
        listed = isinstance(levels, ast.List | ast.Tuple) and all(map(_is_plain, levels.elts))
        if levels is not None and not listed:
            raise self._refusal(node, "levels must be a list of levels, such as ['a', 'b']")
        coding = node.args[1] if len(node.args) > 1 else options.get("contrasts")
        function = coding.func if isinstance(coding, ast.Call) else coding
        bare = isinstance(coding, ast.Name) and coding.id in _CONTRASTS - {"Treatment"}
        called = coding is not function and isinstance(function, ast.Name) and function.id in _CONTRASTS
        if coding is not None and not (bare or called or isinstance(function, ast.Attribute)):
            raise self._refusal(node, "the coding must be contr.sum, contr.treatment('a') or the like")

    def _check_arithmetic(self, node: ast.BinOp) -> None:
        if not isinstance(node.op, _ARITHMETIC):
            raise self._refusal(node, f"use only arithmetic with {_SYMBOLS}")
        for part in (node.left, node.right):
            is_text = isinstance(part, ast.Constant) and isinstance(part.value, str | bytes)
            if is_text or isinstance(part, ast.List | ast.Tuple):
                raise self._refusal(node, "there is no arithmetic with text or lists")
        powers = [part.value for part in (node.left, node.right) if isinstance(part, ast.Constant)]
        if isinstance(node.op, ast.BitXor) and powers:
            raise self._refusal(node, f"a power is written **, as in {source_of(node).replace('^', '**')}")
        if isinstance(node.op, ast.Pow) and self._exponent(node) > _LARGEST_POWER:
            raise self._refusal(node, f"the product of nested exponents must be at most {_LARGEST_POWER}")

    def _exponent(self, node: ast.BinOp) -> float:
        """The largest product of the exponents of a power and of the powers in its base: that is its real exponent."""
        largest = 1.0
        waiting: list[tuple[ast.AST, float]] = [(node, 1.0)]
        while waiting:
            part, power = waiting.pop()
            if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Pow):
                exponent = part.right.operand if isinstance(part.right, ast.UnaryOp) else part.right
                value = exponent.value if isinstance(exponent, ast.Constant) else None
                if not isinstance(value, int | float) or abs(value) > _LARGEST_POWER:
                    raise self._refusal(part, f"the exponent must be a number up to {_LARGEST_POWER}")
                power *= max(abs(value), 1.0)
                largest = max(largest, power)
            waiting += [(child, power) for child in ast.iter_child_nodes(part)]
        return largest

    def _check_nesting(self, tree: ast.Expression) -> None:
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            inside = [
                n for part in (*node.args, *node.keywords) for n in ast.walk(part) if isinstance(n, ast.Call)
            ]
            calls = {_called(n) for n in inside}
            if _called(node) in TRANSFORMS | {"C"} and calls & TRANSFORMS:
                raise self._refusal(
                    node,
                    "a transform of a transform needs another pass over the table; make the inner one a column",
                )
            if "C" in calls:
                raise self._refusal(node, "C(...) must stand by itself")
        stands_alone = isinstance(tree.body, ast.Call) and _called(tree.body) == "C"
        if not stands_alone and any(isinstance(n, ast.Call) and _called(n) == "C" for n in ast.walk(tree)):
            raise self._refusal(tree.body, "C(...) must stand by itself")

    def _refusal(self, node: ast.AST, reason: str) -> ModelError:
        return ModelError(f"{source_of(node)!r} in {self.text!r} is not allowed: {reason}.")


def _called(node: ast.Call) -> str:
    """The plain name of the function; empty for np.log and the like."""
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _functions(tree: ast.Expression) -> Iterator[ast.expr]:
    """Names of functions, of modules, and of contrasts in options of C(...)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield node.func
            if _called(node) == "C":
                options = (*node.args[1:], *(k.value for k in node.keywords))
                yield from (n for n in options if isinstance(n, ast.Name) and n.id in _CONTRASTS)
        elif isinstance(node, ast.Attribute):
            yield node.value


def _columns(tree: ast.Expression) -> Iterator[tuple[str, bool]]:
    """Names of columns, and whether each must hold numbers at that place."""
    functions = {id(node) for node in _functions(tree)}
    free: set[int] = set()  # names that may be text: in comparisons, or as categories
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            free |= {id(n) for n in node.args[:1]} if _called(node) in ("C", "I") else set()
        elif isinstance(node, ast.Compare):
            free |= {id(n) for n in (node.left, *node.comparators)}
    if isinstance(tree.body, ast.Name):
        free.add(id(tree.body))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and id(node) not in functions:
            yield node.id, id(node) not in free


def _is_plain(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except ValueError:
        return False
    return True


def _category(tree: ast.Expression) -> tuple[str | None, tuple[Level, ...] | None]:
    node = tree.body
    if not (isinstance(node, ast.Call) and _called(node) == "C"):
        return None, None
    levels = next((k.value for k in node.keywords if k.arg == "levels"), None)
    listed = None if levels is None else tuple(ast.literal_eval(levels))
    return source_of(node.args[0]), listed
