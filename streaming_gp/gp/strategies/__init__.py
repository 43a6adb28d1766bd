"""Pseudo-point strategies: how a batch enters the ledger, and what becomes of earlier ones."""

from streaming_gp.gp.strategies.private import (
    ConditionalPseudoPoints,
    OwnPseudoPoints,
    PrivatePseudoPoints,
)
from streaming_gp.gp.strategies.protocol import MERGED, Allowed, PseudoPointStrategy
from streaming_gp.gp.strategies.shared import IndependentPseudoPoints, SharedPseudoPoints

__all__ = [
    "MERGED",
    "Allowed",
    "ConditionalPseudoPoints",
    "IndependentPseudoPoints",
    "OwnPseudoPoints",
    "PrivatePseudoPoints",
    "PseudoPointStrategy",
    "SharedPseudoPoints",
]
