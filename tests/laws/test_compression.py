"""The part of a cavity near a batch."""

import numpy as np
import pytest

from streaming_gp.gp.fitting import compression
from streaming_gp.gp.fitting.compression import nearby
from streaming_gp.gp.process import Process, PseudoObservations
from streaming_gp.gp.process.dense import DenseProcess
from tests.laws.test_factorised import prior
from tests.laws.test_process import observed
from tests.tolerances import THROUGH_NUGGET


def at_inputs(rng, num, centre=0.0):
    """Observations of one input each, as of Gaussian noise."""
    X = rng.uniform(-1.0, 1.0, (num, 2)) + centre
    return PseudoObservations(X, 3.0 * np.eye(num)[None], rng.standard_normal((1, num, 1)), 0.0)


@pytest.mark.parametrize(("num_latent", "num_groups"), [(1, 1), (2, 1), (2, 2)])
def test_the_marginal_at_the_points_is_kept(rng, num_latent, num_groups):
    at = prior(num_latent, num_groups)
    columns = num_latent // num_groups
    cavity = Process(
        (observed(rng, 12, num_groups, columns), observed(rng, 9, num_groups, columns))
    )

    def factorised(process):
        return DenseProcess(at).conditioned_on(process.pseudo_observations)

    X = rng.uniform(-2, 2, (5, 2))
    (few,) = nearby(at, factorised, cavity, X, 8).pseudo_observations
    assert len(few.Z) == 8
    whole, reduced = factorised(cavity), factorised(Process((few,)))
    means = [p.mean(few.Z, p.project(few.Z)) for p in (whole, reduced)]
    covariances = [p.covariance(few.Z, p.project(few.Z)) for p in (whole, reduced)]
    np.testing.assert_allclose(*means, atol=THROUGH_NUGGET)
    np.testing.assert_allclose(*covariances, atol=THROUGH_NUGGET)


def test_points_near_the_batch_are_taken(rng):
    at = prior()
    cavity = Process((at_inputs(rng, 30, centre=-9.0), at_inputs(rng, 30, centre=9.0)))
    found = nearby(
        at, lambda process: DenseProcess(at).conditioned_on(process.pseudo_observations),
        cavity, np.full((4, 2), 9.0), 10,
    )  # fmt: skip
    assert (found.pseudo_observations[0].Z > 0.0).all()


def test_far_from_all_points_there_is_the_prior(rng):
    at, cavity = prior(), Process((at_inputs(rng, 30),))
    found = nearby(
        at, lambda process: DenseProcess(at).conditioned_on(process.pseudo_observations),
        cavity, np.full((4, 2), 1e3), 10,
    )  # fmt: skip
    assert found.pseudo_observations == ()
    assert found.hyperparameters is cavity.hyperparameters


def test_of_very_many_rows_the_closest_are_looked_at(rng, monkeypatch):
    monkeypatch.setattr(compression, "MOST_ROWS", 20)
    at, seen = prior(), []

    def factorised(process):
        seen.append(process)
        return DenseProcess(at).conditioned_on(process.pseudo_observations)

    whole = observed(rng, 5)
    cavity = Process((at_inputs(rng, 25, centre=-9.0), at_inputs(rng, 25, centre=9.0), whole))
    nearby(at, factorised, cavity, np.full((4, 2), 9.0), 10)
    rows, kept = seen[0].pseudo_observations
    assert len(rows.Z) == 20
    assert (rows.Z > 0.0).all()
    assert kept is whole
    assert rows.is_diagonal
    assert not whole.is_diagonal
