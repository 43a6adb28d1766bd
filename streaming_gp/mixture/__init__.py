"""Mixture models: a location in clutter, and Bayesian Gaussian mixtures.

Both take data without inputs: a shard is ``(None, Y)`` with Y [N, D].
"""

from streaming_gp.mixture.clutter import Clutter, ClutterModel
from streaming_gp.mixture.gaussian_mixture import BirthUpdate, GaussianMixture

__all__ = ["BirthUpdate", "Clutter", "ClutterModel", "GaussianMixture"]
