"""Bayesian neural networks."""

from streaming_gp.bnn.layers import Convolution, Dense, Layer, MaxPool
from streaming_gp.bnn.mean_field import MeanFieldBNN
from streaming_gp.bnn.moment_network import MomentNetwork
from streaming_gp.bnn.multi_head import MultiHeadBNN, NewHeads
from streaming_gp.bnn.network import Network
from streaming_gp.bnn.noisy_network import NoisyMomentNetwork

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
