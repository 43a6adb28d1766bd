"""Clipped and noisy changes of factors, and local averaging."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_gp import datasets, linear, pvi
from streaming_gp.expfam import Factor, MeanFieldNormal, Normal, NormalWishart
from streaming_gp.pvi import privacy
from streaming_gp.pvi.privacy.changes import from_coordinates, to_coordinates
from tests.oracles.reference import (
    assert_same,
    pooled,
    random_member,
    regression_data,
    server,
    task_of,
)
from tests.tolerances import STANDARD_ERRORS

FREE = privacy.Budget(np.inf)
KINDS = {"changes": privacy.PrivateChanges, "averaging": privacy.LocalAveraging}


@settings(deadline=None, max_examples=50)
@given(st.sampled_from([MeanFieldNormal, Normal, NormalWishart]), st.integers(0, 50))
def test_coordinates_go_there_and_back(family, seed):
    q, one, other = (random_member(family, seed + k) for k in range(3))
    change = one / other
    found = from_coordinates(q, to_coordinates(q, change))
    for a, b in zip(found.natural, change.natural, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("family", [MeanFieldNormal, Normal])
def test_their_length_is_that_of_the_fisher_metric(family):
    q, tiny = random_member(family, 0).as_arrays(), 1e-4
    direction = random_member(family, 1) / random_member(family, 2)
    near = family(*(a + tiny * b for a, b in zip(q.natural, direction.natural, strict=True)))
    length = np.linalg.norm(to_coordinates(q, direction**tiny))
    np.testing.assert_allclose(float(q.kl_divergence(near)), 0.5 * length**2, rtol=1e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_without_noise_and_clipping_clients_reach_the_pooled_posterior(rng, kind):
    (X, Y), model = regression_data(rng), linear.BayesianLinearRegression(3, 0.09)
    parts = {"parts": 2} if kind == "averaging" else {}
    rule = KINDS[kind](
        pvi.AnalyticUpdate(), budget=FREE, clip=np.inf, noise_multiplier=0.0, insecure_seed=0,
        **parts,
    )  # fmt: skip
    found = server(model, datasets.partition_iid(X, Y, 3), rule)
    pvi.fit(found, pvi.Synchronous(damping=1.0), rounds=2)
    assert_same(found.posterior, pooled(model, X, Y), 1e-7)


def moments(task):
    """The likelihood of a linear regression, as independent coordinates: in NumPy, as quick as can
    be.
    """
    X, Y = task.data
    natural = (X.T @ Y[:, 0], np.sum(X**2, axis=0))
    return pvi.LocalResult(Factor(MeanFieldNormal, natural))


OWN = Factor(MeanFieldNormal, (np.ones(2), np.ones(2)))


def change_of(rule, task, X, Y):
    """By how much the answer for these data changes the client's factor, as it is clipped."""
    return to_coordinates(task.posterior, rule(replace(task, data=(X, Y))).factor / OWN)


@pytest.fixture(scope="module")
def task():
    model = linear.BayesianLinearRegression(2, 0.09, family=MeanFieldNormal)
    found = task_of(model, np.ones((1, 2)), np.ones((1, 1)), OWN)
    return replace(found, posterior=found.posterior.as_arrays())


@pytest.mark.parametrize("kind", KINDS)
def test_noise_has_the_scale_that_the_accountant_is_told(rng, task, kind, monkeypatch):
    monkeypatch.setattr("streaming_gp.pvi.privacy.rule.epsilon_of", lambda *_: 1.0)
    X, Y = rng.standard_normal((20, 2)), rng.standard_normal((20, 1))
    clip, sigma, noise = 0.3, 0.8, []
    for seed in range(500):
        pair = [
            KINDS[kind](moments, budget=FREE, clip=clip, noise_multiplier=size, insecure_seed=seed)
            for size in (sigma, 0.0)
        ]
        noise.append(change_of(pair[0], task, X, Y) - change_of(pair[1], task, X, Y))
    sensitivity = 2.0 * clip / (10 if kind == "averaging" else 1)
    bound = STANDARD_ERRORS / np.sqrt(2.0 * np.size(noise))
    assert bound < 0.09, "else a factor of 1.1 would pass"
    np.testing.assert_allclose(np.std(noise), sigma * sensitivity, rtol=bound)
    assert pair[0].release == privacy.Release(sigma)


@pytest.mark.parametrize("kind", KINDS)
def test_no_pair_of_neighbours_that_a_search_finds_is_further_apart_than_the_bound(rng, task, kind):
    """Changes: any two data sets. Averaging: one row is exchanged, in the same parts."""
    clip, options = 0.5, {"parts": 4} if kind == "averaging" else {}
    rule = KINDS[kind](
        moments, budget=FREE, clip=clip, noise_multiplier=0.0, insecure_seed=3, **options
    )
    X, Y = 0.1 * rng.standard_normal((8, 2)), 0.1 * rng.standard_normal((8, 1))
    largest = 0.0

    def apart(numbers):
        nonlocal largest
        found = []
        for row in (numbers[:3], numbers[3:]):
            exchanged = X.copy(), Y.copy()
            where = slice(None) if kind == "changes" else slice(0, 1)
            exchanged[0][where], exchanged[1][where] = row[:2], row[2]
            found.append(change_of(rule, task, *exchanged))
        largest = max(largest, float(np.linalg.norm(found[0] - found[1])))
        return -largest

    scipy.optimize.differential_evolution(
        apart, [(-20.0, 20.0)] * 6, maxiter=10, popsize=6, seed=0, polish=False
    )
    bound = 2.0 * clip / options.get("parts", 1)
    assert 0.7 * bound < largest < bound * (1.0 + 1e-9)


def test_changes_that_are_not_finite_are_none(task):
    rule = privacy.PrivateChanges(moments, budget=FREE, noise_multiplier=0.0)
    assert not change_of(rule, task, np.full((1, 2), np.nan), np.ones((1, 1))).any()
