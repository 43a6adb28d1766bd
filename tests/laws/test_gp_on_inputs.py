"""A Gaussian process on inputs that are given, in clients that are private or not."""

import gpflow
import numpy as np

from streaming_gp import linear, pvi
from tests.oracles.reference import server
from tests.tolerances import THROUGH_NUGGET


def test_clients_on_one_grid_reach_the_sparse_posterior_of_all_their_data(rng):
    X = rng.uniform(-3.0, 3.0, (60, 1))
    Y = np.sin(2.0 * X) + 0.2 * rng.standard_normal((60, 1))
    kernel, grid = gpflow.kernels.Matern32(1.3, 0.8), np.linspace(-3.0, 3.0, 9)[:, None]
    model = linear.GPOnInputs(kernel, gpflow.likelihoods.Gaussian(0.04), grid)
    found = server(model, [(X[k::3], Y[k::3]) for k in range(3)], pvi.FixedPointUpdate())
    pvi.fit(found, pvi.Synchronous(damping=1.0))
    oracle = gpflow.models.SGPR((X, Y), kernel, gpflow.inducing_variables.InducingPoints(grid))
    oracle.likelihood.variance.assign(0.04)
    new = np.linspace(-2.9, 2.9, 20)[:, None]
    for a, b in zip(model.predict(found.posterior, new), oracle.predict_y(new), strict=True):
        np.testing.assert_allclose(a, b, rtol=THROUGH_NUGGET, atol=THROUGH_NUGGET)


def test_it_predicts_at_inputs_of_several_columns(rng):
    grid = rng.standard_normal((5, 2))
    model = linear.GPOnInputs(
        gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian(0.1), grid
    )
    assert model.num_inputs == 2
    assert model.prior().mean.shape == (5,)
    mean, variance = model.predict(model.prior(), rng.standard_normal((4, 2)))
    np.testing.assert_allclose(mean, 0.0)
    np.testing.assert_allclose(variance, 1.1, rtol=THROUGH_NUGGET)
