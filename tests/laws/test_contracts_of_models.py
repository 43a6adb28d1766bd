"""Every built-in model passes the check that models of one's own are checked by."""

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp import bnn, linear, mixture, testing
from streaming_gp.expfam import MeanFieldNormal
from streaming_gp.testing.problem import regression, shards_of_regression

X = np.random.default_rng(0).standard_normal((12, 2))
REAL = X[:, :1] - 0.5 * X[:, 1:]
LABELS = (REAL > 0.0).astype(float)
MODELS = {
    "regression": (lambda: linear.BayesianLinearRegression(2), (X, REAL)),
    "mean-field regression": (
        lambda: linear.BayesianLinearRegression(2, family=MeanFieldNormal), (X, REAL)
    ),
    "logistic regression": (lambda: linear.logistic_regression(2), (X, LABELS)),
    "probit regression": (lambda: linear.probit_regression(2), (X, LABELS)),
    "network": (
        lambda: bnn.MeanFieldBNN([2, 3, 1], gpflow.likelihoods.Gaussian(0.1)), (X, REAL)
    ),
    "moment network": (lambda: bnn.MomentNetwork(2, [3]), (X, REAL)),
    "Gaussian process": (
        lambda: sgp.StreamingGP(
            gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian(0.1)
        ),
        (X, REAL),
    ),
    "clutter": (lambda: mixture.ClutterModel(mixture.Clutter([[1.0]]), 1.0), (None, REAL)),
    "mixture": (lambda: mixture.GaussianMixture(3, 2), (None, X)),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_models_do_what_clients_ask_of_them(name):
    make, data = MODELS[name]
    testing.check_model(make(), data)


class Careless(linear.BayesianLinearRegression):
    def as_data(self, X, Y):
        return np.asarray(X), np.asarray(Y)


class Drifting(linear.BayesianLinearRegression):
    calls = 0

    def expected_log_likelihood(self, q, X, Y, seed):
        self.calls += 1
        return super().expected_log_likelihood(q, X, Y, seed) + self.calls


class Unadded(linear.BayesianLinearRegression):
    def likelihood_factor(self, X, Y):
        return super().likelihood_factor(X, Y) ** (1.0 / len(X))


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (object(), "all methods of streaming_gp.pvi.Model"),
        (Careless(2), "Y of NaN is refused"),
        (Drifting(2), "a seed determines the expected log-likelihood"),
        (Unadded(2), "likelihood_factor multiplies over data"),
    ],
)
def test_what_is_wrong_with_a_model_is_said(model, sentence):
    with pytest.raises(AssertionError, match=sentence):
        testing.check_model(model, shards_of_regression()[0])


def test_the_problem_of_the_checks_is_a_model_like_any():
    testing.check_model(regression(), shards_of_regression()[0])
