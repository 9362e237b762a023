"""Transforms in formulas that must know all rows: what they know of them, worked out from moments and ranges."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from shardmc.errors import ModelError
from shardmc.glm.families import Moments

SCALINGS = {
    "center": (),
    "scale": ("center", "scale", "ddof"),
    "standardize": ("center", "rescale", "ddof"),
}
"""Function -> its options in their order."""
SPLINES = frozenset(["bs", "cc", "cr", "cs"])
TRANSFORMS = frozenset([*SCALINGS, *SPLINES, "poly"])


@final
@dataclass(frozen=True)
class Transform:
    """One call, such as scale(x): its function, the key of its state, what it is applied to, and its options."""

    function: str
    key: str
    inner: str
    positional: tuple[Any, ...] = ()
    named: tuple[tuple[str, Any], ...] = ()

    @staticmethod
    def of(node: ast.Call, function: str) -> Transform:
        """The transform that a call in an expression stands for; its options must be plain values."""
        try:
            positional = tuple(ast.literal_eval(argument) for argument in node.args[1:])
            named = tuple((str(k.arg), ast.literal_eval(k.value)) for k in node.keywords)
        except ValueError:
            raise ModelError(
                f"{ast.unparse(node)!r} is not allowed: options of {function} must be plain numbers, texts or lists."
            ) from None
        frozen = tuple((name, tuple(v) if isinstance(v, list) else v) for name, v in named)
        return Transform(
            function, ast.unparse(node).replace("\n", " "), ast.unparse(node.args[0]), positional, frozen
        )

    def state(self, moments: Moments) -> dict[str, Any]:
        """What it knows of all rows, given the moments of what it is applied to.

        Exact for means, scales and the bounds of splines; knots at quantiles and orthogonal polynomials are left to
        be learned from a sample.
        """
        if self.function in SPLINES:
            bounds = {"lower_bound": float(moments.low), "upper_bound": float(moments.high)}
            return {name: value for name, value in bounds.items() if name not in dict(self.named)}
        return self._scaling(moments) if self.function in SCALINGS else {}

    def _scaling(self, moments: Moments) -> dict[str, Any]:
        order = SCALINGS[self.function]
        options = dict(zip(order, self.positional, strict=False)) | dict(self.named)
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
