"""Exponential families and their unnormalised factors."""

from streaming_gp.expfam.divergences import (
    KL,
    BetaDivergence,
    Divergence,
    Fisher,
    FisherRao,
    GammaDivergence,
    Renyi,
    ReverseKL,
    TotalVariation,
)
from streaming_gp.expfam.family import ExponentialFamily, Factor
from streaming_gp.expfam.normal import Gaussian, IsotropicNormal, MeanFieldNormal, Normal
from streaming_gp.expfam.normal_wishart import Dirichlet, DirichletNormalWishart, NormalWishart

GAUSSIANS: tuple[type[Gaussian], ...] = (IsotropicNormal, MeanFieldNormal, Normal)
FAMILIES: tuple[type[ExponentialFamily], ...] = (
    *GAUSSIANS, Dirichlet, NormalWishart, DirichletNormalWishart,
)  # fmt: skip
"""The registry of families, over which their laws are tested."""

__all__ = [
    "FAMILIES",
    "GAUSSIANS",
    "KL",
    "BetaDivergence",
    "Dirichlet",
    "DirichletNormalWishart",
    "Divergence",
    "ExponentialFamily",
    "Factor",
    "Fisher",
    "FisherRao",
    "GammaDivergence",
    "Gaussian",
    "IsotropicNormal",
    "MeanFieldNormal",
    "Normal",
    "NormalWishart",
    "Renyi",
    "ReverseKL",
    "TotalVariation",
]
