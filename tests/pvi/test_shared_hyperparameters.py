"""Hyperparameters learned across clients."""

import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from streaming_gp import datasets, linear, pvi
from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import MeanFieldNormal, Normal
from tests.reference import labelled_data, regression_data, server

LBFGS = pvi.VariationalUpdate(batch_size=None, optimiser=pvi.LBFGS())


@pytest.mark.parametrize("family", [Normal, MeanFieldNormal])
def test_the_prior_variance_learned_from_q_is_that_of_most_evidence(rng, family):
    """Orthogonal inputs, so that the mean field is exact as well."""
    X = np.linalg.qr(rng.standard_normal((40, 4)))[0] * 5.0
    Y = X @ np.array([[1.0], [-2.0], [0.5], [3.0]]) + 0.3 * rng.standard_normal((40, 1))
    model = linear.BayesianLinearRegression(4, 0.09, family=family)
    found = server(model, [(X[i::2], Y[i::2]) for i in range(2)], pvi.FixedPointUpdate())
    history = pvi.fit(found, pvi.Synchronous(damping=1.0), 60, hyperparameters=pvi.PriorVariance())
    grid = np.exp(np.linspace(-2.0, 4.0, 601))
    evidence = [
        scipy.stats.multivariate_normal(np.zeros(40), 0.09 * np.eye(40) + s * X @ X.T).logpdf(
            Y[:, 0]
        )
        for s in grid[::10]
    ]
    best = grid[::10][int(np.argmax(evidence))]
    assert history[-1].metrics["prior_variance"] == pytest.approx(best, rel=0.02)


def test_the_noise_variance_learned_across_clients_is_that_of_most_evidence(rng, tmp_path):
    X, Y = regression_data(rng)
    model = linear.BayesianLinearRegression(3, noise_variance=1.0)
    found = server(model, datasets.partition_iid(X, Y, 3), pvi.AnalyticUpdate())
    history = pvi.fit(
        found, pvi.Synchronous(damping=1.0), 80, hyperparameters=pvi.LikelihoodParameters(1.0)
    )
    grid = np.exp(np.linspace(-4.0, 0.0, 2001))
    evidence = [
        scipy.stats.multivariate_normal(cov=s * np.eye(60) + X @ X.T).logpdf(Y[:, 0]) for s in grid
    ]
    best = grid[int(np.argmax(evidence))]
    assert model.noise_variance == pytest.approx(best, rel=5e-3)
    assert history[-1].metrics["gradient_norm"] < 1e-4
    found.save(tmp_path / "run.npz")
    again = pvi.Server.load(tmp_path / "run.npz", model.prior(), found.clients)
    np.testing.assert_array_equal(again.hyperparameters, found.hyperparameters)


def test_models_without_trainable_parameters_learn_none(rng):
    (X, Y), model = labelled_data(rng), linear.logistic_regression(3)
    found = server(model, [(X, Y)], LBFGS)
    with pytest.raises(InvalidDataError, match="no trainable_variables"):
        pvi.fit(found, hyperparameters=pvi.LikelihoodParameters())


def test_only_isotropic_priors_have_one_variance(rng):
    (X, Y), model = regression_data(rng), linear.BayesianLinearRegression(3)
    uneven = Normal(np.zeros(3), np.diag([1.0, 2.0, 3.0]))
    found = pvi.Server(uneven, pvi.make_clients(model, [(X, Y)], pvi.AnalyticUpdate()))
    with pytest.raises(InvalidDataError, match="one variance"):
        pvi.PriorVariance().learn(found)
