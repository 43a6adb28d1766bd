"""Bayesian neural networks."""

from streaming_gp.bnn.mean_field import MeanFieldBNN

__all__ = ["MeanFieldBNN"]
