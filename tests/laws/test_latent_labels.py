"""Stochastic EP where each datum has a latent variable (Li et al. 2015, supplement, B.2)."""

import numpy as np
import pytest
import scipy.stats

from streaming_gp import mixture, pvi
from streaming_gp.expfam import Factor, Normal
from tests.conftest import THROUGH_CHOLESKY
from tests.oracles.reference import task_of

GRID = np.linspace(-15.0, 15.0, 30_001)
SHARE, WIDE = 0.3, 3.0
Y = np.array([[1.5], [-4.0], [2.2], [0.7]])
OWN = Factor(Normal, (np.array([2.0]), np.array([[1.5]])))


@pytest.fixture(scope="module")
def model():
    return mixture.ClutterModel(mixture.Clutter([[1.0]], SHARE, 0.0, [[WIDE**2]]), 10.0)


@pytest.fixture(scope="module")
def step(model):
    """One step of stochastic EP: the cavity without a site, the new site, and the datum."""
    task = task_of(model, np.empty((len(Y), 0)), Y, OWN)
    y = Y[next(task.minibatches(1))]
    tied = pvi.StochasticEPUpdate(steps=1, damping=1 / len(Y), batch_size=1)(task).factor
    cavity = task.posterior.exchanged([OWN ** (1.0 / len(Y))], [])
    return cavity, tied / OWN ** (1.0 - 1.0 / len(Y)), y


def joint_tilted(cavity, y):
    """``q_1(θ) p(y | h, θ) p(h)`` of the grid of θ and of h = signal, clutter: [2, G], of sum 1."""
    prior = scipy.stats.norm(cavity.mean[0], np.sqrt(cavity.variance[0])).pdf(GRID)
    signal = (1.0 - SHARE) * scipy.stats.norm(GRID, 1.0).pdf(y)
    clutter = np.full_like(GRID, SHARE * scipy.stats.norm(0.0, WIDE).pdf(y))
    joint = prior * np.stack([signal, clutter])
    return joint / joint.sum()


def divergence(joint, mean, variance, signal):
    """KL of the joint from ``N(θ; mean, variance) g(h)``, on the grid."""
    own = scipy.stats.norm(mean, np.sqrt(variance)).logpdf(GRID)
    log_g = np.log([signal, 1.0 - signal])
    return np.sum(joint * (np.log(joint) - own - log_g[:, None]))


def test_a_step_minimises_the_divergence_of_parameters_and_label_together(model, step):
    """No change of mean, variance or P(signal) makes it smaller: not to first order either."""
    cavity, site, y = step
    q = cavity.times([site])
    found = np.array([q.mean[0], q.variance[0], model.responsibilities(cavity, y)[0]])
    joint = joint_tilted(cavity, y[0, 0])
    least = divergence(joint, *found)
    for k in range(3):
        change = 1e-3 * np.eye(3)[k]
        up, down = (divergence(joint, *(found + sign * change)) - least for sign in (1.0, -1.0))
        assert min(up, down) > 0.0
        np.testing.assert_allclose(up, down, rtol=0.05)


def test_labels_of_other_data_do_not_matter_and_none_is_kept(model, step):
    cavity, _, y = step
    together = model.responsibilities(cavity, np.concatenate([Y, y]))
    np.testing.assert_allclose(together[-1:], model.responsibilities(cavity, y), rtol=1e-12)
    assert (together > 0.0).all()
    assert (together < 1.0).all()


def test_without_clutter_all_is_signal():
    plain = mixture.ClutterModel(mixture.Clutter([[1.0]]), 10.0)
    found = plain.responsibilities(plain.prior(), Y)
    np.testing.assert_allclose(found, 1.0, rtol=THROUGH_CHOLESKY)
