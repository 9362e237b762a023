"""Generalised linear models from formulas: fitting, priors, prediction."""

from shardmc.glm.design import Design, design_of
from shardmc.glm.families import (
    FAMILIES,
    Bernoulli,
    Binomial,
    Family,
    Gamma,
    Gaussian,
    NegativeBinomial,
    Ordinal,
    Poisson,
    StudentT,
)
from shardmc.glm.predict import posterior_predictive_check, predict, predict_file
from shardmc.glm.priors import Prior
from shardmc.glm.regression import glm

__all__ = [
    "FAMILIES",
    "Bernoulli",
    "Binomial",
    "Design",
    "Family",
    "Gamma",
    "Gaussian",
    "NegativeBinomial",
    "Ordinal",
    "Poisson",
    "Prior",
    "StudentT",
    "design_of",
    "glm",
    "posterior_predictive_check",
    "predict",
    "predict_file",
]
