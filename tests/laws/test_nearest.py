"""Conditioning on what is near: exact where all is near, and close to it where it is not."""

import pickle
import sys
from dataclasses import dataclass, field

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from gpflow import kernels as gk
from numpy.testing import assert_array_equal

import streaming_gp as sgp
from streaming_gp.gp import PseudoObservations
from streaming_gp.gp.compilation import compile_gp
from streaming_gp.gp.fit.evidence import ExactEvidence, Sample, evidence_of
from streaming_gp.gp.process.dense import DenseProcess
from streaming_gp.gp.process.nearest import NearestProcess
from streaming_gp.gp.process.observations import DataObservations
from streaming_gp.gp.process.prior import PriorAt
from streaming_gp.numerics import neighbors
from streaming_gp.numerics.neighbors import Index, cells, nearest_earlier
from streaming_gp.serialization import storable
from tests.laws import slow
from tests.oracles.builders import FIXED, NOISE, QUICK, assert_same_predictions, evidence, kernel
from tests.oracles.reference import smooth_data

EXACT = 1e-8
ALL = 10_000
"""More neighbours than there are rows."""


@storable
@dataclass(frozen=True)
class AllNear(sgp.NearestNeighbors):
    """The process of near rows even where all of them are near."""

    num_neighbors: int = ALL
    num_neighbors_pred: int = ALL

    def unconditioned(self, prior, num_points):
        return NearestProcess(prior, self.num_neighbors_pred)


