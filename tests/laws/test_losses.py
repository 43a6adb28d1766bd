"""Losses: their closed forms against integrals and sums, and what makes them losses at all."""

import gpflow.likelihoods as gl
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import tensorflow as tf

from streaming_gp import losses
from tests.tolerances import ALGEBRA

NOISE = 0.4
GRID = np.linspace(-30.0, 30.0, 60_001)
F, Y = np.array([[0.3], [-2.0], [1.1]]), np.array([[0.1], [1.0], [1.1]])
LOGITS = np.array([[0.3, -1.0, 0.2], [2.0, 0.0, 1.0]])
POWERS = pytest.mark.parametrize("power", [0.6, 1.5, 2.0])
ROBUST = pytest.mark.parametrize("make", [losses.BetaLoss, losses.GammaLoss])


def tensor(values):
    return tf.constant(values, tf.float64)


def beta_loss(p, integral, beta):
    """As PGVI, definition 22, with the constants by which it tends to −log p."""
    return -(p ** (beta - 1.0) - 1.0) / (beta - 1.0) + integral / beta - 1.0


def gamma_loss(p, integral, gamma):
    """As PGVI, definition 23, with the constants by which it tends to −log p."""
    ratio = p ** (gamma - 1.0) / integral ** ((gamma - 1.0) / gamma)
    return -gamma / (gamma - 1.0) * (ratio - 1.0)


FORMULAS = {losses.BetaLoss: beta_loss, losses.GammaLoss: gamma_loss}


@POWERS
@ROBUST
def test_robust_losses_of_a_gaussian_are_their_formulas(make, power):
    density = scipy.stats.norm(F, np.sqrt(NOISE)).pdf(GRID)
    integral = scipy.integrate.simpson(density**power, x=GRID)
    p = scipy.stats.norm(F, np.sqrt(NOISE)).pdf(Y)[:, 0]
    found = make(power)(gl.Gaussian(NOISE), tensor(F), tensor(Y))
    np.testing.assert_allclose(found, FORMULAS[make](p, integral, power), rtol=1e-9)


@POWERS
@ROBUST
def test_robust_losses_of_a_classifier_are_their_formulas(make, power):
    p = np.asarray(tf.nn.softmax(LOGITS))
    labels = np.array([[2.0], [1.0]])
    found = make(power)(gl.Softmax(3), tensor(LOGITS), tensor(labels))
    wanted = FORMULAS[make](p[[0, 1], [2, 1]], (p**power).sum(axis=1), power)
    np.testing.assert_allclose(found, wanted, rtol=ALGEBRA)


@POWERS
@ROBUST
@pytest.mark.parametrize("likelihood", [gl.Softmax(3), gl.Bernoulli()])
def test_robust_losses_are_least_in_expectation_at_the_truth(make, power, likelihood):
    """They are proper: ``E[loss(f, y)]`` is stationary where y is drawn from p(y | f)."""
    f = tensor(LOGITS[:1] if isinstance(likelihood, gl.Softmax) else F[:1])
    labels = range(3 if isinstance(likelihood, gl.Softmax) else 2)
    log_p = [losses.log_density(likelihood, f, tensor([[k]]))[0] for k in labels]
    with tf.GradientTape() as tape:
        tape.watch(f)
        each = [make(power)(likelihood, f, tensor([[k]]))[0] for k in labels]
        expected = tf.add_n([tf.exp(p) * loss for p, loss in zip(log_p, each, strict=True)])
    np.testing.assert_allclose(tape.gradient(expected, f), 0.0, atol=ALGEBRA)


@pytest.mark.parametrize("q", [0.3, 1.0])
def test_generalised_cross_entropy_is_its_formula(q):
    p = np.asarray(tf.nn.softmax(LOGITS))[[0, 1], [2, 1]]
    found = losses.GeneralisedCrossEntropy(q)(gl.Softmax(3), tensor(LOGITS), tensor([[2], [1]]))
    np.testing.assert_allclose(found, (1.0 - p**q) / q, rtol=ALGEBRA)


@pytest.mark.parametrize("outputs", [1, 2])
def test_the_integral_of_a_power_counts_every_output(outputs):
    likelihood, f = gl.Gaussian(NOISE), np.tile(F, (1, outputs))
    density = scipy.stats.norm(0.0, np.sqrt(NOISE)).pdf(GRID)
    one = np.log(scipy.integrate.simpson(density**1.5, x=GRID))
    found = losses.log_power_integral(likelihood, tensor(f), 1.5)
    np.testing.assert_allclose(found, np.full(3, outputs * one), rtol=1e-9)


@pytest.mark.parametrize("power", [-3e-8, 2e-8, 1e-3, 0.5])
def test_box_cox_goes_over_into_its_limit(power):
    values = np.array([-3.0, 0.2, 2.0])
    series = values + power * values**2 / 2 + power**2 * values**3 / 6 + power**3 * values**4 / 24
    wanted = series if abs(power) < 1e-2 else (np.exp(power * values) - 1.0) / power
    np.testing.assert_allclose(losses.box_cox(tensor(values), power), wanted, rtol=1e-9)
    if abs(power) < 1e-7:  # the term of second order, which a sum of squares would drown
        excess = losses.box_cox(tensor([1e6]), power).numpy() - 1e6
        np.testing.assert_allclose(excess, 0.5 * power * 1e12, rtol=0.02)


@pytest.mark.parametrize("alpha", [0.3, 1.0, 2.5])
def test_the_expected_power_of_a_gaussian_is_its_integral(alpha):
    f = scipy.stats.norm(0.4, np.sqrt(0.7)).pdf(GRID)
    power = scipy.stats.norm(GRID, np.sqrt(NOISE)).pdf(1.3) ** alpha
    expected = np.log(scipy.integrate.simpson(f * power, x=GRID))
    given = (tensor(x) for x in (1.3, 0.4, 0.7, NOISE))
    np.testing.assert_allclose(losses.log_gaussian_power(*given, alpha), expected, rtol=1e-9)


def test_a_generalised_likelihood_is_minus_its_loss_and_predicts_as_its_likelihood():
    inner, loss = gl.Gaussian(NOISE), losses.BetaLoss(1.5)
    likelihood = losses.GeneralisedLikelihood(inner, loss)
    X, f, y = np.zeros((3, 0)), tensor(F), tensor(Y)
    found = likelihood.log_prob(X, f, y)
    np.testing.assert_allclose(found, -loss(inner, f, y), rtol=ALGEBRA)
    wide = likelihood._scalar_log_prob(X, tf.tile(f, [1, 2]), y)  # over nodes of a quadrature
    np.testing.assert_allclose(wide, np.tile(-loss(inner, f, y)[:, None], (1, 2)), rtol=ALGEBRA)
    variance = tensor(np.full((3, 1), 0.2))
    for name in ("predict_mean_and_var", "predict_log_density"):
        given = (X, f, variance) if name == "predict_mean_and_var" else (X, f, variance, y)
        for a, b in zip(
            getattr(likelihood, name)(*given), getattr(inner, name)(*given), strict=True
        ):
            np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(likelihood.conditional_mean(X, f), inner.conditional_mean(X, f))
    np.testing.assert_array_equal(
        likelihood.conditional_variance(X, f), inner.conditional_variance(X, f)
    )
