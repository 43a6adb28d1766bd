"""A past that fades, or leaves by a window: exact where GPs are."""

import gpflow
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

import streaming_gp as sgp
from streaming_gp.errors import InvalidDataError
from tests.laws import slow
from tests.oracles.builders import (
    EVERY_INPUT,
    FIXED,
    MERGED,
    NOISE,
    QUICK,
    assert_same_arrays,
    assert_same_predictions,
    evidence,
    kernel,
    known_model,
    model_of,
    predicted,
)
from tests.oracles.reference import assert_same, smooth_data
from tests.oracles.saved_streams import batch, begun, content, regression, resumed
from tests.oracles.trees import same
from tests.tolerances import ALGEBRA, THROUGH_NUGGET

MEAN, POWER = 2.0, 0.6
WEIGHTS = {
    "fading": (sgp.Fading(POWER), POWER ** np.array([3.0, 2.0, 1.0, 0.0])),
    "window": (sgp.SlidingWindow(2), np.array([0.0, 0.0, 1.0, 1.0])),
}
DISTINCT = 12
"""The inputs of all batches of the law, so that so many points hold all that they say."""
LAW = {
    "all": (EVERY_INPUT, ALGEBRA),
    "all, near": (EVERY_INPUT, ALGEBRA),
    "all, budget not reached": (sgp.PrivatePseudoPoints("all", budget=99), ALGEBRA),
    "all, merged": (sgp.PrivatePseudoPoints("all", budget=26), THROUGH_NUGGET),
    "private": (sgp.PrivatePseudoPoints(DISTINCT), THROUGH_NUGGET),
    "private, fixed": (
        sgp.PrivatePseudoPoints(DISTINCT, optimise_locations=False), THROUGH_NUGGET
    ),
    "private, merged": (sgp.PrivatePseudoPoints(DISTINCT, budget=24), THROUGH_NUGGET),
    "shared": (sgp.SharedPseudoPoints(DISTINCT), THROUGH_NUGGET),
    "shared, fixed": (sgp.SharedPseudoPoints(DISTINCT, optimise_locations=False), THROUGH_NUGGET),
}  # fmt: skip
WITH_OTHERS_ALIKE = {"all, budget not reached", "private", "shared"}
TIMES, AGES = [10.0, 10.5, 13.0, 13.0], np.array([3.0, 2.5, 0.0, 0.0])


@pytest.fixture(scope="module")
def batches():
    rng = np.random.default_rng(11)
    return [smooth_data(rng, 15) for _ in range(4)]


@pytest.fixture(scope="module")
def learned():
    """A model that fades, after two batches: of the first one hyperparameters were learned."""
    rng = np.random.default_rng(12)
    hyperparameters = sgp.VariationalHyperparameters(num_samples=2)
    model = model_of(hyperparameters, optimiser=QUICK, forgetting=sgp.Fading(0.25))
    model.update(smooth_data(rng, 12))
    before = model.ledger
    model.update(smooth_data(rng, 12), learn=False)
    return before, model.ledger


def joined(batches):
    X, Y = zip(*batches, strict=True)
    return np.concatenate(X), np.concatenate(Y)


def exact(batches, weights, X_new):
    """The exact GP in which the noise of batch t is divided by its weight: moments at X_new."""
    X, Y = joined(batches)
    noise = NOISE / np.repeat(weights, [len(X) for X, _ in batches])
    K, K_new = kernel()(X).numpy() + np.diag(noise), kernel()(X_new, X).numpy()
    mean = MEAN + K_new @ np.linalg.solve(K, Y - MEAN)
    return mean, kernel()(X_new).numpy() - K_new @ np.linalg.solve(K, K_new.T)


def law_batches():
    rng = np.random.default_rng(3)
    sites = np.stack(np.meshgrid(np.linspace(-2, 2, 4), [-2.0, -0.7, 0.7]), -1).reshape(-1, 2)
    return [
        (X, np.sin(X[:, :1]) + np.cos(X[:, 1:]) + NOISE**0.5 * rng.normal(size=(DISTINCT, 1)))
        for X in (rng.permutation(sites) for _ in range(4))
    ]


