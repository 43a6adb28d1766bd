"""Pseudo-point strategies: how a batch enters the ledger, and what becomes of earlier ones."""

from streaming_gp.gp.strategies.conditional import ConditionalPseudoPoints
from streaming_gp.gp.strategies.independent import IndependentPseudoPoints
from streaming_gp.gp.strategies.own import OwnPseudoPoints
from streaming_gp.gp.strategies.private import PrivatePseudoPoints
from streaming_gp.gp.strategies.protocol import MERGED, Allowed, PseudoPointStrategy
from streaming_gp.gp.strategies.shared import SharedPseudoPoints

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
