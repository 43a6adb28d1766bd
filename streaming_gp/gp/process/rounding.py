"""How far rounding may take variances, as parts of the prior's."""

SMALLEST_VARIANCE, MOST_ROUNDING = 1e-12, 0.5
"""Below the one rounding is cut off, and below zero it is less than the other."""