@dataclass(frozen=True, eq=False)
class Known:
    """A model that has learned nothing, as compiled functions.

    :param columns: The number P of columns of Y.
    """

    kernel: gpflow.kernels.Kernel
    columns: int = 1
    noise: float = NOISE
    input_dim: int = 2
    mean: gpflow.functions.Function = field(default_factory=lambda: gpflow.functions.Constant(0.7))

    def __post_init__(self):
        noise = gpflow.likelihoods.Gaussian(self.noise)
        model = sgp.StreamingGP(self.kernel, noise, self.mean)
        compiled = compile_gp(model.modules, model.settings, (self.input_dim, self.columns))
        object.__setattr__(self, "local", compiled.local)
        object.__setattr__(self, "outputs", compiled.outputs)
        object.__setattr__(self, "prior", PriorAt(compiled.local.prior, self.epsilon[None]))

    @property
    def epsilon(self):
        return self.local.parameters.value()

    def data(self, rng, X, Y=None, weights=None):
        """A batch of Gaussian noise."""
        Y = rng.standard_normal((len(X), self.columns)) if Y is None else Y
        X, Y = self.outputs.data((X, Y))
        nothing = np.zeros((len(X), 0))
        weights = np.ones(len(X)) if weights is None else np.tile(weights, len(X) // len(weights))
        return DataObservations(X, Y, weights, nothing, nothing, self.local.gp.num_groups)

    def inputs(self, X):
        """Inputs of the functions that are fitted."""
        return self.outputs.data((X, np.zeros((len(X), self.columns))))[0]

    def merged(self, rng, number):
        gp, Z = self.local.gp, self.inputs(spread(rng, number, self.input_dim))
        R = rng.standard_normal((gp.num_groups, len(Z), len(Z)))
        targets = rng.standard_normal((gp.num_groups, len(Z), gp.num_latent // gp.num_groups))
        return PseudoObservations(Z, R, targets, 1e-6)

    def both(self, members, number=ALL):
        return [
            process.conditioned_on(members)
            for process in (NearestProcess(self.prior, number), DenseProcess(self.prior))
        ]


def spread(rng, number, columns=2):
    return rng.uniform(-2.0, 2.0, (number, columns))


def assert_same_processes(near, dense, X, tolerance=EXACT):
    for full in (False, True):
        for one, other in zip(near.predict(X, full), dense.predict(X, full), strict=True):
            np.testing.assert_allclose(one, other, atol=tolerance)


KERNELS = {
    "squared exponential": (lambda: gk.SquaredExponential(1.5, [0.7, 1.2]), 1),
    "Matern": (lambda: gk.Matern32(lengthscales=[0.7, 1.2]), 1),
    "one column": (lambda: gk.Matern52(active_dims=[1]), 1),
    "sum": (lambda: gk.Matern12(lengthscales=2.0) + gk.SquaredExponential(0.5, 0.4), 1),
    "product with a constant": (lambda: gk.Constant(2.0) * gk.Matern32(), 1),
    "linear": (lambda: gk.Linear(variance=[0.5, 2.0]) + gk.Constant(), 1),
    "periodic": (lambda: gk.Periodic(gk.SquaredExponential(), period=1.3), 1),
    "separate": (lambda: gk.SeparateIndependent([gk.Matern32(), gk.Linear()]), 2),
    "shared": (lambda: gk.SharedIndependent(gk.Matern52(), 2), 2),
    "mixing": (
        lambda: gk.LinearCoregionalization(
            [gk.SquaredExponential(), gk.Matern12()], np.array([[1.0, 0.5], [-0.3, 1.0]])
        ),
        2,
    ),
}  # fmt: skip


QUICK_KERNELS = {"squared exponential", "periodic"}
"""Beside merged points others are tried; the rest differ by a number or a formula alone."""


@pytest.mark.parametrize("name", [one if one in QUICK_KERNELS else slow(one) for one in KERNELS])
def test_where_all_rows_are_near_it_is_the_dense_process(rng, name):
    make, columns = KERNELS[name]
    known = Known(make(), columns)
    X = known.inputs(spread(rng, 9))
    faded = known.data(rng, spread(rng, 12), weights=rng.uniform(0.1, 1.0, 12))
    members = [known.data(rng, spread(rng, 15)), faded, known.data(rng, spread(rng, 1))]
    rows = sum(len(one.Z) for one in members)
    for number in (rows, ALL):
        near, dense = known.both(members, number)
        assert_same_processes(near, dense, X)
        assert near.log_normaliser == pytest.approx(dense.log_normaliser, abs=EXACT)
    near, _ = known.both(members, rows - 1)  # the last row on all of those before it
    assert near.log_normaliser == pytest.approx(dense.log_normaliser, abs=EXACT)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mixing", "linear", "separate"])
def test_the_residual_of_merged_points_has_neighbours_too(rng, name):
    make, columns = KERNELS[name]
    known = Known(make(), columns)
    X = known.inputs(spread(rng, 9))
    members = [known.merged(rng, 5), known.data(rng, spread(rng, 20)), known.merged(rng, 3)]
    near, dense = known.both(members)
    assert_same_processes(near, dense, X, 1e-7)
    assert near.log_normaliser == pytest.approx(dense.log_normaliser, abs=1e-7)


def test_an_extended_process_is_the_one_of_all_members(rng):
    known, X = Known(kernel()), spread(rng, 6)
    members = [known.data(rng, spread(rng, 10)), known.merged(rng, 4), known.data(rng, X)]
    near = NearestProcess(known.prior, ALL)
    for number in range(len(members)):
        near = near.conditioned_on(members[: number + 1])
    dense = known.both(members)[1]
    assert_same_processes(near, dense, X, 1e-7)
    assert near.log_normaliser == pytest.approx(dense.log_normaliser, abs=1e-7)


def test_rows_of_one_input_count_as_one(rng):
    """With targets of their own; no digit is lost, as the places are far apart."""
    known, places = Known(kernel()), np.stack(np.meshgrid([-2.0, 0, 2], [-3, 0.0, 3]), -1)
    X = np.repeat(places.reshape(-1, 2), 3, axis=0)[rng.permutation(27)]
    members = [known.data(rng, X, weights=rng.uniform(0.5, 1.0, 27))]
    near, dense = known.both(members, 26)
    assert near.size == 9
    assert_same_processes(near, dense, spread(rng, 5))
    few, _ = known.both(members, number=9)  # neighbours are places, not rows
    assert_same_processes(few, dense, spread(rng, 5))
    assert near.log_normaliser == pytest.approx(dense.log_normaliser, abs=EXACT)


def test_cells_of_noisy_rows_reach_further_than_rows(rng):
    """All 2,000 rows as some hundreds say what the dense process says; 300 of them would not."""
    known = Known(kernel(), noise=1.0)
    X = spread(rng, 2000)
    near, dense = known.both([known.data(rng, X)], 300)
    assert near.size < 750
    at = spread(rng, 60)
    (mean, variance), (wanted, exact) = near.predict(at), dense.predict(at)
    assert np.mean((mean - wanted) ** 2 / exact) < 0.2**2
    np.testing.assert_allclose(variance, exact, rtol=0.06)


@pytest.mark.parametrize("noise", [0.05, slow(0.5)])
def test_how_rows_were_cut_into_batches_is_not_seen(tmp_path, noise):
    """With many rows at each input, which are one row: at any time, and in a new process."""
    rng = np.random.default_rng(3)
    X = rng.permutation(np.repeat(spread(rng, 150), 7, axis=0))
    Y, at = np.sin(X.sum(axis=1, keepdims=True)) + rng.normal(size=(1050, 1)), spread(rng, 30)
    parts = kernel(), gpflow.likelihoods.Gaussian(noise)
    known = {"hyperparameters": FIXED, "conditioning": sgp.NearestNeighbors()}
    models = [sgp.StreamingGP(*parts, **known) for _ in range(2)]
    for model, size in zip(models, (1050, 190), strict=True):
        for start in range(0, len(X), size):
            model.update((X[start : start + size], Y[start : start + size]))
    models[-1].save(tmp_path / "stream.npz")
    models.append(sgp.StreamingGP.load(tmp_path / "stream.npz", *parts))
    together, cut, loaded = (np.concatenate(model.predict_f(at)) for model in models)
    assert_array_equal(cut, loaded)
    np.testing.assert_allclose(cut, together, atol=EXACT)


@pytest.mark.parametrize("noise", [0.05, slow(0.5)])
def test_a_column_that_nothing_reads_changes_nothing(rng, noise):
    """Rows that differ in it alone are of one place, and do not fill the neighbours."""
    X, at = np.repeat(spread(rng, 60), 7, axis=0), spread(rng, 20)
    Y, found = np.sin(X.sum(axis=1, keepdims=True)) + rng.normal(size=(420, 1)), []
    for unread in (0, 1):
        model = sgp.StreamingGP(
            gk.SquaredExponential(lengthscales=[1.0, 1.0], active_dims=[0, 1]),
            gpflow.likelihoods.Gaussian(noise),
            hyperparameters=FIXED,
            conditioning=sgp.NearestNeighbors(num_neighbors_pred=30),
        )
        for rows in np.split(np.arange(420), 2):
            model.update((np.c_[X, np.arange(420.0)][rows, : 2 + unread], Y[rows]))
        found.append(np.concatenate(model.predict_f(np.c_[at, at][:, : 2 + unread])))
    np.testing.assert_allclose(*found, atol=EXACT)


@pytest.mark.parametrize("number", [8, slow(ALL)])
def test_a_column_that_is_constant_changes_nothing(rng, number):
    X, at = spread(rng, 30), spread(rng, 5)
    found = []
    for columns in (2, 3):
        known = Known(gk.SquaredExponential(1.0, np.ones(columns)), input_dim=columns)
        pad = np.full((30, columns - 2), 4.0)
        near, dense = known.both([known.data(np.random.default_rng(5), np.c_[X, pad])], number)
        where = np.c_[at, pad[:5]]
        found.append(near.predict(where))
        if number == ALL:
            assert_same_processes(near, dense, where)
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, atol=EXACT)


@pytest.mark.parametrize("offset", [2.0**30, slow(-(2.0**30))])
@pytest.mark.parametrize("number", [8, ALL])
def test_inputs_far_from_zero_keep_their_digits(rng, number, offset):
    """As differences from the place of the prediction say all; these inputs have few digits."""
    known = Known(gk.Matern32(lengthscales=[0.5, 2.0]))
    X, at = (np.round(spread(rng, size) * 2**10) / 2**10 for size in (60, 7))
    found = []
    for shift in (0.0, offset):
        member = known.data(np.random.default_rng(5), X + shift)
        process = NearestProcess(known.prior, number).conditioned_on([member])
        found.append((*process.predict(at + shift), process.log_normaliser))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-7)


@pytest.mark.parametrize("columns", [1, 4])
def test_a_place_far_from_its_neighbours_keeps_their_digits(rng, columns):
    """A trend is known there, at a distance of a million lengthscales of what varies beside it."""
    X = rng.uniform(0.0, 10.0, (150, columns))
    Y = 2.0 + np.sin(X[:, :1]) + 0.1 * rng.standard_normal((150, 1))

    def parts():
        trend = gk.SquaredExponential(variance=4.0, lengthscales=1e8)
        return gk.Matern32() + trend, gpflow.likelihoods.Gaussian(0.01)

    near, dense = (
        sgp.StreamingGP(*parts(), hyperparameters=FIXED, conditioning=conditioning)
        for conditioning in (AllNear(), sgp.Dense())
    )
    for model in (near, dense):
        model.update((X, Y))
    places = X[:2] + np.array([[1e6], [1e8]])
    for one, other in zip(near.predict_f(places), dense.predict_f(places), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-7)


def test_times_with_a_long_gap_have_the_neighbours_of_their_own_side(rng):
    side = np.sort(rng.uniform(0.0, 10.0, (60, 1)), axis=0)
    X = np.concatenate([side, side + 2.0**30])
    Y = np.concatenate([np.sin(side), np.cos(side)])
    near = sgp.NearestNeighbors(num_neighbors=20, num_neighbors_pred=20)
    both, *alone = (
        sgp.StreamingGP(
            gk.Matern52(),
            gpflow.likelihoods.Gaussian(0.01),
            hyperparameters=FIXED,
            conditioning=near,
        )
        for _ in range(3)
    )
    both.update((X, Y))
    for number, model in enumerate(alone):
        rows = slice(60 * number, 60 * number + 60)
        model.update((X[rows], Y[rows]))
        for one, other in zip(both.predict_f(X[rows]), model.predict_f(X[rows]), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-8)


def test_fewer_neighbours_are_close_and_the_nearest_ones(rng):
    known = Known(gk.Matern32(lengthscales=[0.5, 0.5]))
    X, at = spread(rng, 300), spread(rng, 40)
    member = known.data(rng, X)
    near, dense = known.both([member], 60)
    (mean, variance), (wanted, exact) = near.predict(at), dense.predict(at)
    assert np.max(np.abs(mean - wanted) / np.sqrt(exact)) < 0.1
    assert np.all(variance > exact - EXACT)  # what is left out is not known
    found = near.each[0].neighbors(at, 10)[0]
    by_distance = np.argsort(np.linalg.norm(at[:, None] - X, axis=-1), axis=1)[:, :10]
    np.testing.assert_array_equal(np.sort(found), np.sort(by_distance))


def test_neighbours_under_a_variance_that_grows_are_those_that_say_most(rng, tmp_path):
    def trend_and_season():
        return gk.Linear(variance=0.03) + gk.Periodic(gk.SquaredExponential(2.0, 1.5), period=5.0)

    def value(X):
        return 0.1 * X + np.sin(0.4 * np.pi * X)

    X, at = rng.uniform(0.0, 50.0, (800, 1)), rng.uniform(0.0, 50.0, (40, 1))
    Y = value(X) + 0.1 * rng.standard_normal(X.shape)
    near = sgp.StreamingGP(
        trend_and_season(), gpflow.likelihoods.Gaussian(0.01),
        hyperparameters=sgp.FixedHyperparameters(),
        conditioning=sgp.NearestNeighbors(30, 30),
    )  # fmt: skip
    near.update((X, Y))
    exact = gpflow.models.GPR((X, Y), trend_and_season(), noise_variance=0.01)
    mean, variance = near.predict_f(at)
    wanted, least = exact.predict_f(at)
    assert np.max(np.abs(mean - wanted)) < 0.1
    assert np.all(variance > least)
    assert np.max(variance) < 0.3 * 0.01  # of the noise
    near.export(tmp_path / "near.npz")
    exported, _ = sgp.runtime.load(tmp_path / "near.npz").predict_f(at)
    np.testing.assert_allclose(exported, mean, atol=1e-6)


def test_rows_that_have_faded_lose_their_places_to_fresh_ones(rng):
    known, at = Known(kernel()), spread(rng, 1)
    old = known.data(rng, at + 0.01 * spread(rng, 10), weights=np.full(10, 1e-6))
    fresh = known.data(rng, at + 0.1 * spread(rng, 10))
    near, _ = known.both([old, fresh], 10)
    process = near.each[0]
    assert process.size > 10
    found = process.neighbors(at, 10)[0, 0]
    assert (process.joined.noise[0, found] < 1.0).all()


def test_rows_that_say_nothing_leave_the_others_as_they_are(rng):
    known, at = Known(kernel()), spread(rng, 5)
    silent = known.data(rng, spread(rng, 10), weights=np.zeros(10))
    near, dense = known.both([silent, known.data(rng, spread(rng, 10))])
    assert_same_processes(near, dense, at)
    near, dense = known.both([silent])
    assert_same_processes(near, dense, at)


# ---- models ----


def models(near=None, likelihood=None, **options):
    options.setdefault("hyperparameters", FIXED)
    options.setdefault("optimiser", QUICK)
    return [
        sgp.StreamingGP(
            kernel(), likelihood() if likelihood else gpflow.likelihoods.Gaussian(NOISE),
            gpflow.functions.Constant(2.0), conditioning=one, seed=0, **options,
        )
        for one in (near or AllNear(), sgp.Dense())
    ]  # fmt: skip


def told_once(lengthscale, noise, X, f, rng, **options):
    """A model of four inputs that has learned from one batch, in one iteration."""
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(lengthscales=lengthscale),
        gpflow.likelihoods.Gaussian(noise),
        hyperparameters=sgp.PointHyperparameters(),
        optimiser=sgp.LocalOptimiser(max_iterations=1),
        seed=0, **options,
    )  # fmt: skip
    model.update((X, f + np.sqrt(noise) * rng.standard_normal(f.shape)))
    return model


