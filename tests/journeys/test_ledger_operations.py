"""Removing, compressing, naming: changes of the ledger."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp import expfam, pvi
from streaming_gp.errors import ImproperError, InvalidDataError
from tests.oracles.builders import (
    EVERY_INPUT,
    MERGED,
    assert_same_arrays,
    assert_unchanged,
    evidence,
    known_model,
    predicted,
    regressor,
    stream,
    thirds,
)
from tests.oracles.reference import smooth_data
from tests.tolerances import ALGEBRA, THROUGH_CHOLESKY

BRIEF = sgp.LocalOptimiser(max_iterations=2, rounds=1)
"""How well a batch is fitted is nothing to what becomes of its factor."""


@pytest.fixture(scope="module")
def three_batches():
    rng = np.random.default_rng(7)
    return {name: smooth_data(rng, 12) for name in ("a", "b", "c")}


def test_removing_the_newest_batch_gives_the_model_before(three_batches, new_inputs):
    fitted = known_model(sgp.PrivatePseudoPoints(8), optimiser=BRIEF)
    stream(fitted, {name: three_batches[name] for name in "ab"})
    before, energy = predicted(fitted, new_inputs), evidence(fitted)
    fitted.update(three_batches["c"], batch_id="c")
    assert evidence(fitted) != energy
    fitted.remove("c")
    assert_unchanged(fitted, new_inputs, before)
    assert evidence(fitted) == energy
    with pytest.raises(InvalidDataError, match="no factor 'c'"):
        fitted.remove("c")


def test_removal_takes_a_batch_out_of_the_hyperparameters_too(three_batches):
    fitted = regressor(optimiser=BRIEF)
    fitted.update(three_batches["a"])
    before = fitted.hyperparameter_posterior
    fitted.update(three_batches["b"])
    fitted.remove("batch-1")
    after = fitted.hyperparameter_posterior
    np.testing.assert_allclose(after.mean, before.mean, rtol=THROUGH_CHOLESKY)
    np.testing.assert_allclose(after.variance, before.variance, rtol=THROUGH_CHOLESKY)


def test_compression_loses_what_it_says_and_little_where_points_abound(data, new_inputs):
    fitted = stream(known_model(sgp.PrivatePseudoPoints(25), optimiser=BRIEF), thirds(*data))
    before, kept = evidence(fitted), predicted(fitted, new_inputs)
    lost = fitted.compress(40)
    assert list(fitted.factors) == [MERGED]
    assert fitted.posterior_process.num_pseudo_points == 40
    assert 0.0 <= lost < 0.5
    assert evidence(fitted) == pytest.approx(before - lost, abs=THROUGH_CHOLESKY)
    assert_same_arrays(fitted.predict_f(new_inputs), kept, 0.02)
    assert fitted.compress(5) > 10.0
    assert fitted.compress(50) == 0.0


def test_names_that_are_taken_or_mean_several_batches_are_refused(three_batches):
    fitted, data = known_model(sgp.PrivatePseudoPoints(3), optimiser=BRIEF), three_batches["a"]
    fitted.update(data, batch_id="a")
    with pytest.raises(InvalidDataError, match="there is a factor 'a' already"):
        fitted.update(data, batch_id="a")
    fitted.compress(2)
    for refused in (
        lambda: fitted.update(data, batch_id=MERGED),
        lambda: fitted.revisit(MERGED, data),
        lambda: fitted.remove(MERGED),
    ):
        with pytest.raises(InvalidDataError, match="'merged' holds several batches"):
            refused()


# ---- what is improper ----


RESOLUTION = 1e-3


def of_epsilon(prior, share):
    """A factor of ε whose precision is so many times the prior's."""
    precision = share * np.asarray(prior.precision)
    return expfam.Factor(expfam.MeanFieldNormal, (precision * np.asarray(prior.mean), precision))


def with_shares(model, shares):
    """The model, once its factors of ε are so many times as precise as the prior."""
    prior = model.prior().hyperparameters
    factors = {
        name: replace(model.factors[name], hyperparameters=of_epsilon(prior, share))
        for name, share in shares.items()
    }
    model.adopt(model.ledger.with_factors(factors))
    return model


