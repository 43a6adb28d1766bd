"""Shared pseudo-points, and the conditional forms of their bound (PVI 2018, app. C.3, eq. 89)."""

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp.errors import InvalidDataError
from tests.oracles.builders import (
    EVERY_INPUT,
    FIXED,
    MERGED,
    NOISE,
    assert_same_arrays,
    assert_same_predictions,
    evidence,
    exact_gp,
    kernel,
    known_model,
    mean_of_two,
    predicted,
    stream,
    thirds,
)
from tests.oracles.reference import smooth_data, svgp_at_optimum
from tests.tolerances import ALGEBRA, FREE_ENERGY_AT_OPTIMUM, THROUGH_CHOLESKY, THROUGH_NUGGET

EXACT_SITES = sgp.LocalOptimiser(rounds=1, site_steps=100)
SHORT = sgp.LocalOptimiser(max_iterations=24, rounds=3)
STILL = {"optimise_locations": False}
VISITED_THRICE = 3e-5
"""Absolute error of a free energy after three passes, in nats."""


def test_fixed_shared_points_are_sgpr_on_all_data_and_stay_so(data, new_inputs):
    shards = thirds(*data)
    streamed = stream(known_model(sgp.SharedPseudoPoints(12, **STILL)), shards)
    oracle = gpflow.models.SGPR(
        data, kernel(), streamed.factors["client-0"].Z,
        mean_function=mean_of_two(), noise_variance=NOISE,
    )  # fmt: skip
    nugget = streamed.factors["client-0"].pseudo_observations[0].nugget
    with gpflow.config.as_context(gpflow.config.Config(jitter=nugget)):
        elbo = float(oracle.elbo())
        predicted = oracle.predict_f(new_inputs)
    for visit in range(2):
        assert evidence(streamed) == pytest.approx(elbo, rel=ALGEBRA)
        assert_same_arrays(streamed.predict_f(new_inputs), predicted, THROUGH_CHOLESKY)
        if visit == 0:
            for name, shard in shards.items():
                streamed.revisit(name, shard)


@pytest.mark.slow
def test_revisits_on_shared_points_climb_to_svgp_on_all_data(data, new_inputs):
    X, labels = data[0], (data[1] > 0).astype(float)
    likelihood = gpflow.likelihoods.Bernoulli()
    points = sgp.SharedPseudoPoints(12, **STILL)
    streamed = sgp.StreamingGP(
        kernel(), likelihood, pseudo_points=points,
        hyperparameters=FIXED, optimiser=EXACT_SITES,
    )  # fmt: skip
    shards = thirds(X, labels)
    stream(streamed, shards)
    oracle, elbo = svgp_at_optimum(
        (X, labels), kernel(), likelihood, streamed.factors["client-0"].Z
    )
    after_one_pass = evidence(streamed)
    for _ in range(2):
        for name, shard in shards.items():
            streamed.revisit(name, shard)
    assert after_one_pass < elbo - 5e-5  # one pass is not enough
    assert evidence(streamed) == pytest.approx(elbo, abs=VISITED_THRICE)
    assert_same_predictions(streamed, oracle, new_inputs, FREE_ENERGY_AT_OPTIMUM, (False,))


@pytest.mark.slow
def test_moving_shared_points_bound_the_evidence_from_below(data):
    X, Y = data
    order = np.argsort(X[:, 0])
    fitted = known_model(sgp.SharedPseudoPoints(25, kept_batches=2))
    free_energies = [fitted.update((X[i], Y[i])).free_energy for i in np.array_split(order, 4)]
    exact = exact_gp(data)
    truth = float(exact.log_marginal_likelihood())
    assert truth - 20.0 < sum(free_energies) < truth
    assert evidence(fitted) == pytest.approx(sum(free_energies), abs=THROUGH_CHOLESKY)
    assert list(fitted.factors) == [MERGED, "batch-2", "batch-3"]
    assert fitted.posterior_process.num_pseudo_points == 25
    with pytest.raises(InvalidDataError, match=r"no factor 'batch-0'.*merged"):
        fitted.revisit("batch-0", data)


