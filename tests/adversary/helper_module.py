"""A module that models of the tests read: a constant and a function of another package, as far as they can tell."""

SCALE = 2.0


def log_density(x):
    return -0.5 * (x / SCALE) ** 2
