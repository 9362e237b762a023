"""Findings come in the order of their importance."""

from itertools import permutations

from shardmc.check import ordered
from shardmc.types import Finding


def test_errors_first_and_the_certificate_first_among_equals():
    right = [
        Finding("error", "certificate", "a"),
        Finding("error", "chains", "b"),
        Finding("warning", "agreement", "c"),
        Finding("warning", "chains", "d"),
        Finding("note", "report", "e"),
    ]
    for given in permutations(right):
        assert [f.message for f in ordered(given)] == ["a", "b", "c", "d", "e"]