def law_model(name, rule, hyperparameters, batches):
    points, _ = LAW[name]
    near = sgp.NearestNeighbors(num_neighbors_pred=4 * DISTINCT - 1)  # of four times as many, all
    model = known_model(
        points, hyperparameters=hyperparameters, forgetting=WEIGHTS[rule][0],
        conditioning=near if "near" in name else None, optimiser=QUICK,
    )  # fmt: skip
    for data in batches:
        model.update(data, learn=None if hyperparameters is FIXED else True)
    return model


def at_every_epsilon(model, batches, weights, X_new):
    """The law at the values of ε over which a model predicts: moments, averaged."""
    vector, X, Y = model.parameter_vector, *joined(batches)
    divided, now, found = np.repeat(weights, DISTINCT), vector.value(), []
    X, Y, divided = X[divided > 0.0], Y[divided > 0.0], divided[divided > 0.0]
    for epsilon in model.prediction_draws:
        vector.assign(epsilon)
        noise = model.likelihood.variance.numpy() / divided
        K, K_new = model.kernel(X).numpy() + np.diag(noise), model.kernel(X_new, X).numpy()
        mean = model.mean_function.c.numpy()
        mean = mean + K_new @ np.linalg.solve(K, Y - mean)
        lost = np.einsum("ij,ji->i", K_new, np.linalg.solve(K, K_new.T))
        found.append((mean, model.kernel(X_new, full_cov=False).numpy() - lost))
    vector.assign(now)
    means, variances = map(np.stack, zip(*found, strict=True))
    return means.mean(axis=0), (variances.mean(axis=0) + means[:, :, 0].var(axis=0))[:, None]


@pytest.mark.parametrize("rule", WEIGHTS)
@pytest.mark.parametrize(  # of the law "all" the next tests see more
    "name", [slow(one) if one in WITH_OTHERS_ALIKE else one for one in LAW if one != "all"]
)
def test_the_posterior_is_the_gp_whose_noise_is_divided_by_the_weights(name, rule, rng):
    if rule == "window" and LAW[name][0].allowed.window == 0:
        pytest.skip("within a budget there is no window")
    batches, X_new = law_batches(), rng.uniform(-2.0, 2.0, (20, 2))
    model = law_model(name, rule, FIXED, batches)
    wanted = at_every_epsilon(model, batches, WEIGHTS[rule][1], X_new)
    assert_same_arrays(model.predict_f(X_new), wanted, LAW[name][1])


@pytest.mark.parametrize(
    ("name", "hyperparameters", "rule"),
    [
        ("all", sgp.PointHyperparameters(), "window"),
        slow("all, near", sgp.VariationalHyperparameters(full_covariance=True), "fading"),
        slow("all, budget not reached", sgp.PointHyperparameters(), "fading"),
    ],
)
def test_with_learned_epsilon_it_is_what_that_epsilon_says(name, hyperparameters, rule, rng):
    batches, X_new = law_batches(), rng.uniform(-2.0, 2.0, (20, 2))
    model = law_model(name, rule, hyperparameters, batches)
    wanted = at_every_epsilon(model, batches, WEIGHTS[rule][1], X_new)
    assert_same_arrays(model.predict_f(X_new), wanted, ALGEBRA)


@pytest.mark.slow
def test_merges_do_not_undo_fading_where_epsilon_is_learned(rng):
    """The function changes its sign half way, and merged points have faded as single ones have."""
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(),
        gpflow.likelihoods.Gaussian(0.01),
        pseudo_points=sgp.PrivatePseudoPoints("all", budget=40),
        hyperparameters=sgp.PointHyperparameters(),
        forgetting=sgp.Fading(0.4),
        optimiser=QUICK,
    )
    for number in range(10):
        X = rng.uniform(-3.0, 3.0, (16, 1))
        sign = -1.0 if number >= 4 else 1.0
        model.update((X, sign * np.sin(2.0 * X) + 0.1 * rng.standard_normal(X.shape)))
    X_new = np.linspace(-2.8, 2.8, 50)[:, None]
    error = np.asarray(model.predict_f(X_new)[0]) + np.sin(2.0 * X_new)
    assert np.sqrt(np.mean(error**2)) < 0.12


def log_density(Y, mean, covariance):
    return scipy.stats.multivariate_normal.logpdf(np.ravel(Y), np.ravel(mean), covariance)


