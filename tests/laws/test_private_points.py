"""Private pseudo-points: as many as the bound gains from."""

import gpflow
import pytest

import streaming_gp as sgp
from tests.oracles.reference import smooth_data


@pytest.mark.slow
def test_automatic_points_follow_what_can_be_gained(rng):
    """More for a rough function than for a smooth one, no more where much is known already."""
    numbers = {}
    for lengthscale in (0.3, 3.0):
        model = sgp.StreamingGP(
            gpflow.kernels.SquaredExponential(lengthscales=lengthscale),
            gpflow.likelihoods.Gaussian(0.1), hyperparameters=sgp.FixedHyperparameters(),
            pseudo_points=sgp.PrivatePseudoPoints("auto"),
        )  # fmt: skip
        X, Y = smooth_data(rng, 200)
        numbers[lengthscale] = model.update((X, Y)).num_pseudo_points
        again = model.update((X + 1e-3, Y)).num_pseudo_points
        assert again <= numbers[lengthscale]
    assert numbers[3.0] < numbers[0.3] / 3
    assert numbers[0.3] <= 100


def test_automatic_points_leave_little_to_gain(rng):
    """The bound with chosen points is within the tolerance of the exact evidence."""
    X, Y = smooth_data(rng, 150)
    make = lambda number: sgp.StreamingGP(  # noqa: E731
        gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian(0.1),
        hyperparameters=sgp.FixedHyperparameters(), pseudo_points=number,
    )  # fmt: skip
    chosen = make(sgp.PrivatePseudoPoints("auto", tolerance=0.01)).update((X, Y))
    exact = make(sgp.PrivatePseudoPoints("all")).update((X, Y))
    assert chosen.num_pseudo_points < 75
    assert 0.0 <= exact.free_energy - chosen.free_energy < 2 * 0.01 * 150


def test_without_a_number_the_bound_decides():
    assert sgp.PrivatePseudoPoints() == sgp.PrivatePseudoPoints("auto")
