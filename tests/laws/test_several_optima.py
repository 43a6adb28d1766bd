"""Likelihoods that are not log-concave: sites have several optima, and bad ones are passed by."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf

import streaming_gp as sgp
from streaming_gp.gp.bounds.sites import Sites
from streaming_gp.gp.fitting.solver import Batch
from tests.oracles.builders import FIXED, kernel

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


@pytest.mark.slow
def test_so_does_one_with_a_distribution_over_hyperparameters(contaminated):
    model = sgp.StreamingGP(kernel(), Contaminated(), seed=0)
    model.update(contaminated)
    assert smse(model) < 0.02


def bounds_from(model, data, starts):
    """Of a batch that learns nothing, where sites start with these; None for nothing said."""
    model.update(data, learn=False)
    return [
        model._store.compiled.fitter.fit(
            model.prior(),
            Batch("batch", data, seed=0, learn=False, sites=sites),
            lambda candidates: candidates.inputs,
            move=False,
        )[1].free_energy
        for sites in starts
    ]


def about(f):
    """Sites that say where f is."""
    precision = np.full_like(f, 1.0 / 0.015)
    return Sites(f * precision, precision)


def test_at_narrow_noise_sites_end_at_one_optimum_from_anywhere(contaminated):
    """That of GPflow, whose q(f) is free: means are stationary where sites are cut off, too."""
    X, Y = contaminated
    smooth, likelihood = gpflow.kernels.SquaredExponential(0.8, [0.9, 1.4]), Contaminated(0.015)
    model = sgp.StreamingGP(smooth, likelihood, hyperparameters=FIXED)
    found = bounds_from(model, contaminated, [None, about(wave(X)), about(-wave(X)), about(Y)])
    oracle = gpflow.models.SVGP(smooth, likelihood, X.copy(), whiten=True)
    free = oracle.q_mu, oracle.q_sqrt
    loss = oracle.training_loss_closure(contaminated)
    variables = [one.unconstrained_variable for one in free]
    gpflow.optimizers.Scipy().minimize(loss, variables, options={"maxiter": 300})
    np.testing.assert_allclose(found, -loss().numpy(), atol=0.5)


def classes(seed):
    """Of three levels of the wave, by the robust-max likelihood."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.0, 2.0, (600, 2))[:300]
    noise = 0.1 * rng.standard_normal((600, 1))[:300]
    return X, np.digitize(wave(X) + noise, [-0.5, 0.5]).astype(float)


def robust_max(**options):
    likelihood = gpflow.likelihoods.MultiClass(3)
    return sgp.StreamingGP(kernel(), likelihood, num_latent_gps=3, seed=0, **options)


def test_sites_may_start_where_they_are_known_better(contaminated):
    X, _ = contaminated
    labels = np.digitize(wave(X), [-0.5, 0.5]).astype(float)
    starts = [None, about(2.0 * (labels == np.arange(3)))]
    found = bounds_from(robust_max(hyperparameters=FIXED), (X, labels), starts)
    assert found[1] > found[0] + 1.0


@pytest.mark.slow
def test_a_factor_is_no_worse_than_from_nothing_said():
    """Sites from where the fit had them end lower here, and are not taken."""
    model, data = robust_max(), classes(2)
    model.update(data)
    fitter, (factor,) = model._store.compiled.fitter, model.factors.values()
    epsilon = fitter.location(model.ledger.posterior)
    found = fitter.factorisations.at(epsilon, model.ledger.posterior).log_normaliser
    batch = Batch("batch", data, seed=0, learn=False, epsilon=epsilon)
    _, report = fitter.fit(model.prior(), batch, lambda candidates: candidates.inputs, move=False)
    assert found + factor.log_scale > report.free_energy - 1e-6