def test_fading_is_the_exact_gp_whose_noise_grows_with_age(batches, rng):
    X_new = rng.uniform(-2.0, 2.0, (20, 2))
    model = known_model(EVERY_INPUT, forgetting=sgp.Fading(POWER))
    infos = [model.update(data, time=t) for data, t in zip(batches, TIMES, strict=True)]
    weights = POWER**AGES
    mean, covariance = exact(batches, weights, X_new)
    assert_same_arrays(model.predict_f(X_new, True), (mean, covariance[None]), ALGEBRA)
    X, Y = joined(batches)
    w = np.repeat(weights, 15)
    lost = 0.5 * np.sum(w * np.log(2.0 * np.pi * NOISE) - np.log(2.0 * np.pi * NOISE / w))
    K = kernel()(X).numpy() + np.diag(NOISE / w)
    known = log_density(Y, np.full_like(Y, MEAN), K)
    assert evidence(model) == pytest.approx(known - lost, rel=ALGEBRA)
    X, Y = batches[-1]
    mean, covariance = exact(batches[:-1], weights[:-1], X)
    before = log_density(Y, mean, covariance + NOISE * np.eye(15))
    assert infos[-1].free_energy == pytest.approx(before, rel=ALGEBRA)


def test_a_window_is_the_exact_gp_on_its_batches(batches, rng):
    X_new = rng.uniform(-2.0, 2.0, (20, 2))
    model = known_model(EVERY_INPUT, forgetting=sgp.SlidingWindow(2))
    for data in batches:
        model.update(data)
    mean, covariance = exact(batches[2:], np.ones(2), X_new)
    assert_same_arrays(model.predict_f(X_new, True), (mean, covariance[None]), ALGEBRA)
    assert list(model.factors) == ["batch-2", "batch-3"]
    X, Y = joined(batches[2:])
    known = log_density(Y, np.full_like(Y, MEAN), kernel()(X).numpy() + NOISE * np.eye(len(X)))
    assert evidence(model) == pytest.approx(known, rel=ALGEBRA)


@pytest.mark.parametrize("forgetting", [sgp.Fading(1.0), sgp.SlidingWindow(3)], ids=str)
def test_where_nothing_is_forgotten_a_batch_finds_the_ledger_itself(learned, forgetting):
    _, ledger = learned
    assert forgetting.forget(ledger, 1.0) is ledger


def test_a_fade_leaves_epsilon_alone(learned):
    before, after = learned
    old, new = before.factors["batch-0"], after.factors["batch-0"]
    (rows,), (faded,) = old.pseudo_observations, new.pseudo_observations
    np.testing.assert_allclose(faded.weights, 0.25 * rows.weights, rtol=ALGEBRA)
    np.testing.assert_array_equal(faded.Y, rows.Y)
    assert new.log_scale == pytest.approx(0.25 * old.log_scale, rel=ALGEBRA)
    assert new.hyperparameters is old.hyperparameters
    assert_same(*(one.posterior.hyperparameters for one in learned), ALGEBRA)


def test_batches_that_leave_a_window_still_speak_of_epsilon(learned):
    _, before = learned
    after = sgp.SlidingWindow(2).forget(before, 1.0)
    assert list(after.factors) == [MERGED, "batch-1"]
    gone = after.factors[MERGED]
    assert (gone.Z.shape, gone.precision.size, gone.precision_mean.size) == ((0, 0), 0, 0)
    assert gone.log_scale == 0.0
    (kept,) = after.posterior.pseudo_observations
    assert kept is before.factors["batch-1"].pseudo_observations[0]
    assert_same(*(one.posterior.hyperparameters for one in (before, after)), ALGEBRA)
    assert sgp.SlidingWindow(2).forget(after, 1.0) is after  # it counts what speaks of f
    assert list(sgp.SlidingWindow(1).forget(after, 1.0).factors) == [MERGED]


def test_a_fade_by_hand_is_that_of_one_batch(batches, new_inputs):
    by_hand = known_model(EVERY_INPUT)
    fades = known_model(EVERY_INPUT, forgetting=sgp.Fading(POWER))
    by_hand.fade(0.0)  # before any data there is nothing to fade
    by_hand.update(batches[0])
    fades.update(batches[0])
    by_hand.fade(POWER)
    by_hand.update(batches[1])
    fades.update(batches[1])
    assert same(by_hand.state.factors, fades.state.factors)
    by_hand.fade(0.0)
    assert not by_hand.factors
    assert_same_predictions(by_hand, known_model(EVERY_INPUT), new_inputs)


