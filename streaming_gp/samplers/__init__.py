"""Markov chain kernels for rules that sample tilted distributions."""

from streaming_gp.samplers.nuts import NUTS
from streaming_gp.samplers.sgld import AdaptiveSGLD

__all__ = ["NUTS", "AdaptiveSGLD"]