@pytest.mark.slow
def test_rows_that_are_few_when_joined_stand_for_themselves_while_epsilon_is_learned(rng):
    """They differ in one of their columns alone."""
    f = rng.uniform(-2.0, 2.0, (700, 1))
    X = np.pad(f, [(0, 0), (0, 3)])
    model = told_once(4.0, 1.0, X, f, rng)
    assert np.abs(np.asarray(model.predict_f(X)[0]) - f).max() < 0.5


@pytest.mark.parametrize(
    ("lengthscale", "most", "is_dense"), [(2.0, 1000, True), (0.05, 1000, False), (2.0, 680, False)]
)
def test_all_points_count_where_far_ones_say_more(rng, lengthscale, most, is_dense, monkeypatch):
    """700 rows of four inputs: a function that is smooth, one that is noise between them, or more
    rows than may all count, which do not either for the batch that made them too many.
    """
    monkeypatch.setattr("streaming_gp.gp.fit.data.NEAR_ROWS", 650)
    X, W = rng.uniform(-2.0, 2.0, (700, 4)), rng.standard_normal((4, 20)) / lengthscale
    f = np.sqrt(0.1) * np.cos(X @ W + rng.uniform(0.0, 6.0, 20)).sum(axis=1, keepdims=True)
    near = sgp.NearestNeighbors(num_neighbors_pred=10, dense_up_to=most)
    model = told_once(lengthscale, 0.1, X, f, rng, conditioning=near)
    for _ in range(2):
        assert (model.state.conditioning == near) == is_dense
        model.fade(0.9)