@dataclass(frozen=True)
class Replaced(sgp.PrivatePseudoPoints):
    """Fits that say one thing of ε, whatever the data."""

    said: expfam.Factor | None = None

    def fit(self, fitter, ledger, question, batch):
        fitted = super().fit(fitter, ledger, question, batch)
        return replace(fitted, factor=replace(fitted.factor, hyperparameters=self.said))


def model_whose_fits_say(share, policy):
    said = of_epsilon(regressor().prior().hyperparameters, share)
    return regressor(pseudo_points=Replaced(5, said=said), policy=policy, optimiser=BRIEF)


def test_the_largest_share_that_leaves_a_proper_cavity_is_removed(three_batches):
    """Prior 1, a 10 and b −5: without 0.6 of a nothing would be left."""
    policy = pvi.LargestProperFraction(RESOLUTION)
    model = regressor(pseudo_points=EVERY_INPUT, policy=policy, optimiser=BRIEF)
    for name in ("a", "b"):
        model.update(three_batches[name], batch_id=name)
    with_shares(model, {"a": 10.0, "b": -5.0})
    info = model.revisit("a", three_batches["a"])
    assert info.removed_fraction == pytest.approx(0.6, abs=RESOLUTION)
    assert info.damping == 1.0
    assert len(model.factors["a"].pseudo_observations) == 1  # what stayed is on the same points
    assert (model.hyperparameter_posterior.precision > 0.0).all()
    with_shares(model, {"a": 10.0, "b": -5.0})
    infos = model.synchronous_round(three_batches, damping=0.5)
    removed = {name: one.removed_fraction for name, one in infos.items()}
    assert removed == {"a": pytest.approx(0.6, abs=RESOLUTION), "b": 1.0, "c": 1.0}
    assert [one.damping for one in infos.values()] == [0.5] * 3


@pytest.mark.parametrize("points", [EVERY_INPUT, sgp.PrivatePseudoPoints(5)], ids=["all", "five"])
def test_an_improper_cavity_is_refused_by_default_and_nothing_changes(three_batches, points):
    model = regressor(pseudo_points=points, optimiser=BRIEF)
    for name in ("a", "b"):
        model.update(three_batches[name], batch_id=name)
    with_shares(model, {"a": 10.0, "b": -5.0})
    before = model.ledger
    visits = [
        lambda: model.revisit("a", three_batches["a"]),
        lambda: model.synchronous_round({"a": three_batches["a"]}),
        lambda: model.remove("a"),
    ]
    if points == EVERY_INPUT:
        visits.pop()  # what is left says anew what it says of ε
    for visit in visits:
        with pytest.raises(ImproperError):
            visit()
        assert model.ledger is before
    if points == EVERY_INPUT:
        model.remove("a")
        assert (model.hyperparameter_posterior.precision > 0.0).all()


@pytest.mark.slow
def test_a_step_is_shortened_until_everything_is_proper(three_batches):
    """Prior 1 and a 10: with −2 from b, or −1, the cavity of a would be no distribution."""
    model = model_whose_fits_say(-2.0, pvi.BacktrackDamping())
    model.update(three_batches["a"], batch_id="a")
    with_shares(model, {"a": 10.0})
    assert model.update(three_batches["b"], batch_id="b").damping == 0.25
    prior, q = model.prior().hyperparameters, model.hyperparameter_posterior
    np.testing.assert_allclose(q.precision, 10.5 * np.asarray(prior.precision), rtol=ALGEBRA)
    assert model.revisit("b", three_batches["b"], damping=0.5).damping == 0.25


def test_a_round_is_shortened_for_all_its_shards_alike(three_batches):
    """Three times −2 at a damping of ½, then ¼: only an eighth leaves prior and cavities proper."""
    model = model_whose_fits_say(-2.0, pvi.BacktrackDamping())
    infos = model.synchronous_round(three_batches, damping=0.5)
    assert [info.damping for info in infos.values()] == [0.125] * 3
    q, prior = model.hyperparameter_posterior, model.prior().hyperparameters
    np.testing.assert_allclose(q.precision, 0.25 * np.asarray(prior.precision), rtol=ALGEBRA)


def test_a_factor_stays_if_no_step_is_proper(three_batches):
    model = model_whose_fits_say(-2.0, pvi.BacktrackDamping(attempts=1))
    info = model.update(three_batches["a"], batch_id="a")
    assert (info.damping, info.num_pseudo_points, dict(model.factors)) == (0.0, 0, {})