def test_within_a_budget_the_faded_gp_is_hardly_lost(rng):
    X, Y = smooth_data(rng, 120)
    model = known_model(sgp.PrivatePseudoPoints("all", budget=60), forgetting=sgp.Fading(POWER))
    parts = [(X[i : i + 15], Y[i : i + 15] + MEAN) for i in range(0, 120, 15)]
    for data in parts:
        model.update(data)
    assert model.posterior_process.num_pseudo_points <= 60
    X_new = rng.uniform(-2.0, 2.0, (40, 2))
    mean, covariance = exact(parts, POWER ** np.arange(7.0, -1.0, -1.0), X_new)
    found, variance = predicted(model, X_new)
    assert np.max(np.abs(found - mean)) < 0.02
    assert np.mean(np.abs(np.ravel(variance) / np.diag(covariance) - 1.0)) < 0.1


CONTINUED = {
    "fixed": {"forgetting": sgp.Fading(0.5), "pseudo_points": EVERY_INPUT},
    "variational": {"forgetting": sgp.SlidingWindow(2), "pseudo_points": sgp.SharedPseudoPoints(3)},
}


@pytest.mark.parametrize("name", ["fixed", slow("variational")])
def test_files_journals_and_copies_go_on_alike(tmp_path, name, request):
    if name == "fixed":  # each copy is a kind of its own, and asked for next to nothing
        request.getfixturevalue("eager")
    journal = tmp_path / "journal"
    model = begun(name, journal=journal, **CONTINUED[name])
    for index, time in enumerate((0.0, 2.0, None)):
        model.update(batch("", index), time=time)
    model.save(tmp_path / "stream.npz")
    copies = [
        gpflow.utilities.deepcopy(model),
        sgp.StreamingGP.load(tmp_path / "stream.npz", **regression(2.0)),
        resumed(journal),
    ]
    for copy in copies:
        copy.update(batch("", 3), time=3.5)
    assert len({content(copy, tmp_path) for copy in [*copies, resumed(journal)]}) == 1
    assert (model.state.time, copy.state.time) == (3.0, 3.5)


def test_a_time_that_runs_backwards_is_refused_and_a_refused_batch_takes_no_time(batches):
    model = known_model(EVERY_INPUT, forgetting=sgp.Fading(POWER))
    model.update(batches[0], time=5)
    before = model.state
    for time, message in ((4.9, "runs backwards: .* 5.0, got 4.9"), (np.nan, "finite number"),
                          ("now", "finite number, got 'now'")):  # fmt: skip
        with pytest.raises(InvalidDataError, match=message):
            model.update(batches[1], time=time)
    with pytest.raises(InvalidDataError, match="Y must be finite"):
        model.update((batches[1][0], np.nan * batches[1][1]), time=9.0)
    assert same(model.state, before)


REFUSED = {
    "conditional": (
        lambda: known_model(sgp.ConditionalPseudoPoints(3), forgetting=sgp.Fading(0.9)),
        "nothing can be forgotten",
    ),
    "conditional by hand": (
        lambda: known_model(sgp.ConditionalPseudoPoints(3)).fade(0.5),
        "nothing can be forgotten",
    ),
    "budget": (
        lambda: known_model(
            sgp.PrivatePseudoPoints(3, budget=9), forgetting=sgp.SlidingWindow(5)
        ),
        "its budget merges batches",
    ),
    "shared": (
        lambda: known_model(
            sgp.SharedPseudoPoints(3, kept_batches=4), forgetting=sgp.SlidingWindow(5)
        ),
        "a sliding window of 5 batches wants as many",
    ),
    "by hand": (lambda: known_model(EVERY_INPUT).fade(1.1), "power must lie in"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_forgotten_is_refused(name):
    call, message = REFUSED[name]
    with pytest.raises(InvalidDataError, match=message):
        call()


def test_what_has_faded_counts_by_its_weight_where_epsilon_is_learned(rng):
    """The evidence of all data, weights and constants included, is where the model says it is."""
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian(0.1),
        hyperparameters=sgp.PointHyperparameters(), seed=0,
    )  # fmt: skip
    model.update(smooth_data(rng, 20, input_dim=1))
    model.fade(0.3)
    model.update(smooth_data(rng, 15, input_dim=1), learn=True)
    with tf.GradientTape() as tape:
        value = model.maximum_log_likelihood_objective()
    slopes = tape.gradient(value, model.trainable_variables)
    assert max(abs(float(one)) for one in slopes) < 0.05