def test_as_many_shared_points_as_data_are_exact(rng, new_inputs):
    X, Y = smooth_data(rng, 21)
    exact = stream(known_model(EVERY_INPUT), thirds(X, Y))
    to_the_end = sgp.LocalOptimiser(tolerance=0.0)
    shared = known_model(sgp.SharedPseudoPoints(21), optimiser=to_the_end)
    stream(shared, thirds(X, Y))
    assert_same_predictions(exact, shared, new_inputs, 10.0 * THROUGH_NUGGET, (False,))
    assert evidence(shared) == pytest.approx(evidence(exact), abs=100.0 * THROUGH_NUGGET)


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", ["regression", "classification"])
@pytest.mark.parametrize(
    "hyperparameters",
    [sgp.VariationalHyperparameters(), sgp.PointHyperparameters(remember=True)],
    ids=["variational", "point"],
)
@pytest.mark.parametrize(
    "points", [sgp.SharedPseudoPoints(15), sgp.ConditionalPseudoPoints(10)], ids=str
)
def test_they_learn_hyperparameters(data, points, likelihood, hyperparameters):
    X, Y = data
    regression = likelihood == "regression"
    targets = Y if regression else (Y > 0).astype(float)
    chosen = gpflow.likelihoods.Gaussian(0.5) if regression else gpflow.likelihoods.Bernoulli()
    fitted = sgp.StreamingGP(
        kernel(), chosen, pseudo_points=points, hyperparameters=hyperparameters, optimiser=SHORT
    )
    for rows in np.array_split(np.argsort(X[:, 0]), 3):
        fitted.update((X[rows], targets[rows]))
    mean = np.asarray(fitted.predict_y(X)[0])
    if regression:
        assert np.mean((mean - Y) ** 2) < 0.1 * np.var(Y)
        assert 0.002 < float(fitted.likelihood.variance.numpy()) < 0.1
    else:
        assert np.mean((mean > 0.5) == (targets > 0.5)) > 0.9


@pytest.fixture
def conditional_and_private():
    return tuple(
        known_model(points(8, **STILL), optimiser=SHORT)
        for points in (sgp.ConditionalPseudoPoints, sgp.PrivatePseudoPoints)
    )


def test_the_first_batch_is_private_and_so_is_one_out_of_reach(rng, conditional_and_private):
    X, Y = smooth_data(rng, 60)
    conditional, private = conditional_and_private
    for shift in (0.0, 50.0):  # nothing that lies 50 lengthscales away can correct the first
        a, b = (fitted.update((X + shift, Y)) for fitted in (conditional, private))
        assert a.free_energy == pytest.approx(b.free_energy, abs=THROUGH_CHOLESKY)
    inputs = np.concatenate([X[:20], X[:20] + 50.0]) + 0.1
    assert_same_predictions(conditional, private, inputs)


def test_earlier_points_stay_frozen_and_the_bound_lies_below_the_private_one(
    rng, conditional_and_private
):
    X, Y = smooth_data(rng, 60)
    order = np.argsort(X[:, 0])
    first, second = order[:30], order[30:]
    conditional, private = conditional_and_private
    for fitted in (conditional, private):
        fitted.update((X[first], Y[first]), batch_id="first")
    Z = conditional.factors["first"].Z
    before = predicted(conditional, Z)
    gap = [fitted.update((X[second], Y[second])).free_energy for fitted in (conditional, private)]
    nugget = conditional.factors["first"].pseudo_observations[0].nugget
    assert_same_arrays(conditional.predict_f(Z), before, 10.0 * nugget)  # f is u but for it
    assert np.abs(private.predict_f(Z)[0] - before[0]).max() > 1e-3  # private points do learn
    assert gap[0] < gap[1]


def test_only_the_newest_batch_can_be_taken_back(rng, conditional_and_private):
    (X, Y), (fitted, _) = smooth_data(rng, 40), conditional_and_private
    fitted.update((X[:20], Y[:20]), batch_id="first")
    before = predicted(fitted, X)
    fitted.update((X[20:], Y[20:]), batch_id="second")
    for refused in (
        lambda: fitted.remove("first"),
        lambda: fitted.revisit("first", (X[:20], Y[:20])),
    ):
        with pytest.raises(InvalidDataError, match="only the newest factor"):
            refused()
    with pytest.raises(InvalidDataError, match="cannot be compressed"):
        fitted.compress(3)
    with pytest.raises(InvalidDataError, match="cannot be damped"):
        fitted.revisit("second", (X[20:], Y[20:]), damping=0.5)
    after = predicted(fitted, X)
    fitted.revisit("second", (X[20:], Y[20:]))
    assert_same_arrays(fitted.predict_f(X), after, THROUGH_CHOLESKY)
    fitted.remove("second")
    assert_same_arrays(fitted.predict_f(X), before, 0.0)


