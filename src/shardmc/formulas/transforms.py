"""Transforms in formulas that must know all rows, such as scale(x) and bs(x, df=4): their options and their state."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import final

import numpy as np

from shardmc.errors import ModelError
from shardmc.formulas.families import Moments

_SCALINGS = {
    "center": (),
    "scale": ("center", "scale", "ddof"),
    "standardize": ("center", "rescale", "ddof"),
}
"""Function -> its options in their order."""
_BASES = {
    "poly": ("degree",),
    "bs": ("df", "knots", "degree"),
    "cc": ("df", "knots"),
    "cr": ("df", "knots"),
    "cs": ("df", "knots"),
}
"""Function -> its options that say how many columns it makes, in their order."""
_SPLINES = frozenset(_BASES) - {"poly"}
_CONSTRAINED = _SPLINES - {"bs"}
"""Splines whose columns add up to a constant, unless they are constrained."""
TRANSFORMS = frozenset([*_SCALINGS, *_SPLINES, "poly"])


@final
@dataclass(frozen=True)
class Transform:
    """A function that must know all rows, such as scale(x): the key of its state, its argument and its options."""

    function: str
    key: str
    inner: str
    positional: tuple[object, ...] = ()
    named: tuple[tuple[str, object], ...] = ()

    @staticmethod
    def of(node: ast.Call, function: str) -> Transform:
        """The transform that a call in an expression means; its options must be plain values."""
        try:
            positional = tuple(ast.literal_eval(argument) for argument in node.args[1:])
            named = tuple((str(k.arg), ast.literal_eval(k.value)) for k in node.keywords)
        except ValueError:
            raise ModelError(
                f"{source_of(node)!r} is not allowed: options of {function} must be plain numbers, texts or lists."
            ) from None
        frozen = tuple((name, tuple(v) if isinstance(v, list) else v) for name, v in named)
        transform = Transform(function, source_of(node), source_of(node.args[0]), positional, frozen)
        if function in _SCALINGS:
            transform._scaling_options()
        return transform

    def _scaling_options(self) -> dict[str, float]:
        """The options of center, scale or standardize. Refuses those that are not numbers or truth values."""
        found: dict[str, float] = {}
        given = dict(zip(_SCALINGS[self.function], self.positional, strict=False)) | dict(self.named)
        for name, value in given.items():
            is_count = name == "ddof"
            if not isinstance(value, int | float) or (is_count and not isinstance(value, int)):
                wanted = "a whole number" if is_count else "True, False or a number"
                raise ModelError(f"{self.key!r} is not allowed: {name} must be {wanted}.")
            found[name] = value
        return found

    @property
    def num_columns(self) -> float:
        """About how many columns it makes."""
        options = dict(zip(_BASES.get(self.function, ()), self.positional, strict=False)) | dict(self.named)
        sizes = [
            len(value) if isinstance(value, tuple | list) else value
            for name, value in options.items()
            if name in ("degree", "df", "knots")
        ]
        return max([1, *(size for size in sizes if isinstance(size, int | float))])

    def state(self, moments: Moments, has_intercept: bool = False) -> dict[str, object]:
        """What it must know of all rows, given the moments of its argument.

        Means, scales and the bounds of splines are exact. Knots at quantiles and orthogonal polynomials are not here:
        they are learned from a sample. Beside an intercept, splines whose columns add up to a constant are centred.
        """
        if self.function in _SPLINES:
            known: dict[str, object] = {"lower_bound": float(moments.low), "upper_bound": float(moments.high)}
            if has_intercept and self.function in _CONSTRAINED:
                known["constraints"] = "center"
            return {name: value for name, value in known.items() if name not in dict(self.named)}
        return self._scaling(moments) if self.function in _SCALINGS else {}

    def _scaling(self, moments: Moments) -> dict[str, object]:
        options = self._scaling_options()
        by = options.get("rescale", options.get("scale", self.function != "center"))
        center = options.get("center", True)
        middle = float(moments.mean) if center is True else None if center is False else float(center)
        ddof = options.get("ddof", 0 if self.function == "standardize" else 1)
        about = 0.0 if middle is None else middle
        squares = float(moments.squares) + moments.count * (float(moments.mean) - about) ** 2
        spread = float(np.sqrt(squares / (moments.count - ddof))) if by is True else None
        return {
            "ddof": ddof,
            "center": middle,
            "scale": spread if by is True else None if by is False else float(by),
        }


def source_of(node: ast.AST) -> str:
    """Source code on one line; formulaic's keys of transforms are written the same way."""
    return ast.unparse(node).replace("\n", " ")