@pytest.mark.slow  # what is decided here the test before sees as well
def test_few_neighbours_count_where_a_function_is_not_as_its_kernel_says(rng):
    """A function with kinks: the more rows a smooth kernel is given, the surer it is than right."""
    X, X_new = rng.uniform(-1.0, 1.0, (1000, 2)), rng.uniform(-1.0, 1.0, (300, 2))
    Y, Y_new = (np.abs(some).sum(axis=1, keepdims=True) for some in (X, X_new))
    smooth = gpflow.kernels.SquaredExponential(lengthscales=np.ones(2))
    near, dense = (
        sgp.StreamingGP(smooth, gpflow.likelihoods.Gaussian(0.1), seed=0, **options)
        for options in ({}, {"conditioning": sgp.Dense()})
    )
    near.update((X, Y))
    dense.adopt(near.ledger)
    scores = []
    for model in (near, dense):
        mean, variance = map(np.asarray, model.predict_y(X_new))
        density = float(np.mean(model.predict_log_density((X_new, Y_new))))
        scores.append((density, np.mean((mean - Y_new) ** 2 / variance)))
    (ours, error), (joint, error_of_dense) = scores
    assert ours > joint + 0.3
    assert error < 1.2 < error_of_dense


@pytest.mark.parametrize(
    "near", [AllNear(), slow(sgp.NearestNeighbors())], ids=["as such", "switched"]
)
def test_a_stream_says_the_same_as_a_dense_one(rng, near, tmp_path):
    batches, new = [smooth_data(rng, size) for size in (1, 12, 12, 12)], spread(rng, 8)
    both = models(near)

    def each(change):
        for one in both:
            change(one)

    def agree(tolerance=EXACT):
        assert_same_predictions(*both, new, tolerance)
        scores = [evidence(one) for one in both]
        assert scores[0] == pytest.approx(scores[1], abs=tolerance)

    for batch in batches[:3]:
        each(lambda one, batch=batch: one.update(batch))
    X, Y = batches[1]
    each(lambda one: one.revisit("batch-1", (X, Y + 1.0), damping=0.5))
    agree()
    each(lambda one: one.remove("batch-2"))
    each(lambda one: one.fade(0.7))
    agree()
    ledger = both[0].ledger
    for place, one in enumerate(both):
        one.save(tmp_path / f"{place}.npz")
    both = [
        sgp.StreamingGP.load(
            tmp_path / f"{place}.npz", kernel(), gpflow.likelihoods.Gaussian(NOISE),
            gpflow.functions.Constant(2.0),
        )
        for place in range(2)
    ]  # fmt: skip
    assert both[0].settings.conditioning == near
    agree()
    each(lambda one: one.compress(15))
    each(lambda one: one.update(batches[3]))
    agree(1e-6)
    each(lambda one: one.adopt(ledger))
    agree()


