"""What the loop asks of a model: a posterior, factors, and a local fit.

Exponential families and streaming Gaussian processes both satisfy these protocols; the loop in
:mod:`streaming_gp.pvi.client_pass` knows nothing else about them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, TypeVar


class Factor(Protocol):
    """An approximate likelihood ``t_m``: multiplies, and takes real powers."""

    def __mul__(self, other: Any, /) -> Any: ...

    def __pow__(self, power: float, /) -> Any: ...


class Posterior(Protocol):
    """A prior, cavity or posterior: one type, closed under multiplication by factors."""

    def times(self, factors: Iterable[Any], /) -> Any:
        """``self × Π factors``; raises ``ImproperError`` where that is no distribution."""
        ...

    def __truediv__(self, other: Any, /) -> Any:
        """The factor ``self / other``."""
        ...


P = TypeVar("P", bound=Posterior)
P_contra = TypeVar("P_contra", bound=Posterior, contravariant=True)
R_co = TypeVar("R_co", covariant=True)


class LocalFit(Protocol[P_contra, R_co]):
    """Fits q under a cavity to one client's data: returns ``(q, report)``."""

    def __call__(self, cavity: P_contra, /) -> tuple[Any, R_co]: ...
