"""Exponential families and their unnormalised factors."""

from streaming_gp.expfam.base import ExponentialFamily
from streaming_gp.expfam.divergences import (
    KL,
    BetaDivergence,
    Divergence,
    FisherRao,
    GammaDivergence,
    Renyi,
    ReverseKL,
)
from streaming_gp.expfam.factor import Factor
from streaming_gp.expfam.isotropic import IsotropicNormal
from streaming_gp.expfam.normal import Gaussian, MeanFieldNormal, Normal

FAMILIES: tuple[type[ExponentialFamily], ...] = (IsotropicNormal, MeanFieldNormal, Normal)
"""The registry over which the laws are tested."""

__all__ = [
    "FAMILIES",
    "KL",
    "BetaDivergence",
    "Divergence",
    "ExponentialFamily",
    "Factor",
    "FisherRao",
    "GammaDivergence",
    "Gaussian",
    "IsotropicNormal",
    "MeanFieldNormal",
    "Normal",
    "Renyi",
    "ReverseKL",
]
