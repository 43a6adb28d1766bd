"""Local bounds: what a batch's own fit maximises. One file for each paper's formula."""

from streaming_gp.gp.bounds.conditional import Conditional
from streaming_gp.gp.bounds.exact import Exact
from streaming_gp.gp.bounds.independent import Independent
from streaming_gp.gp.bounds.power_ep import PowerEP
from streaming_gp.gp.bounds.problem import LocalModel, Problem
from streaming_gp.gp.bounds.protocol import LocalBound
from streaming_gp.gp.bounds.sites import Sites
from streaming_gp.gp.bounds.sparse import SparseBound
from streaming_gp.gp.bounds.variational import Variational

__all__ = [
    "Conditional",
    "Exact",
    "Independent",
    "LocalBound",
    "LocalModel",
    "PowerEP",
    "Problem",
    "Sites",
    "SparseBound",
    "Variational",
]
