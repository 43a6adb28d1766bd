"""One factor for all pieces of data: stochastic and averaged EP with the moments of any rule."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import scipy.stats

from streaming_gp import linear, pvi, samplers
from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import Factor, Normal
from tests.conftest import ALGEBRA, THROUGH_CHOLESKY
from tests.oracles import reference
from tests.oracles.reference import assert_same, labelled_data, pooled, regression_data, task_of

ONE_STEP = pvi.PowerEPUpdate.one_step()


@pytest.fixture(scope="module")
def probit():
    return linear.probit_regression(3)


@pytest.fixture
def task(rng, probit):
    """Of a client with a factor already."""
    X, Y = labelled_data(rng)
    own = Factor(Normal, (np.array([3.0, -2.0, 1.0]), np.diag([6.0, 5.0, 9.0])))
    return task_of(probit, X[:12], Y[:12], own)


def test_with_single_data_as_pieces_it_is_stochastic_ep(task):
    found = pvi.TiedUpdate(ONE_STEP, pieces=12)(task)
    wanted = pvi.StochasticEPUpdate(steps=12, damping=1 / 12, batch_size=1)(task)
    assert_same(found.factor, wanted.factor, THROUGH_CHOLESKY)
    np.testing.assert_allclose(found.free_energy, wanted.free_energy, rtol=THROUGH_CHOLESKY)


def test_with_single_data_as_pieces_under_one_q_it_is_averaged_ep(task):
    found = pvi.TiedUpdate(ONE_STEP, pieces=12, passes=2, averaged=True)(task)
    assert_same(found.factor, pvi.StochasticEPUpdate(steps=2)(task).factor, THROUGH_CHOLESKY)


def test_of_a_conjugate_model_averaged_ep_is_exact_after_one_pass(rng):
    (X, Y), model = regression_data(rng), linear.BayesianLinearRegression(3, 0.09)
    task = task_of(model, X, Y)
    found = pvi.TiedUpdate(pvi.AnalyticUpdate(), pieces=7, averaged=True)(task)
    assert_same(model.prior().times([found.factor]), pooled(model, X, Y), ALGEBRA)
    product = model.prior().as_factor() * model.likelihood_factor(X, Y)
    np.testing.assert_allclose(found.free_energy, product.log_integral(), rtol=1e-9)


def test_with_sampled_moments_it_is_near_the_posterior(rng):
    """Section C.2 of the supplement, with two pieces."""
    (X, Y), model = labelled_data(rng), linear.logistic_regression(2)
    X, Y = X[:40, :2], Y[:40]
    sampled = pvi.DistributedEPUpdate(num_samples=10_000)
    found = pvi.TiedUpdate(sampled, pieces=2, passes=4, averaged=True)(task_of(model, X, Y))
    q = model.prior().times([found.factor])

    def log_joint(points):
        log_odds = (2.0 * Y[:, 0] - 1.0) * (points @ X.T)
        prior = scipy.stats.norm.logpdf(points).sum(1)
        return prior - np.logaddexp(0.0, -log_odds).sum(1)

    mean, covariance, evidence = reference.moments_on_a_grid(log_joint)
    sd = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose((q.mean - mean) / sd, 0.0, atol=0.05)
    np.testing.assert_allclose(np.sqrt(q.variance) / sd, 1.0, atol=0.05)
    np.testing.assert_allclose(found.free_energy, evidence, atol=0.05)


@dataclass(frozen=True)
class Noting:
    """Leaves the factor as it is, and two data out; notes what it was asked."""

    asked: list = field(default_factory=list)

    def __call__(self, task):
        self.asked.append(task)
        return pvi.LocalResult(task.own, steps=1, skipped=2)


def test_every_question_is_about_another_piece_with_another_seed(task):
    rule = Noting()
    found = pvi.TiedUpdate(rule, pieces=4, passes=5)(task)
    assert found.skipped == 2 * len(rule.asked) == 40
    rows = [tuple(np.ravel(one.data[0])) for one in rule.asked]
    for asked in range(0, 20, 4):
        assert len(set(rows[asked : asked + 4])) == 4
    seeds = [one.seed for one in rule.asked]
    assert len(set(seeds)) == 20
    assert 0 <= min(seeds) <= max(seeds) < 2**31


def test_a_rule_without_evidence_gives_none(task):
    chain = pvi.MomentSharingUpdate(samplers.NUTS(20))
    assert np.isnan(pvi.TiedUpdate(chain, pieces=2)(task).free_energy)


def test_more_pieces_than_data_and_none_are_refused(task):
    with pytest.raises(InvalidDataError, match="12 data cannot be cut into 13 pieces"):
        pvi.TiedUpdate(ONE_STEP, pieces=13)(task)
    with pytest.raises(InvalidDataError, match="pieces"):
        pvi.TiedUpdate(ONE_STEP, pieces=0)