@pytest.mark.slow
def test_epsilon_is_the_same_under_both(rng):
    both = models(hyperparameters=sgp.VariationalHyperparameters())
    for batch in (smooth_data(rng, 30), smooth_data(rng, 40)):
        for one in both:
            one.update(batch)
    means, variances = zip(
        *((q.mean, q.variance) for q in (m.hyperparameter_posterior for m in both)), strict=True
    )
    np.testing.assert_array_equal(*means)
    np.testing.assert_array_equal(*variances)
    assert_same_predictions(*both, spread(rng, 5), 1e-6, full_cov=(False,))


def test_labels_under_near_rows_are_close_to_joint_ones(rng):
    both = models(likelihood=gpflow.likelihoods.Bernoulli)
    for _ in range(2):
        X = spread(rng, 60)
        Y = (rng.uniform(size=(60, 1)) < 1.0 / (1.0 + np.exp(-3.0 * X[:, :1]))).astype(float)
        for one in both:
            one.update((X, Y))
    at = spread(rng, 20)
    near, dense = (one.predict_y(at)[0] for one in both)
    assert np.max(np.abs(near - dense)) < 0.02


@pytest.mark.parametrize(
    "make",
    [
        gpflow.likelihoods.Bernoulli,
        slow(lambda: gpflow.likelihoods.MultiClass(3)),
        slow(lambda: gpflow.likelihoods.Softmax(3)),
    ],
    ids=["Bernoulli", "MultiClass", "Softmax"],
)
def test_sites_by_as_many_neighbors_as_rows_are_joint_ones(rng, make):
    """Those of predictions are fewer: predictions alone condition on them."""
    near = sgp.NearestNeighbors(num_neighbors=500, num_neighbors_pred=20)
    both = [
        sgp.StreamingGP(kernel(), make(), hyperparameters=FIXED, conditioning=conditioning)
        for conditioning in (near, sgp.Dense())
    ]
    for _ in range(3):
        X = spread(rng, 30)
        Y = rng.integers(0, 2, (30, 1)).astype(float)
        infos = [one.update((X, Y)) for one in both]
        np.testing.assert_allclose(*(info.free_energy for info in infos), rtol=1e-8)
    factors = zip(*(one.factors.values() for one in both), strict=True)
    for some, others in factors:
        (found,), (wanted,) = (one.pseudo_observations for one in (some, others))
        np.testing.assert_allclose(found.precision, wanted.precision, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(found.precision_mean, wanted.precision_mean, atol=1e-6)


@pytest.mark.slow
def test_noisy_labels_of_classes_do_not_run_away_under_near_rows():
    """A likelihood that is not log-concave, in a function that is known well everywhere."""
    rng = np.random.default_rng(1)
    X = rng.uniform(-2.0, 2.0, (600, 2))
    wave = np.stack([np.sin(2.0 * X[:, 0]), np.cos(2.0 * X[:, 1]), np.sin(X.sum(axis=1))], axis=1)
    true = np.argmax(wave, axis=1)
    is_random = rng.uniform(size=len(X)) < 0.1
    Y = np.where(is_random, rng.integers(0, 3, len(X)), true)[:, None].astype(float)
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(variance=1.5), gpflow.likelihoods.MultiClass(3),
        hyperparameters=FIXED, conditioning=sgp.NearestNeighbors(num_neighbors_pred=30),
    )  # fmt: skip
    for rows in np.split(np.arange(600), 2):
        model.update((X[rows], Y[rows]))
    wrong = np.argmax(model.predict_y(X)[0], axis=1) != true
    assert wrong.mean() < 0.06


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 3])
def test_very_few_rows(rng, number):
    both = models(hyperparameters=sgp.VariationalHyperparameters())
    for one in both:
        one.update(smooth_data(np.random.default_rng(3), number))
    assert_same_predictions(*both, spread(rng, 4), 1e-7, full_cov=(False,))


