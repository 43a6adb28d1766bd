"""Predictions of exported models, with NumPy and SciPy alone: no TensorFlow, no GPflow."""

from streaming_gp.runtime.covariance import Kernel
from streaming_gp.runtime.description import Description
from streaming_gp.runtime.kernels import KERNELS, kernel_of
from streaming_gp.runtime.likelihoods import LIKELIHOODS
from streaming_gp.runtime.mean_functions import MEAN_FUNCTIONS
from streaming_gp.runtime.predictor import Predictor, load

__all__ = [
    "KERNELS",
    "LIKELIHOODS",
    "MEAN_FUNCTIONS",
    "Description",
    "Kernel",
    "Predictor",
    "kernel_of",
    "load",
]
