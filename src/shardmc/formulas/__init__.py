"""Generalised linear models from formulas: fitting, priors, prediction."""

from shardmc.formulas.contrasts import contrast, marginal_effects
from shardmc.formulas.design import Design, design_of
from shardmc.formulas.families import (
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
from shardmc.formulas.group_effects import effect_draws, effects
from shardmc.formulas.loo import loo_of_formula, with_rows_of_formula
from shardmc.formulas.piecewise import predict_file
from shardmc.formulas.predicting import predict
from shardmc.formulas.predictive_check import posterior_predictive_check
from shardmc.formulas.priors import Prior
from shardmc.formulas.regression import glm

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
    "contrast",
    "design_of",
    "effect_draws",
    "effects",
    "glm",
    "loo_of_formula",
    "marginal_effects",
    "posterior_predictive_check",
    "predict",
    "predict_file",
    "with_rows_of_formula",
]
