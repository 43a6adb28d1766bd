"""q(θ, ε): its limits, its bound, and what it learns."""

import gpflow
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import tensorflow as tf

from streaming_gp import bnn, datasets, linear, pvi
from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import IsotropicNormal, MeanFieldNormal
from streaming_gp.hierarchical import HierarchicalModel
from tests.conftest import fitted_server
from tests.oracles.reference import pooled

NOISE = 0.09
LBFGS = pvi.VariationalUpdate(batch_size=None, optimiser=pvi.LBFGS())


@pytest.fixture(scope="module")
def data():
    """Two weights that matter, and one that does not."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((80, 3))
    return X, X @ np.array([[3.0], [-2.0], [0.0]]) + np.sqrt(NOISE) * rng.standard_normal((80, 1))


def regression():
    return linear.BayesianLinearRegression(3, NOISE)


def fitted(model, data, number=1, rounds=1):
    shards = datasets.partition_iid(*data, number)
    return fitted_server(model, shards, LBFGS, pvi.Sequential(), rounds)


def test_with_scales_that_are_known_it_is_the_model_itself(data):
    model = HierarchicalModel(regression(), scale_sd=0.0)
    found = fitted(model, data)
    q = found.posterior
    exact = pooled(regression(), *data)
    np.testing.assert_allclose(q.mean[:3], exact.mean, rtol=1e-5)
    np.testing.assert_allclose(q.covariance[:3, :3], exact.covariance, rtol=1e-4, atol=1e-9)
    np.testing.assert_allclose(q.covariance[3:, :3], 0.0, atol=1e-7)
    product = regression().prior().as_factor() * regression().likelihood_factor(*data)
    np.testing.assert_allclose(found.history[-1].free_energy, product.log_integral(), rtol=1e-6)


def scale_on_a_grid(X, Y, noise):
    """Log evidence, and mean and sd of the log scale under its posterior."""
    grid = np.linspace(-4.0, 4.0, 401)
    log_joint = scipy.stats.norm.logpdf(grid)
    for number, u in enumerate(grid):
        covariance = noise * np.eye(len(Y)) + np.exp(2.0 * u) * X @ X.T
        log_joint[number] += scipy.stats.multivariate_normal(cov=covariance).logpdf(Y[:, 0])
    density = np.exp(log_joint - log_joint.max())
    total = scipy.integrate.simpson(density, x=grid)
    mean = scipy.integrate.simpson(grid * density, x=grid) / total
    square = scipy.integrate.simpson((grid - mean) ** 2 * density, x=grid) / total
    return np.log(total) + log_joint.max(), mean, np.sqrt(square)


def test_its_free_energy_bounds_the_evidence_and_the_scale_is_near_its_posterior(data):
    """Few and noisy data; q is too narrow, as the docstring says."""
    X, Y = data[0][:12], data[1][:12]
    model = HierarchicalModel(linear.BayesianLinearRegression(3, 4.0), num_samples=256)
    found = fitted(model, (X, Y))
    evidence, mean, sd = scale_on_a_grid(X, Y, 4.0)
    assert evidence - 0.4 < found.history[-1].free_energy < evidence
    (log_scale,), (log_sd,) = model.hyperparameters(found.posterior)["log_scale"]
    assert abs(log_scale - mean) < 0.3 * sd
    assert 0.6 * sd < log_sd < sd


@pytest.mark.slow
def test_the_fixed_point_does_not_depend_on_the_partition(data):
    X, Y = data[0][:12], data[1][:12]
    noisy = linear.BayesianLinearRegression(3, 4.0)
    model = HierarchicalModel(noisy, noise_sd=0.5, num_samples=128)
    alone, three = (fitted(model, (X, Y), *split).posterior for split in ((1, 1), (3, 10)))
    sd = np.sqrt(alone.variance)
    np.testing.assert_allclose((three.mean - alone.mean) / sd, 0.0, atol=0.01)
    np.testing.assert_allclose(
        three.covariance / np.outer(sd, sd), alone.covariance / np.outer(sd, sd), atol=0.01
    )


@pytest.mark.slow
def test_noise_and_relevance_are_learned(data):
    wrong = linear.BayesianLinearRegression(3, noise_variance=2.0)
    model = HierarchicalModel(wrong, groups=range(3), noise_sd=3.0, num_samples=256)
    learned = model.hyperparameters(fitted(model, data, 2, 8).posterior)
    (noise,), (sd,) = learned["log_noise_variance"]
    residual = data[1] - data[0] @ np.linalg.lstsq(*data, rcond=None)[0]
    assert noise == pytest.approx(np.log(np.sum(residual**2) / (80 - 3)), abs=0.1)
    assert sd == pytest.approx(np.sqrt(2.0 / 77), rel=0.2)
    scale, _ = learned["log_scale"]
    assert min(scale[:2]) > scale[2] + 0.3


def network():
    return bnn.MeanFieldBNN([2, 4, 1], gpflow.likelihoods.Gaussian(0.5), prior_variance=2.0)


def test_weights_and_noise_of_a_network_are_what_its_numbers_stand_for(rng):
    net = network()
    groups = net.layer_of_weights
    assert groups.tolist() == [0] * 12 + [1] * 5
    model = HierarchicalModel(net, groups, scale_sd=0.5, noise_sd=2.0)
    phi = rng.standard_normal((3, 17 + 2 + 1)).astype(np.float32)
    theta = np.sqrt(2.0) * np.exp(0.5 * phi[:, 17:19])[:, groups] * phi[:, :17]
    np.testing.assert_allclose(model.weights(phi), theta, rtol=1e-5)
    X, Y = net.as_data(rng.standard_normal((5, 2)), rng.standard_normal((5, 1)))
    variance = 0.5 * np.exp(2.0 * phi[:, -1])
    F = net.outputs(tf.constant(theta), X).numpy()
    wanted = scipy.stats.norm(F, np.sqrt(variance)[:, None, None]).logpdf(Y).sum(axis=(1, 2))
    np.testing.assert_allclose(model.log_likelihood(phi, X, Y), wanted, rtol=1e-4)
    known = HierarchicalModel(net, groups, scale_sd=0.5)
    np.testing.assert_allclose(
        known.log_likelihood(phi[:, :-1], X, Y), net.log_likelihood(theta, X, Y), rtol=1e-5
    )


def test_a_network_learns_its_noise_in_q(rng):
    X = rng.uniform(-1.0, 1.0, (90, 2))
    Y = X[:, :1] + 0.1 * rng.standard_normal((90, 1))
    model = HierarchicalModel(network(), noise_sd=2.0, num_samples=4)
    rule = pvi.VariationalUpdate(epochs=150, batch_size=None, learning_rate=0.02)
    shards = datasets.partition_iid(X, Y, 2)
    found = fitted_server(model, shards, rule, pvi.Sequential(), 4)
    (noise,), _ = model.hyperparameters(found.posterior)["log_noise_variance"]
    assert np.log(0.005) < noise < np.log(0.05)
    predicted = network().predict_by(model.sample(found.posterior), X)
    assert np.sqrt(np.mean((predicted - X[:, :1]) ** 2)) < 0.15
    assert isinstance(found.posterior, MeanFieldNormal)


def test_a_large_network_has_a_prior_and_a_start_without_a_dense_matrix():
    net = bnn.MeanFieldBNN([784, 200, 10], gpflow.likelihoods.Softmax(10))
    model = HierarchicalModel(net, net.layer_of_weights, num_samples=1)
    prior, start = model.prior(), model.initial(0)
    assert prior.mean.shape == start.mean.shape == (159_012,)
    np.testing.assert_array_equal(prior.variance, 1.0)
    np.testing.assert_allclose(start.mean[:-2], net.initial(0).mean, rtol=1e-6)
    np.testing.assert_allclose(start.variance, net.initial(0).variance[0], rtol=1e-4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HierarchicalModel(regression(), groups=[0, 2, 2]), "count from 0 without gaps"),
        (lambda: HierarchicalModel(regression(), groups=[0, 1]), r"groups must be \[3\]"),
        (lambda: HierarchicalModel(regression(), scale_sd=-1.0), "scale_sd must not be negative"),
        (
            lambda: HierarchicalModel(linear.BayesianLinearRegression(3, family=IsotropicNormal)),
            "IsotropicNormal has no widths for hyperparameters",
        ),
        (
            lambda: HierarchicalModel(linear.logistic_regression(3), noise_sd=1.0),
            "only Gaussian noise can be learned, got Logistic",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises(InvalidDataError, match=message):
        make()
