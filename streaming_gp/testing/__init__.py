"""Contract checks: whether a part of your own fits the loop.

There is one for each of: pseudo-point strategies, local bounds, families, models, update rules,
schedules and engines.

Each check is a plain function that raises ``AssertionError`` with a sentence on what is wrong, so
that it serves in any test framework. The package's own parts pass the same checks.
"""

from streaming_gp.testing.local_bound import check_local_bound
from streaming_gp.testing.models import check_family, check_model
from streaming_gp.testing.pseudo_points import check_pseudo_points
from streaming_gp.testing.rounds import check_engine, check_schedule, check_update_rule

__all__ = [
    "check_engine",
    "check_family",
    "check_local_bound",
    "check_model",
    "check_pseudo_points",
    "check_schedule",
    "check_update_rule",
]
