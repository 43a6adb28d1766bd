"""Bayesian neural networks."""

from streaming_gp.bnn.mean_field import MeanFieldBNN
from streaming_gp.bnn.moment_network import MomentNetwork

__all__ = ["MeanFieldBNN", "MomentNetwork"]
