"""Counts of several levels on the left of a formula: c(a, b, c) ~ x, or cbind(a, b, c) ~ x."""

from __future__ import annotations

import re

from shardmc.errors import ModelError

_COLUMN = r"\s*(`[^`]+`|[A-Za-z_]\w*)\s*"


def split_counts(text: str) -> tuple[str, tuple[str, ...]]:
    """The formula with the first column alone as its response, and all the columns of counts.

    >>> split_counts("c(bus, car, foot) ~ age")
    ('bus ~ age', ('bus', 'car', 'foot'))
    """
    found = re.match(rf"\s*(?:c|cbind)\(({_COLUMN}(?:,{_COLUMN})*)\)\s*~", text)
    columns = re.findall(_COLUMN, found[1]) if found else []
    if found is None or len(columns) < 3:
        raise ModelError(
            "Family 'multinomial' needs the columns with the counts of three or more levels, as in "
            "'c(bus, car, foot) ~ age'; for two take family 'binomial'."
        )
    if len(set(columns)) < len(columns):
        raise ModelError(f"The counts {found[1].strip()} name a column twice; leave one of them out.")
    return f"{columns[0]} ~{text[found.end() :]}", tuple(name.strip("`") for name in columns)
