"""A Gaussian pushed through a map that clients share: its limits, its bound, and what it learns."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from streaming_gp import datasets, linear, mixture, pvi
from streaming_gp.errors import InvalidDataError
from streaming_gp.flow import FlowModel
from tests.tolerances import THROUGH_CHOLESKY

tfb = tfp.bijectors
LBFGS = pvi.VariationalUpdate(batch_size=None, optimiser=pvi.LBFGS())
SHEAR = np.array([[2.0, 0.0], [0.5, 0.3]])
SHIFT = np.array([0.7, -1.1])


@pytest.fixture
def data(rng):
    X = rng.standard_normal((12, 2))
    return X, X @ np.array([[1.0], [-2.0]]) + 0.3 * rng.standard_normal((12, 1))


def fitted(model, data, number=2, rounds=8, **settings):
    shards = datasets.partition_iid(*data, number)
    server = pvi.Server(model.prior(), pvi.make_clients(model, shards, LBFGS))
    pvi.fit(server, pvi.Sequential(), rounds, **settings)
    return server.posterior


def affine():
    return tfb.Chain([tfb.Shift(SHIFT), tfb.ScaleMatvecTriL(SHEAR)])


@pytest.mark.parametrize("bijector", [tfb.Identity(), affine()], ids=["identity", "affine"])
def test_through_a_linear_map_the_posterior_is_the_exact_one(data, bijector):
    model = linear.BayesianLinearRegression(2, 0.09)
    flow = FlowModel(model, bijector, num_data=12)
    q = fitted(flow, data)
    exact = (model.prior().as_factor() * model.likelihood_factor(*data)).normalised()
    theta = exact.sample(5, seed=1)
    np.testing.assert_allclose(
        flow.log_prob(q, theta), exact.log_prob(theta), rtol=THROUGH_CHOLESKY
    )
    draws = np.asarray(flow.sample(q, 20_000))
    np.testing.assert_allclose(draws.mean(axis=0), exact.mean, atol=0.01)


def test_the_bound_is_then_the_log_evidence(data):
    model = linear.BayesianLinearRegression(2, 0.09)
    flow = FlowModel(model, affine(), num_data=12)
    q = fitted(flow, data, number=1, rounds=1)
    bound = flow.expected_log_likelihood(q, *data, None) - q.kl_divergence(flow.prior())
    evidence = (model.prior().as_factor() * model.likelihood_factor(*data)).log_integral()
    np.testing.assert_allclose(bound, evidence, rtol=THROUGH_CHOLESKY)


def skewed():
    variables = tf.Variable(0.0, dtype=tf.float64), tf.Variable(0.0, dtype=tf.float64)
    tails = tfp.util.DeferredTensor(variables[1], tf.exp)
    return tfb.SinhArcsinh(skewness=variables[0], tailweight=tails)


def divergence(log_q, log_joint, theta):
    """KL(q ‖ p) on a grid."""
    step = theta[1] - theta[0]
    q, p = (np.exp(one - np.max(one)) for one in (log_q, log_joint))
    q, p = q / (step * q.sum()), p / (step * p.sum())
    return step * np.sum(q * (np.log(q) - np.log(p)))


def test_a_learned_map_comes_nearer_to_a_skewed_posterior():
    X, Y = np.ones((6, 1)), np.ones((6, 1))  # six successes: the weight is large, how large unknown
    model = linear.logistic_regression(1, prior_variance=9.0)
    flow = FlowModel(model, skewed(), num_data=6, num_samples=200)
    q = fitted(flow, (X, Y), rounds=20, hyperparameters=pvi.LikelihoodParameters())
    theta = np.linspace(-3.0, 14.0, 4000)
    joint = model.prior().log_prob(theta[:, None]) + model.log_likelihood(theta[:, None], X, Y)
    gaussian = fitted(model, (X, Y)).log_prob(theta[:, None])
    plain = divergence(gaussian.numpy(), joint.numpy(), theta)
    found = divergence(flow.log_prob(q, theta[:, None]).numpy(), joint.numpy(), theta)
    assert found < 0.1 * plain


def test_what_it_refuses():
    model = linear.logistic_regression(1)
    with pytest.raises(InvalidDataError, match="num_data"):
        FlowModel(model, tfb.Identity(), num_data=0)
    with pytest.raises(InvalidDataError, match="bijector"):
        FlowModel(model, np.exp, num_data=3)
    with pytest.raises(InvalidDataError, match=r"log_likelihood.*a flow"):
        FlowModel(mixture.GaussianMixture(2, 2), tfb.Identity(), num_data=3)
