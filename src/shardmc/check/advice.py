"""Advice: what to do about a finding, in words, with the options that the call has and no others."""

from __future__ import annotations

from dataclasses import dataclass

_WORDS = {
    "shards": "use fewer shards (shards=)",
    "keep": "keep more rows in every shard (a smaller keep=)",
    "stratify": "spread the levels of that column evenly (stratify=)",
    "polish": "use polish=True (--polish)",
}
"""Option -> the remedy that it offers."""
_ABOUT_SHARDS = frozenset({"shards", "keep", "stratify"})
"""Options that do nothing if there is one shard."""


@dataclass(frozen=True)
class Remedies:
    """What the caller of a run can change.

    Examples
    --------
    >>> Remedies().use("shards", "polish", "use a stronger prior")
    'Use fewer shards (shards=), use polish=True (--polish), or use a stronger prior.'
    >>> Remedies(frozenset()).use("shards", "use a stronger prior")
    'Use a stronger prior.'
    """

    options: frozenset[str] = frozenset(_WORDS)
    """Options of the call that are remedies."""
    one_shard: bool = False
    """Whether there is one shard only."""

    def has(self, option: str) -> bool:
        """Whether the call has this option, and it changes something."""
        return option in self.options and not (self.one_shard and option in _ABOUT_SHARDS)

    def use(self, *remedies: str) -> str:
        """One sentence with the remedies, each an option or words; options that the call lacks are left out."""
        found = [_WORDS.get(each, each) for each in remedies if each not in _WORDS or self.has(each)]
        if not found:
            return ""
        *others, last = found
        if len(others) > 1:
            others = [f"{', '.join(others)},"]
        sentence = " or ".join([*others, last])
        return f"{sentence[0].upper()}{sentence[1:]}."


MEASURED_BY = (
    "To measure it, use check=True in fit, glm, subsample or expectation_propagation, or old_data= in append. "
    "combine_sites has no rows to measure it with."
)
"""Which calls certify their draws."""
ANY = Remedies()
"""Those of a call with all options, and several shards."""
