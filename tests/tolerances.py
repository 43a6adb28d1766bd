"""The tolerances that tests compare at, by what separates the two sides."""

ALGEBRA = 1e-9
"""Sums and products in another order."""
EXPORTED = 1e-10
"""The same predictions by another library, relative to their scale."""
THROUGH_CHOLESKY = 1e-6
"""A factorisation of a covariance, with its nugget."""
THROUGH_NUGGET = 1e-5
"""Pseudo-points whose white noise the other side does not have."""
FREE_ENERGY_AT_OPTIMUM = 1e-4
"""Two optimisers of one objective: what they reach."""
PREDICTIONS_AT_OPTIMUM = 5e-3
"""Two optimisers of one objective: what follows from where they stop."""
STANDARD_ERRORS = 4.0
"""An estimate and its expectation, in standard errors."""
