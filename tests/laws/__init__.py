"""Laws: what must hold of the numbers, with oracles that are independent of the package."""

import pytest

from streaming_gp import pvi

LBFGS = pvi.VariationalUpdate(batch_size=None, optimiser=pvi.LBFGS())
"""A client fits to the optimum of its own free energy."""
eager = pytest.mark.usefixtures("eager")
"""Of what runs once or so, which takes longer to trace than to run."""


def slow(*values):
    """A case that runs with the slow tests: another one of its kind is quick."""
    return pytest.param(*values, marks=pytest.mark.slow)
