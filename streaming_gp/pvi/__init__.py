"""Partitioned Variational Inference: a ledger of factors and the client pass that refines it."""

from streaming_gp.pvi.client import PassResult, client_pass
from streaming_gp.pvi.ledger import Ledger
from streaming_gp.pvi.properness import BacktrackDamping, LargestProperFraction, RaiseImproper
from streaming_gp.pvi.protocols import Factor, LocalFit, Posterior

__all__ = [
    "BacktrackDamping",
    "Factor",
    "LargestProperFraction",
    "Ledger",
    "LocalFit",
    "PassResult",
    "Posterior",
    "RaiseImproper",
    "client_pass",
]
