"""Synchronous rounds over shards."""

from dataclasses import dataclass

import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp.errors import InvalidDataError
from tests.oracles.builders import (
    EVERY_INPUT,
    assert_same_predictions,
    exact_gp,
    known_model,
    regressor,
)
from tests.tolerances import ALGEBRA

FAR_ALONG = 1e-5
"""What is left of the way to the fixed point after many rounds."""


FIVE = [f"site-{i}" for i in range(5)]


@pytest.fixture
def five_sites(data):
    X, Y = data
    order = np.argsort(X[:, 0])  # each site sees a slice of its own
    return {name: (X[i], Y[i]) for name, i in zip(FIVE, np.array_split(order, 5), strict=True)}


def site_model():
    return known_model(sgp.PrivatePseudoPoints(5, optimise_locations=False))


def on_the_same_points(five_sites):
    """A model in which every site has chosen its points, whatever order comes next."""
    fitted = site_model()
    fitted.synchronous_round(five_sites)
    return fitted


@pytest.mark.slow
def test_five_sites_agree_whatever_the_order_or_schedule(five_sites, new_inputs):
    fitted = on_the_same_points(five_sites)
    for _ in range(120):
        fitted.synchronous_round(five_sites)
    for order in (
        list(five_sites),
        list(five_sites)[::-1],
        [list(five_sites)[i] for i in (2, 0, 4, 1, 3)],
    ):
        sequential = on_the_same_points(five_sites)
        for _ in range(12):
            for name in order:
                sequential.revisit(name, five_sites[name])
        assert_same_predictions(sequential, fitted, new_inputs, FAR_ALONG, (False,))


def test_with_a_point_at_every_input_one_pass_is_the_exact_gp(data, five_sites, new_inputs):
    together = known_model(EVERY_INPUT)
    together.synchronous_round(five_sites, damping=1.0)
    oracle = exact_gp(data)
    for a, b in zip(together.predict_f(new_inputs), oracle.predict_f(new_inputs), strict=True):
        np.testing.assert_allclose(a, b, atol=ALGEBRA)


def test_synchronous_rounds_refuse_what_they_cannot_do(five_sites):
    own = sgp.PrivatePseudoPoints(5)
    for refused, message in (
        (known_model(sgp.SharedPseudoPoints(5)), "need pseudo-points of their own, got Shared"),
        (known_model(sgp.ConditionalPseudoPoints(5)), "of their own, got Conditional"),
        (
            known_model(sgp.PrivatePseudoPoints(5, budget=20)),
            "no room .* hold 25 of a budget",
        ),
        (known_model(own, hyperparameters=sgp.PointHyperparameters()), "differ in point hyperp"),
    ):
        with pytest.raises(InvalidDataError, match=message):
            refused.synchronous_round(five_sites)
        assert not refused.factors
    willing = site_model()
    with pytest.raises(InvalidDataError, match="at least one shard"):
        willing.synchronous_round({})
    X, Y = five_sites["site-0"]
    with pytest.raises(InvalidDataError, match=r"X must have shape \[N, 2\].*got \[18, 1\]"):
        willing.synchronous_round({"a": (X, Y), "b": (X[:, :1], Y)})
    assert not willing.factors


def test_shards_of_a_round_have_random_numbers_of_their_own(five_sites):
    seeds = []

    @dataclass(frozen=True)
    class Recording(sgp.VariationalHyperparameters):
        def noise(self, size, seed, *rest):
            seeds.append(seed)
            return super().noise(size, seed, *rest)

    fitted = regressor(pseudo_points=EVERY_INPUT, hyperparameters=Recording(num_samples=2))
    fitted.synchronous_round(five_sites)
    of_fits = [seed for seed in seeds if seed != 0]  # a blank problem has the seed 0
    assert len(set(of_fits)) == len(five_sites)
