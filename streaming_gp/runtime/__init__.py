"""Predictions of exported models, with NumPy and SciPy alone: no TensorFlow, no GPflow."""

from streaming_gp.runtime.kernels import KERNELS, Description, Kernel, kernel_of
from streaming_gp.runtime.predictor import LIKELIHOODS, MEAN_FUNCTIONS, Predictor, load

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
