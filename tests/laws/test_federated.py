"""Servers, clients and schedules on models whose answers are known."""

import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from streaming_gp import datasets, linear, pvi
from streaming_gp.expfam import ExponentialFamily, MeanFieldNormal, Normal
from tests.oracles.reference import (
    assert_same,
    conjugate_model,
    labelled_data,
    pooled,
    regression_data,
    server,
    task_of,
)
from tests.tolerances import ALGEBRA, THROUGH_CHOLESKY

FIXED_POINT = 1e-6
LBFGS = pvi.VariationalUpdate(batch_size=None, optimiser=pvi.LBFGS())


SCHEDULES = {
    "sequential": (pvi.Sequential(), 1),
    "backwards": (pvi.Sequential(order=["c4", "c3", "c2", "c1", "c0"]), 1),
    "random": (pvi.Sequential(order="random", seed=3), 2),
    "synchronous": (pvi.Synchronous(damping=1.0), 1),
    "damped": (pvi.Synchronous(damping=0.5), 40),
    "by client": (pvi.Synchronous(damping={"c0": 1.0, "c1": 0.5, "c2": 0.6, "c3": 0.8}), 110),
    "sampled": (pvi.Synchronous(damping=1.0, fraction=0.4), 20),
    "asynchronous": (
        pvi.Asynchronous(damping=1.0, durations={f"c{i}": 1 + i for i in range(5)}),
        5,
    ),
}


OF_EITHER_RULE = [(pvi.FixedPointUpdate(), name) for name in SCHEDULES]
OF_EITHER_RULE += [(pvi.AnalyticUpdate(), name) for name in ("sequential", "synchronous")]


@pytest.mark.parametrize(("update", "name"), OF_EITHER_RULE)
def test_conjugate_clients_reach_the_pooled_posterior(rng, name, update):
    (X, Y), model = regression_data(rng), conjugate_model()
    found = server(model, datasets.partition_iid(X, Y, 5), update)
    schedule, rounds = SCHEDULES[name]
    history = pvi.fit(found, schedule, rounds)
    assert_same(found.posterior, pooled(model, X, Y), 1e-9)
    assert not history[-1].refused
    assert set(found.factors) == {f"c{i}" for i in range(5)}


def test_evidence_adds_up_over_sequential_clients(rng):
    (X, Y), model = regression_data(rng), conjugate_model()
    found = server(model, datasets.partition_iid(X, Y, 4), pvi.AnalyticUpdate())
    history = pvi.fit(found, pvi.Sequential())
    product = model.prior().as_factor() * model.likelihood_factor(X, Y)
    np.testing.assert_allclose(history[-1].free_energy, product.log_integral(), rtol=ALGEBRA)


@pytest.mark.slow
@pytest.mark.parametrize("make", [linear.logistic_regression, linear.probit_regression])
@pytest.mark.parametrize("family", [Normal, MeanFieldNormal])
def test_any_schedule_and_rule_reaches_the_optimum_of_global_vi(rng, make, family):
    X, Y = labelled_data(rng)
    model = make(3, family=family)
    optimum = server(model, [(X, Y)], LBFGS)
    pvi.fit(optimum)
    shards = datasets.partition_iid(X, Y, 3)
    slow = {"c0": 4.0, "c1": 1.0, "c2": 1.0}
    for update, schedule, rounds in (
        (LBFGS, pvi.Sequential(), 20),
        (pvi.FixedPointUpdate(), pvi.Synchronous(damping=0.6), 150),
        (pvi.FixedPointUpdate(steps=5, damping=0.5), pvi.Sequential(), 50),
        (pvi.FixedPointUpdate(), pvi.Asynchronous(damping=0.6, durations=slow), 250),
    ):
        found = server(model, shards, update)
        pvi.fit(found, schedule, rounds)
        assert_same(found.posterior, optimum.posterior, FIXED_POINT)


def test_a_local_free_energy_is_the_divergence_from_the_tilted_distribution(rng):
    """Property 1: ``F(q) = log Z − KL(q ‖ tilted)`` for any q, so that both have one optimum."""
    X, Y = rng.standard_normal((20, 1)), (rng.uniform(size=(20, 1)) < 0.5).astype(float)
    model = linear.logistic_regression(1)
    found = server(model, datasets.partition_iid(X, Y, 2), LBFGS)
    pvi.fit(found, pvi.Sequential(), 2)
    cavity, data = found.cavity("c0"), found.clients["c0"].data
    grid = np.linspace(-12.0, 12.0, 20_001)[:, None]
    log_tilted = cavity.log_prob(grid).numpy() + _log_likelihood(grid, *data)
    evidence = scipy.integrate.simpson(np.exp(log_tilted), x=grid[:, 0])
    for mean, variance in ((0.0, 1.0), (0.7, 0.3), (-1.0, 0.5)):
        q = Normal.from_mean_covariance(np.array([mean]), np.array([[variance]]))
        log_q = q.log_prob(grid).numpy()
        inside = np.exp(log_q) * (log_q - log_tilted + np.log(evidence))
        divergence = scipy.integrate.simpson(inside, x=grid[:, 0])
        gain = model.expected_log_likelihood(q, *data, None)
        free_energy = gain - q.kl_divergence(cavity)
        np.testing.assert_allclose(free_energy, np.log(evidence) - divergence, rtol=FIXED_POINT)


def _log_likelihood(theta, X, Y):
    """Of a logistic model, for each row of ``theta`` [S, 1]: [S]."""
    margin = (2.0 * Y - 1.0).T * (theta @ X.T)
    return -np.logaddexp(0.0, -margin).sum(axis=1)