@pytest.mark.parametrize(
    ("likelihood", "hyperparameters"),
    [
        (None, FIXED),
        slow(None, sgp.VariationalHyperparameters()),
        slow(gpflow.likelihoods.StudentT, sgp.VariationalHyperparameters()),
    ],
    ids=["known", "exact", "sites"],
)
def test_after_all_has_faded_a_stream_goes_on(rng, likelihood, hyperparameters):
    both = models(likelihood=likelihood, hyperparameters=hyperparameters)
    first, second, new = smooth_data(rng, 10), smooth_data(rng, 15), spread(rng, 5)
    for one in both:
        one.update(first, learn=False)
        one.fade(0.0)
    assert_same_predictions(*both, new, EXACT, full_cov=(False,))
    both[0].update(second)
    both[0].remove("batch-1")
    assert np.isfinite(both[0].predict_f(new)[0]).all()


# ---- the evidence of ε ----


def evidence_by(known, rng, X, Y, number=30):
    return of_members(known, [known.data(rng, X, Y)], number)


def of_members(known, members, number):
    return evidence_of(known.local, members, [], number, seed=1, rest=lambda data, epsilon: data)


def gpr(known, X, Y):
    return gpflow.models.GPR((X, Y), known.kernel, known.mean, noise_variance=known.noise)


def test_the_evidence_of_few_rows_is_that_of_an_exact_gp(rng):
    known, (X, Y) = Known(kernel()), smooth_data(rng, 50)
    found = evidence_by(known, rng, X, Y)
    sample = found.sample(20, known.epsilon)
    assert isinstance(found, ExactEvidence)
    assert sample.scale == 1.0
    value, _ = found.value_and_gradient(known.epsilon, sample)
    assert value == pytest.approx(float(gpr(known, X, Y).log_marginal_likelihood()), abs=EXACT)


@pytest.mark.parametrize(
    ("name", "columns", "mean"),
    [
        ("squared exponential", 1, gpflow.functions.Constant(0.7)),
        slow("sum", 1, gpflow.functions.Constant(0.7)),
        slow("linear", 1, gpflow.functions.Constant(0.7)),
        ("squared exponential", 40, gpflow.functions.Zero()),  # more than rows, which are turned
    ],
)
def test_rows_given_all_before_them_have_the_exact_evidence_together(
    rng, name, columns, mean, monkeypatch
):
    monkeypatch.setattr("streaming_gp.gp.fit.evidence.EXACT_ROWS", 0)
    known = Known(KERNELS[name][0](), columns, mean=mean)
    X, Y = smooth_data(rng, 12, columns)
    found = evidence_by(known, rng, X, Y)
    assert not isinstance(found, ExactEvidence)
    total, epsilon = 0.0, known.epsilon
    for row in range(1, 12):
        one = Sample(found._arguments(np.array([row]), np.ones(1), row, epsilon), 1.0)
        total += found.value_and_gradient(epsilon, one)[0]
    first = found._pool.Z[:1], found._pool.Y[:1]
    total += float(gpr(known, *first).log_marginal_likelihood())
    assert total == pytest.approx(float(gpr(known, X, Y).log_marginal_likelihood()), abs=1e-6)


