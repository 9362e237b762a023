"""One thread traces at a time, because a model that holds arrays cannot be traced in both precisions at once.

While a trace needs a NumPy array of 64 bits, JAX keeps the type that it converted the array to. Another thread that
traces in the other precision would get that type. Little time is lost: tracing is Python code, and one thread at a time
runs that anyway. Compiling is not part of it.
"""

from __future__ import annotations

import threading

TRACING = threading.RLock()
"""Held while a model is traced."""