@pytest.mark.parametrize(
    "schedule", [pvi.Sequential(), pvi.Synchronous(), pvi.Asynchronous(durations=1.0)]
)
def test_the_posterior_is_prior_times_factors_after_every_round(rng, schedule):
    """Property 2."""
    X, Y = labelled_data(rng)
    found = server(linear.logistic_regression(3), datasets.partition_iid(X, Y, 3), LBFGS)
    for _ in range(3):
        pvi.fit(found, schedule)
        assert_same(found.posterior, found.prior.times(found.factors.values()), ALGEBRA)


@pytest.mark.parametrize("family", [Normal, MeanFieldNormal])
def test_a_local_optimum_s_factor_is_its_natural_gradient(rng, family):
    """Property 4, with the Fisher information (eq. 8) and by mean parameters (eq. 9)."""
    X, Y = labelled_data(rng)
    model = linear.logistic_regression(3, family=family)
    found = server(model, datasets.partition_iid(X, Y, 3), LBFGS)
    pvi.fit(found, pvi.Sequential(order=["c0", "c1"]))
    q, data = found.posterior, found.clients["c1"].data

    def gain(q):
        return model.expected_log_likelihood(q, *data, None)

    for gradient in (q.natural_gradient(gain), ExponentialFamily.natural_gradient(q, gain)):
        assert_same(found.factors["c1"], gradient, 5 * FIXED_POINT)


def test_free_energies_of_clients_add_up_to_the_global_one(rng):
    """Property 3: at the fixed point ``Σ E_q[log p(y_k)/t_k] + log ∫ prior Π t = F``."""
    X, Y = labelled_data(rng)
    model = linear.logistic_regression(3)
    optimum = server(model, [(X, Y)], LBFGS)
    wanted = pvi.fit(optimum)[-1].free_energy
    found = server(model, datasets.partition_iid(X, Y, 3), LBFGS)
    pvi.fit(found, pvi.Sequential(), 12)
    q, product = found.posterior, found.prior.as_factor()
    local = 0.0
    for name, client in found.clients.items():
        factor = found.factors[name]
        seed = np.zeros(2, np.int32)
        local += model.expected_log_likelihood(q, *client.data, seed) - _expected(q, factor)
        product = product * factor
    np.testing.assert_allclose(local + product.log_integral(), wanted, rtol=FIXED_POINT)


def _expected(q, factor):
    return q.expected_log(factor) - q.expected_log_base_measure()


@pytest.mark.parametrize("family", [Normal, MeanFieldNormal])
def test_parallel_fixed_point_steps_do_not_depend_on_the_partition(rng, family):
    """Property 5: the iterates themselves, not only where they end."""
    X, Y = labelled_data(rng)
    model = linear.logistic_regression(3, family=family)
    partitions = [[(X, Y)], datasets.partition_by_label(X, Y, 2), datasets.partition_iid(X, Y, 12)]
    servers = [server(model, shards, pvi.FixedPointUpdate()) for shards in partitions]
    for _ in range(4):
        for one in servers:
            pvi.fit(one, pvi.Synchronous(damping=0.6))
        for other in servers[1:]:
            assert_same(servers[0].posterior, other.posterior, THROUGH_CHOLESKY)


def test_minibatches_within_a_client_and_between_clients_are_eqs_12_to_15(rng):
    """The gradient of a conjugate likelihood is its factor. Within a client the average minibatch's
    share of its factor makes way, ρ' = Lρ; between clients a client's own. (Eq. 15 is printed with
    a minus sign, which eq. 14 and eq. 13 do not have.)
    """
    (X, Y), model = regression_data(rng), conjugate_model()
    rho, own = 0.3, model.likelihood_factor(X, Y) ** 0.7
    within = task_of(model, X, Y, own)
    rows = next(within.minibatches(15))
    q, minibatch = within.posterior.as_factor(), model.likelihood_factor(X[rows], Y[rows])
    found = pvi.FixedPointUpdate(damping=rho, batch_size=15)(within).factor
    wanted = q ** (1.0 - rho) * (model.prior().as_factor() * minibatch**4.0) ** rho
    assert_same(model.prior().times([found]), wanted, ALGEBRA)
    assert_same(q * (minibatch / own**0.25) ** (4.0 * rho), wanted, ALGEBRA)

    shards = datasets.partition_iid(X, Y, 4)
    between = server(model, shards, pvi.FixedPointUpdate())
    between.warm_start(model.prior().times([own]).as_arrays())
    before, mine = between.posterior.as_factor(), between.factors["c2"]
    pvi.fit(between, pvi.Sequential(["c2"], damping=rho))
    gradient = model.likelihood_factor(*shards[2])
    assert_same(between.factors["c2"], mine ** (1.0 - rho) * gradient**rho, ALGEBRA)
    assert_same(between.posterior, before * (gradient / mine) ** rho, ALGEBRA)


def test_synchronous_rounds_without_damping_diverge_on_correlated_weights(rng):
    """The reason for the default 1/K (maths page, "Damping")."""
    X = rng.standard_normal((60, 1)) + 0.3 * rng.standard_normal((60, 3))
    Y = X @ np.array([[1.0], [-2.0], [0.5]]) + 0.3 * rng.standard_normal((60, 1))
    model = linear.BayesianLinearRegression(3, 0.09, family=MeanFieldNormal)
    optimum = server(model, [(X, Y)], LBFGS)
    pvi.fit(optimum)

    def error(schedule, rounds):
        checks = pvi.Checks(max_shift=np.inf)
        shards = datasets.partition_iid(X, Y, 2)
        found = server(model, shards, pvi.FixedPointUpdate(), checks=checks)
        pvi.fit(found, schedule, rounds)
        return np.abs(found.posterior.mean / optimum.posterior.mean - 1.0).max()

    assert error(pvi.Synchronous(damping=1.0), 40) > 1e3
    assert error(pvi.Synchronous(), 400) < 1e-4
