"""One point at a time where the noise is nearly none."""

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp
from tests.oracles.builders import FIXED


@pytest.mark.parametrize("noise", [1e-10, 1e-6, 1e-3])
@pytest.mark.parametrize("dimension", [1, 3])
def test_functions_without_noise_are_learned_for_ever(noise, dimension):
    rng = np.random.default_rng(0)
    slope = rng.standard_normal((dimension, 1))
    X = rng.standard_normal((1500, dimension))
    Y = X @ slope
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(variance=10.0, lengthscales=np.full(dimension, 5.0)),
        gpflow.likelihoods.Gaussian(noise, variance_lower_bound=0.0),
        pseudo_points=sgp.PrivatePseudoPoints("all"),
        hyperparameters=FIXED,
    )
    model.update((X[:20], Y[:20]))
    online = model.online(budget=40)
    errors = []
    for x, y in zip(X[20:], Y[20:], strict=True):
        mean, variance = online.predict(x)
        errors.append(abs(float(mean[0] - y[0])) / np.sqrt(float(variance[0])))
        online.update(x, y)
    assert np.isfinite(online.log_evidence)
    assert max(errors) < 6.0
    assert max(errors[700:]) < 4.0
