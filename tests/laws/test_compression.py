"""The part of a cavity near a batch."""

import gpflow
import numpy as np
import pytest

from streaming_gp.gp.fitting import compression
from streaming_gp.gp.fitting.compression import nearby, neighbours
from streaming_gp.gp.process import Process, PseudoObservations
from streaming_gp.gp.process.factorised import Factorised
from streaming_gp.gp.process.single_observations import SingleObservations, singles
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
        return Factorised(at).conditioned_on(process.pseudo_observations)

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
        at, lambda process: Factorised(at).conditioned_on(process.pseudo_observations),
        cavity, np.full((4, 2), 9.0), 10,
    )  # fmt: skip
    assert (found.pseudo_observations[0].Z > 0.0).all()


def test_some_points_can_be_left_out_although_what_they_say_is_not(rng):
    at = prior()
    cavity = Process((at_inputs(rng, 30), at_inputs(rng, 30)))

    def factorised(process):
        return Factorised(at).conditioned_on(process.pseudo_observations)

    some = rng.permutation(60)[:20]
    (few,) = nearby(at, factorised, cavity, rng.uniform(-1, 1, (5, 2)), 8, some).pseudo_observations
    Z = np.concatenate([one.Z for one in cavity.pseudo_observations])[some]
    assert {tuple(z) for z in few.Z} < {tuple(z) for z in Z}
    whole, reduced = factorised(cavity), factorised(Process((few,)))
    for moment in ("mean", "covariance"):
        a, b = (getattr(p, moment)(few.Z, p.project(few.Z)) for p in (whole, reduced))
        np.testing.assert_allclose(a, b, atol=THROUGH_NUGGET)


def test_far_from_all_points_there_is_the_prior(rng):
    at, cavity = prior(), Process((at_inputs(rng, 30),))
    found = nearby(
        at, lambda process: Factorised(at).conditioned_on(process.pseudo_observations),
        cavity, np.full((4, 2), 1e3), 10,
    )  # fmt: skip
    assert found.pseudo_observations == ()
    assert found.hyperparameters is cavity.hyperparameters


def test_of_very_many_rows_the_closest_are_looked_at(rng, monkeypatch):
    monkeypatch.setattr(compression, "MOST_ROWS", 20)
    at, seen = prior(), []

    def factorised(process):
        seen.append(process)
        return Factorised(at).conditioned_on(process.pseudo_observations)

    whole = observed(rng, 5)
    cavity = Process((at_inputs(rng, 25, centre=-9.0), at_inputs(rng, 25, centre=9.0), whole))
    nearby(at, factorised, cavity, np.full((4, 2), 9.0), 10)
    rows, kept = seen[0].pseudo_observations
    assert len(rows.Z) == 20
    assert (rows.Z > 0.0).all()
    assert kept is whole
    assert rows.is_diagonal
    assert not whole.is_diagonal


@pytest.mark.parametrize("num_groups", [1, 2])
def test_neighbours_are_the_observations_nearest_to_each_input_as_they_are(rng, num_groups):
    at = prior(num_groups, num_groups)
    parts = [at_inputs(rng, number) for number in (30, 1, 12)]
    parts = [
        PseudoObservations(
            one.Z, np.repeat(one.precision_factor, num_groups, axis=0),
            np.concatenate([one.pseudo_targets + g for g in range(num_groups)]), 0.0,
        )
        for one in parts
    ]  # fmt: skip
    known, X = singles(Process(tuple(parts))), rng.uniform(-1.0, 1.0, (6, 2))
    found = neighbours(at, known, X, 3)
    Z = np.concatenate([one.Z for one in parts])
    closeness = at.covariance(X, Z).mean(axis=0)  # of a stationary prior
    wanted = {tuple(Z[i]) for i in np.argsort(-closeness, axis=1)[:, :3].ravel()}
    assert len(found.Z) == len(wanted)
    assert {tuple(z) for z in found.Z} == wanted
    told = {tuple(z): y for one in parts for z, y in zip(one.Z, one.pseudo_targets[0], strict=True)}
    np.testing.assert_array_equal(found.pseudo_targets[0], [told[tuple(z)] for z in found.Z])
    rows = np.broadcast_to(3.0 * np.eye(len(found.Z)), found.precision_factor.shape)
    np.testing.assert_array_equal(found.precision_factor, rows)


def test_neighbours_are_the_most_correlated_where_variances_differ(rng):
    """Far from zero a linear kernel covaries most; parallel inputs correlate."""
    at = prior(kernel=gpflow.kernels.Linear(variance=1.0))
    Z = np.array([[1.0, 0.0], [0.0, 0.0], [3.0, 9.0]])
    known = SingleObservations(Z, np.ones((1, 3)), np.zeros((1, 3, 1)))
    found = neighbours(at, known, np.array([[0.5, 0.0]]), 1)
    np.testing.assert_array_equal(found.Z, Z[:1])
