"""Likelihoods that are not log-concave: sites have several optima, and bad ones are passed by."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf

import streaming_gp as sgp
from streaming_gp.gp.bounds.sites import Sites
from streaming_gp.gp.fitting.solver import Batch
from tests.gp.builders import FIXED, kernel

WIDE, RARE = 25.0, 0.1


class Contaminated(gpflow.likelihoods.ScalarLikelihood):
    """A tenth of the data are of wide noise."""

    def __init__(self, variance=0.05):
        super().__init__()
        self.variance = gpflow.Parameter(variance, transform=gpflow.utilities.positive())

    def _scalar_log_prob(self, X, F, Y):
        log_density = gpflow.logdensities.gaussian
        near = log_density(Y, F, self.variance) + np.log(1.0 - RARE)
        far = log_density(Y, F, tf.constant(WIDE, tf.float64)) + np.log(RARE)
        return tf.reduce_logsumexp(tf.stack([near, far]), 0)

    def _conditional_mean(self, X, F):
        return tf.identity(F)

    def _conditional_variance(self, X, F):
        return ((1.0 - RARE) * self.variance + RARE * WIDE) * tf.ones_like(F)


def wave(X):
    return 1.2 * np.sin(2.0 * X[:, :1]) * np.cos(X[:, 1:])


@pytest.fixture(scope="module")
def contaminated():
    rng = np.random.default_rng(3)
    X = rng.uniform(-2.0, 2.0, (300, 2))
    is_far = rng.uniform(size=(300, 1)) < RARE
    noise = np.where(is_far, np.sqrt(WIDE), 0.15) * rng.standard_normal((300, 1))
    return X, wave(X) + noise


def smse(model, seed=5):
    X = np.random.default_rng(seed).uniform(-2.0, 2.0, (300, 2))
    mean = np.asarray(model.predict_f(X)[0])
    return np.mean(np.square(mean - wave(X))) / np.var(wave(X))


def test_a_fit_ends_where_maximum_likelihood_does(contaminated):
    """Within five nats: from what sites are while ε moves, and not from nothing at narrow noise."""
    model = sgp.StreamingGP(
        kernel(), Contaminated(), hyperparameters=sgp.PointHyperparameters(), seed=0
    )
    found = model.update(contaminated).free_energy
    oracle = gpflow.models.SVGP(kernel(), Contaminated(), contaminated[0].copy())
    gpflow.set_trainable(oracle.inducing_variable, False)
    loss = oracle.training_loss_closure(contaminated)
    gpflow.optimizers.Scipy().minimize(loss, oracle.trainable_variables, options={"maxiter": 300})
    assert found > -loss().numpy() - 5.0
    assert smse(model) < 0.015


def test_so_does_one_with_a_distribution_over_hyperparameters(contaminated):
    model = sgp.StreamingGP(kernel(), Contaminated(), seed=0)
    model.update(contaminated)
    assert smse(model) < 0.02


def test_of_two_starts_the_better_one_counts(contaminated):
    """At narrow noise sites that start with nothing said end around a bad optimum."""
    X, _ = contaminated
    smooth = gpflow.kernels.SquaredExponential(2.0, [0.9, 1.4])
    model = sgp.StreamingGP(smooth, Contaminated(0.015), hyperparameters=FIXED)
    from_nothing = model.update(contaminated, learn=False).free_energy

    def bound_from(f):
        """Where sites start about f."""
        precision = np.full_like(f, 1.0 / 0.015)
        sites = Sites(f * precision, precision)
        batch = Batch("batch", contaminated, seed=0, learn=False, sites=sites)
        _, report = model._compiled.fitter.fit(
            model.prior(), batch, lambda candidates: candidates.inputs, move=False
        )
        return report.free_energy

    assert bound_from(wave(X)) > from_nothing + 100.0
    assert bound_from(-wave(X)) == from_nothing
