"""How a local free energy is maximised."""

import gpflow
import numpy as np
import pytest
import scipy.optimize

import streaming_gp as sgp
from streaming_gp.errors import NumericalError
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


@pytest.mark.parametrize("tolerance", [0.0, 0.1, 2.0])
def test_five_iterations_that_gain_too_little_are_the_last(tolerance):
    def valley(x):
        return scipy.optimize.rosen(x), scipy.optimize.rosen_der(x)

    seen = []
    start, free = np.array([-1.2, 1.0]), [(None, None)] * 2
    _, iterations = minimise(
        valley, start, free, "L-BFGS-B", 100, lambda _, f: seen.append(f), tolerance
    )
    gains = np.array(seen[5:]) - seen[:-5]
    assert len(seen) == iterations
    assert (gains[:-1] >= tolerance).all()
    assert (gains[-1] < tolerance) == (tolerance > 0.0)
    assert (seen[-1] > -1e-6) == (tolerance == 0.0)


def test_the_optimiser_refuses_a_start_that_is_not_finite():
    with pytest.raises(NumericalError, match="cavity covariance"):
        minimise(
            lambda x: (np.nan, x), np.zeros(2), [(None, None)] * 2, "L-BFGS-B", 5, lambda *_: None
        )


def test_the_width_of_q_does_not_halve_with_every_batch(rng):
    inputs = rng.uniform(-2.0, 2.0, (4, 50, 4))
    batches = [(X, np.sin(X[:, :1]) + 0.3 * rng.standard_normal((50, 1))) for X in inputs]

    def widths(**settings):
        model = sgp.StreamingGP(
            gpflow.kernels.SquaredExponential(lengthscales=np.ones(4)),
            gpflow.likelihoods.Gaussian(0.1),
            pseudo_points=sgp.SharedPseudoPoints(30),
            optimiser=sgp.LocalOptimiser(max_iterations=5, **settings),
            seed=0,
        )
        for batch in batches:
            model.update(batch)
        return np.sqrt(model.hyperparameter_posterior.variance)

    unknown = slice(2, 4)  # the lengthscales of inputs that do not matter
    assert (widths(epsilon_iterations=0)[unknown] < 0.5 * widths()[unknown]).all()