@pytest.mark.slow
def test_one_datum_does_not_overrule_the_frozen_points(rng):
    """The fit goes to its end: without the memory the variance collapses, but by little a step."""
    X = rng.uniform(-3, 3, (61, 1))
    Y = np.sin(2.0 * X) + 0.1 * rng.standard_normal(X.shape)
    variances = {}
    for remember in (True, False):
        fitted = sgp.StreamingGP(
            gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian(0.1),
            pseudo_points=sgp.ConditionalPseudoPoints(10),
            hyperparameters=sgp.PointHyperparameters(remember=remember),
            optimiser=sgp.LocalOptimiser(tolerance=0.0),
        )  # fmt: skip
        fitted.update((X[:60], Y[:60]))
        before = fitted.kernel.variance.numpy()
        fitted.update((X[60:], Y[60:]))
        variances[remember] = fitted.kernel.variance.numpy() / before
    assert 0.5 < variances[True] < 2.0
    assert variances[False] < 0.1


def test_other_bounds_are_refused():
    with pytest.raises(InvalidDataError, match="takes no other bound"):
        sgp.StreamingGP(
            gpflow.kernels.Matern52(), gpflow.likelihoods.Gaussian(0.1),
            pseudo_points=sgp.ConditionalPseudoPoints(5), alpha=0.5,
        )  # fmt: skip


def test_at_one_epsilon_they_are_shared_points(rng):
    """Whether q(b) depends on ε makes no difference where there is one ε."""
    X, Y = smooth_data(rng, 40)
    independent = known_model(sgp.IndependentPseudoPoints(12, **STILL))
    shared = known_model(sgp.SharedPseudoPoints(12, **STILL))
    data = [(X[:20], Y[:20]), (X[:20], Y[20:])]  # at the same inputs the points are the same
    for batch in data:
        one, other = (model.update(batch) for model in (independent, shared))
        assert one.free_energy == pytest.approx(other.free_energy, abs=100.0 * THROUGH_NUGGET)
    assert_same_predictions(independent, shared, X, 10.0 * THROUGH_NUGGET)
    assert evidence(independent) == pytest.approx(evidence(shared), abs=100.0 * THROUGH_NUGGET)


@pytest.mark.slow
def test_they_learn_hyperparameters_and_the_newest_factor_holds_all_points():
    rng = np.random.default_rng(2)
    X = np.sort(rng.uniform(-3, 3, (90, 1)), axis=0)
    Y = np.sin(2.0 * X) + 0.1 * rng.standard_normal(X.shape)
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian(0.5),
        pseudo_points=sgp.IndependentPseudoPoints(15, growth=6),
        optimiser=sgp.LocalOptimiser(max_iterations=20),
    )  # fmt: skip
    thirds = np.split(np.arange(90), 3)
    numbers = [model.update((X[rows], Y[rows])).num_pseudo_points for rows in thirds]
    assert numbers == [6, 12, 15]
    assert list(model.factors) == [MERGED, "batch-2"]
    assert not model.factors[MERGED].pseudo_observations
    assert model.posterior_process.num_pseudo_points == 15
    assert np.mean((np.asarray(model.predict_f(X)[0]) - Y) ** 2) < 0.1 * np.var(Y)


def test_nothing_can_be_taken_apart(rng):
    X, Y = smooth_data(rng, 40)
    model = known_model(sgp.IndependentPseudoPoints(6, **STILL))
    for i in range(2):
        model.update((X[i::2], Y[i::2]), learn=False)
    before = predicted(model, X)
    for refused, message in (
        (lambda: model.revisit("batch-1", (X[1::2], Y[1::2])), "no factor can be revisited"),
        (lambda: model.remove("batch-1"), "no factor can be revisited or removed"),
        (lambda: model.compress(3), "cannot be compressed"),
        (lambda: model.fade(0.5), "nothing can be forgotten"),
        (lambda: model.synchronous_round({"a": (X, Y)}), "need pseudo-points of their own"),
    ):
        with pytest.raises(InvalidDataError, match=message):
            refused()
    assert_same_arrays(model.predict_f(X), before, 0.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hyperparameters": sgp.PointHyperparameters()}, "for a point there are SharedPseudo"),
        ({"hyperparameters": FIXED, "alpha": 0.5}, "takes no other bound"),
    ],
)
def test_what_they_are_not_for_is_refused(options, message):
    with pytest.raises(InvalidDataError, match=message):
        known_model(sgp.IndependentPseudoPoints(5), **options)
