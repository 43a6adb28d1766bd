"""Bayesian neural networks."""

from streaming_gp.bnn.mean_field import MeanFieldBNN, MultiHeadBNN, NewHeads
from streaming_gp.bnn.moment_network import MomentNetwork, NoisyMomentNetwork
from streaming_gp.bnn.network import Convolution, Dense, Layer, MaxPool, Network

__all__ = [
    "Convolution",
    "Dense",
    "Layer",
    "MaxPool",
    "MeanFieldBNN",
    "MomentNetwork",
    "MultiHeadBNN",
    "Network",
    "NewHeads",
    "NoisyMomentNetwork",
]
