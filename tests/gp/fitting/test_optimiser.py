"""How a local free energy is maximised."""

import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp.errors import InvalidDataError, NumericalError
from streaming_gp.gp.fitting.optimiser import minimise


def test_the_optimiser_turns_back_from_where_the_loss_is_not_finite():
    def loss(point):
        x = point[0]
        return (np.nan if x > 2.0 else -x), np.array([-1.0])

    bounds, seen = [(None, None)], []
    best, iterations = minimise(
        loss, np.zeros(1), bounds, "L-BFGS-B", 50, lambda i, f: seen.append((i, f))
    )
    assert 1.0 < best[0] <= 2.0
    assert [i for i, _ in seen] == list(range(1, iterations + 1))
    assert seen[-1][1] == pytest.approx(best[0])


def test_the_optimiser_refuses_a_start_that_is_not_finite():
    with pytest.raises(NumericalError, match="cavity covariance"):
        minimise(
            lambda x: (np.nan, x), np.zeros(2), [(None, None)] * 2, "L-BFGS-B", 5, lambda *_: None
        )


@pytest.mark.parametrize(
    "options", [{"max_iterations": 0}, {"rounds": 0}, {"site_damping": 0.0}, {"site_damping": 2.0}]
)
def test_senseless_optimisers_are_refused(options):
    with pytest.raises(InvalidDataError, match=next(iter(options))):
        sgp.LocalOptimiser(**options)