@pytest.mark.parametrize(
    "name", ["squared exponential", *map(slow, ("sum", "mixing", "linear", "separate"))]
)
def test_its_gradient_is_that_of_finite_differences(rng, name, monkeypatch):
    """Of all rows together, and of some of them given their neighbours."""
    make, columns = KERNELS[name]
    known, (X, Y) = Known(make(), columns), smooth_data(rng, 40, columns)
    epsilon = known.epsilon + 0.1 * rng.standard_normal(known.epsilon.shape)
    for exact_rows in (1000, 0):
        monkeypatch.setattr("streaming_gp.gp.fit.evidence.EXACT_ROWS", exact_rows)
        found = evidence_by(known, rng, X, Y, number=10)
        sample = found.sample(15, epsilon)
        _, gradient = found.value_and_gradient(epsilon, sample)
        for step, slope in zip(1e-5 * np.eye(len(epsilon)), gradient, strict=True):
            up, down = (found.value_and_gradient(epsilon + s, sample)[0] for s in (step, -step))
            assert slope == pytest.approx((up - down) / 2e-5, rel=1e-4, abs=1e-4)


def test_a_sample_of_rows_that_have_faded_is_right_in_expectation(rng, monkeypatch):
    """Against the sum over all rows, and with most of what counts in few of them."""
    monkeypatch.setattr("streaming_gp.gp.fit.evidence.EXACT_ROWS", 0)
    known, (X, Y) = Known(kernel()), smooth_data(rng, 300)
    weights = np.where(rng.uniform(size=300) < 0.1, 1.0, 1e-3)
    member = known.data(rng, X, Y, weights)
    found, epsilon = of_members(known, [member], 10), known.epsilon
    everything = found.sample(300, epsilon)
    assert everything.arguments
    wanted = everything.scale * found.value_and_gradient(epsilon, everything)[0]
    samples = [found.sample(50, epsilon) for _ in range(40)]
    values = [one.scale * found.value_and_gradient(epsilon, one)[0] for one in samples]
    assert np.mean(values) == pytest.approx(wanted, abs=4.0 * np.std(values) / np.sqrt(40))
    uniform = np.std(weights) * np.sqrt(300.0 / 50.0) * 300**0.5
    assert np.std(values) < uniform


@pytest.mark.slow
def test_the_width_of_one_hyperparameter_is_that_of_its_posterior(rng):
    """A grid integral says what it is."""
    k, likelihood = gk.SquaredExponential(lengthscales=1.0), gpflow.likelihoods.Gaussian(NOISE)
    gpflow.set_trainable(k.variance, False)
    gpflow.set_trainable(likelihood, False)
    X, Y = smooth_data(rng, 60)
    model = sgp.StreamingGP(k, likelihood, hyperparameters=sgp.VariationalHyperparameters())
    prior = model.hyperparameter_posterior
    model.update((X, Y))
    q = model.hyperparameter_posterior
    oracle = gpflow.models.GPR((X, Y), gk.SquaredExponential(), noise_variance=NOISE)
    grid = np.linspace(-6.0, 6.0, 49) * np.sqrt(q.variance[0]) + q.mean[0]
    logs = []
    for value in grid:
        oracle.kernel.lengthscales.unconstrained_variable.assign(value)
        log_prior = -0.5 * (value - prior.mean[0]) ** 2 / prior.variance[0]
        logs.append(float(oracle.log_marginal_likelihood()) + log_prior)
    p = np.exp(np.array(logs) - np.max(logs))
    p /= p.sum()
    mean = p @ grid
    sd = np.sqrt(p @ (grid - mean) ** 2)
    assert abs(q.mean[0] - mean) < 0.1 * sd
    assert np.sqrt(q.variance[0]) == pytest.approx(sd, rel=0.1)


@pytest.mark.parametrize("q", [sgp.VariationalHyperparameters(), sgp.PointHyperparameters()])
def test_a_batch_after_one_that_learned_conditions_on_its_own_rows_alone(rng, monkeypatch, q):
    """What was computed at the new ε serves, to the last digit."""
    extended, sizes = DenseProcess.extended, []

    def noting(self, *members):
        sizes.append(sum(len(one.Z) for one in members))
        return extended(self, *members)

    X, Y = smooth_data(rng, 360)
    model = sgp.StreamingGP(
        kernel(), gpflow.likelihoods.Gaussian(0.1), hyperparameters=q,
        learning=sgp.WhenGrown(2.0), seed=0,
    )  # fmt: skip
    batches = [(X[start : start + 120], Y[start : start + 120]) for start in (0, 120, 240)]
    model.update(batches[0])
    model.update(batches[1], learn=True)
    monkeypatch.setattr(DenseProcess, "extended", noting)
    model.update(batches[2], learn=False)
    assert sizes == [120]


# ---- the index ----


def distances(coordinates, places, found):
    return np.sort(np.linalg.norm(coordinates[found] - places[:, None], axis=-1), axis=1)


