"""Exponential families and their unnormalised factors."""

from streaming_gp.expfam.base import ExponentialFamily
from streaming_gp.expfam.dirichlet import Dirichlet
from streaming_gp.expfam.dirichlet_normal_wishart import DirichletNormalWishart
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
from streaming_gp.expfam.normal_wishart import NormalWishart

GAUSSIANS: tuple[type[Gaussian], ...] = (IsotropicNormal, MeanFieldNormal, Normal)
FAMILIES: tuple[type[ExponentialFamily], ...] = (
    *GAUSSIANS, Dirichlet, NormalWishart, DirichletNormalWishart,
)  # fmt: skip
"""The registry: the laws are tested over it, and files may hold its members."""

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
    "FisherRao",
    "GammaDivergence",
    "Gaussian",
    "IsotropicNormal",
    "MeanFieldNormal",
    "Normal",
    "NormalWishart",
    "Renyi",
    "ReverseKL",
]
