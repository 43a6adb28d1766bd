"""Removing, compressing, naming: changes of the ledger."""

import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp.errors import InvalidDataError
from tests.oracles.builders import (
    MERGED,
    assert_unchanged,
    evidence,
    known_model,
    predicted,
    stream,
    thirds,
)
from tests.tolerances import THROUGH_CHOLESKY


def test_removing_the_newest_batch_gives_the_model_before(data, new_inputs):
    shards = thirds(*data)
    fitted = stream(
        known_model(sgp.PrivatePseudoPoints(8)),
        {name: shards[name] for name in ("client-0", "client-1")},
    )
    before, energy = predicted(fitted, new_inputs), evidence(fitted)
    stream(fitted, {"client-2": shards["client-2"]})
    assert evidence(fitted) != energy
    fitted.remove("client-2")
    assert_unchanged(fitted, new_inputs, before)
    assert evidence(fitted) == energy
    with pytest.raises(InvalidDataError, match="no factor 'client-2'"):
        fitted.remove("client-2")


def test_removal_takes_a_batch_out_of_the_hyperparameters_too(data):
    shards = thirds(*data)
    fitted = known_model(
        sgp.PrivatePseudoPoints(15),
        hyperparameters=sgp.VariationalHyperparameters(),
        optimiser=sgp.LocalOptimiser(max_iterations=20),
    )
    fitted.update(shards["client-0"])
    before = fitted.hyperparameter_posterior
    fitted.update(shards["client-1"])
    fitted.remove("batch-1")
    np.testing.assert_allclose(
        fitted.hyperparameter_posterior.mean, before.mean, rtol=THROUGH_CHOLESKY
    )
    np.testing.assert_allclose(
        fitted.hyperparameter_posterior.variance, before.variance, rtol=THROUGH_CHOLESKY
    )


def test_compression_loses_what_it_says_and_little_where_points_abound(data, new_inputs):
    fitted = stream(known_model(sgp.PrivatePseudoPoints(25)), thirds(*data))
    before, kept = evidence(fitted), predicted(fitted, new_inputs)
    lost = fitted.compress(40)
    assert list(fitted.factors) == [MERGED]
    assert fitted.posterior_process.num_pseudo_points == 40
    assert 0.0 <= lost < 0.5
    assert evidence(fitted) == pytest.approx(before - lost, abs=THROUGH_CHOLESKY)
    for a, b in zip(fitted.predict_f(new_inputs), kept, strict=True):
        np.testing.assert_allclose(a, b, atol=0.02)
    assert fitted.compress(5) > 10.0
    assert fitted.compress(50) == 0.0


def test_names_that_are_taken_or_mean_several_batches_are_refused(data):
    fitted = known_model(sgp.PrivatePseudoPoints(3))
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