@pytest.mark.parametrize("columns", [1, 3, 20])
@pytest.mark.parametrize("offset", [0.0, 2.0**30])
def test_an_index_that_grows_finds_what_brute_force_finds(rng, monkeypatch, columns, offset):
    monkeypatch.setattr(neighbors, "BRUTE_ROWS", 100)
    monkeypatch.setattr(neighbors, "BUFFER", 30)
    rows = np.round(rng.standard_normal((400, columns)) * 2**10) / 2**10 + offset
    places = rows[:5] + 0.125
    index = Index.of(rows[:60])
    for start, stop in ((60, 90), (90, 110), (110, 125), (125, 135), (135, 180), (180, 400)):
        index = index.extended(rows[start:stop])
        for number in (1, 7, stop):
            found = index.nearest(places, number)
            everything = np.linalg.norm(rows[:stop] - places[:, None], axis=-1)
            wanted = np.sort(everything, axis=1)[:, :number]
            np.testing.assert_allclose(distances(rows, places, found), wanted, rtol=1e-6)


@pytest.mark.parametrize("is_installed", [True, False])
def test_many_columns_have_the_neighbors_of_brute_force_with_and_without_faiss(
    rng, monkeypatch, is_installed
):
    if not is_installed:
        monkeypatch.setitem(sys.modules, "faiss", None)
    monkeypatch.setattr(neighbors, "BRUTE_ROWS", 100)
    monkeypatch.setattr(neighbors, "BUFFER", 30)
    rows = rng.standard_normal((300, 20))
    rows[250:] += 1e5  # too far for single precision
    index = Index.of(rows[:200])
    assert bool(index.trees) == is_installed
    index = pickle.loads(pickle.dumps(index))
    for stop in (230, 249, 300):
        index = index.extended(rows[index.coordinates.shape[0] : stop])
        places = np.concatenate([rows[:3] + 0.125, rows[:3] + 1e6, rows[-3:] + 0.125])
        everything = np.linalg.norm(rows[:stop] - places[:, None], axis=-1)
        wanted = np.sort(everything, axis=1)[:, :7]
        found = distances(rows, places, index.nearest(places, 7))
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize("columns", [2, 20])
def test_rows_on_both_sides_of_a_long_gap_keep_their_digits(rng, monkeypatch, columns):
    monkeypatch.setattr(neighbors, "BRUTE_ROWS", 50)
    rows = np.round(rng.standard_normal((60, columns)) * 2**10) / 2**10
    rows[::2] += 2.0**30
    places = rows[:6] + 0.125
    wanted = np.sort(np.linalg.norm(rows - places[:, None], axis=-1), axis=1)[:, :7]
    found = Index.of(rows).nearest(places, 7)
    np.testing.assert_allclose(distances(rows, places, found), wanted, rtol=1e-6)
    last = np.array([58, 59])
    for row, found in zip(
        last, nearest_earlier(rows, last, 5, np.zeros(len(rows), bool)), strict=True
    ):
        wanted = np.argsort(np.linalg.norm(rows[:row] - rows[row], axis=1))[:5]
        assert set(found) == set(wanted)


@pytest.mark.parametrize("offset", [0.0, 2.0**30])
def test_the_nearest_among_earlier_rows(rng, offset):
    A = np.round(rng.standard_normal((50, 2)) * 2**10) / 2**10 + offset
    rows = np.array([5, 20, 49])
    for row, found in zip(rows, nearest_earlier(A, rows, 5, np.zeros(len(A), bool)), strict=True):
        wanted = np.argsort(np.linalg.norm(A[:row] - A[row], axis=1))[:5]
        assert set(found) == set(wanted)


def test_cells_are_those_of_a_grid(rng):
    A = rng.standard_normal((500, 3))
    found = cells(A, 0.7)
    _, wanted = np.unique(np.floor(A / 0.7), axis=0, return_inverse=True)
    pairs = {(int(one), int(other)) for one, other in zip(found, np.ravel(wanted), strict=True)}
    assert len(pairs) == found.max() + 1 == np.max(wanted) + 1


def test_cells_without_a_side_are_equal_rows():
    A = np.array([[0.0, 1.0], [-0.0, 1.0], [0.0, 1.0 + 1e-15], [1.0, 0.0]])
    first, second, third, fourth = cells(A, 0.0)
    assert first == second
    assert len({first, third, fourth}) == 3


def test_neighbours_within_a_users_graph_start_no_other_graph(rng):
    """Where kernels are not of distances they are found by covariances, within the graph."""
    eagerly = []

    class Watched(gk.Linear):
        def K(self, X, X2=None):
            eagerly.append(tf.executing_eagerly())
            return super().K(X, X2)

    X = spread(rng, 30)
    model = sgp.StreamingGP(
        Watched(variance=np.ones(2)), gpflow.likelihoods.Gaussian(0.1),
        hyperparameters=FIXED, conditioning=sgp.NearestNeighbors(5, 5),
    )  # fmt: skip
    model.update((X, X[:, :1]))
    at = tf.constant(spread(rng, 3))
    wanted = model.predict_f(at)
    within = tf.function(model.predict_f)
    within(at)  # traces
    eagerly.clear()
    for one, other in zip(within(at), wanted, strict=True):
        np.testing.assert_allclose(one, other)
    assert eagerly
    assert all(eagerly)
