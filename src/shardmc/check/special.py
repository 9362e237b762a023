"""SciPy's special functions by their names. SciPy is loaded with the first of them: that takes a fifth of a second.

>>> from shardmc.check import special
>>> float(special.ndtr(0.0))
0.5
"""

from __future__ import annotations

from importlib import import_module

import numpy as np


def __getattr__(name: str) -> np.ufunc:
    return getattr(import_module("scipy.special"), name)
