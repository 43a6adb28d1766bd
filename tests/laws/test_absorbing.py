"""Updates that learn nothing: linear algebra at the present q(ε)."""

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp import datasets, pvi
from streaming_gp.gp import Arrival
from tests.laws import slow
from tests.oracles.builders import (
    EVERY_INPUT,
    FIXED,
    assert_same_arrays,
    known_model,
    predicted,
    regressor,
)
from tests.tolerances import ALGEBRA

FIXED_POINTS = sgp.PrivatePseudoPoints(6, optimise_locations=False)
STRATEGIES = {
    "own": FIXED_POINTS,
    "all": EVERY_INPUT,
    "shared": sgp.SharedPseudoPoints(8, optimise_locations=False),
}


@pytest.fixture
def labels(rng):
    X = rng.uniform(-3.0, 3.0, (20, 1))
    return X, (np.sin(2.0 * X) > 0.0).astype(float)


@pytest.mark.parametrize("name", ["all", slow("own"), slow("shared")])
def test_absorbing_is_an_update_at_known_hyperparameters(data, new_inputs, name):
    X, Y = data
    model, batches = known_model(STRATEGIES[name]), [(X[i::3], Y[i::3]) for i in range(3)]
    learned = [model.update(batch) for batch in batches]
    before = [predicted(model, new_inputs), model.predict_f(new_inputs, True)]
    model.adopt(pvi.Ledger(model.prior()))
    for one, batch in zip(learned, batches, strict=True):
        other = model.update(batch, learn=False)
        assert other.iterations == 0
        np.testing.assert_allclose(one.free_energy, other.free_energy, rtol=ALGEBRA)
    for full_cov, wanted in enumerate(before):
        assert_same_arrays(model.predict_f(new_inputs, bool(full_cov)), wanted, ALGEBRA)


def test_absorbing_labels_is_an_update_at_known_hyperparameters(labels):
    X, Y = labels
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Bernoulli(),
        pseudo_points=FIXED_POINTS, hyperparameters=FIXED,
        optimiser=sgp.LocalOptimiser(rounds=1, site_steps=200),
    )  # fmt: skip
    found = []
    for learn in (None, False):
        model.adopt(pvi.Ledger(model.prior()))
        for rows in (slice(0, 10), slice(10, 20)):
            model.update((X[rows], Y[rows]), learn=learn)
        found.append([*predicted(model, X), model.predict_f(X, True)[1]])
    assert_same_arrays(*found, 1e-6)  # where the steps on the sites rest


@pytest.mark.slow
def test_a_schedule_says_which_updates_learn(data, tmp_path):
    X, Y = data
    model = regressor(pseudo_points=EVERY_INPUT, learning=sgp.EveryUpdate(every=2))
    iterations = [model.update((X[i::5], Y[i::5])).iterations for i in range(4)]
    assert [count > 0 for count in iterations] == [True, False, True, False]
    q, values = model.hyperparameter_posterior, model.parameter_vector.value()
    assert model.update((X[4::5], Y[4::5]), learn=False).iterations == 0
    np.testing.assert_allclose(model.hyperparameter_posterior.mean, q.mean, rtol=ALGEBRA)
    np.testing.assert_allclose(model.hyperparameter_posterior.variance, q.variance, rtol=ALGEBRA)
    np.testing.assert_allclose(model.parameter_vector.value(), values, rtol=ALGEBRA)
    model.save(tmp_path / "stream.npz")
    loaded = sgp.StreamingGP.load(tmp_path / "stream.npz", model.kernel, model.likelihood)
    assert loaded.settings.learning == sgp.EveryUpdate(every=2)
    assert loaded.state.shift == model.state.shift < np.inf


@pytest.mark.parametrize(
    ("schedule", "wanted"),
    [
        (sgp.EveryUpdate(), [True, True, True, True]),
        (sgp.EveryUpdate(every=3), [True, False, False, True]),
        (sgp.UntilSettled(shift=0.5, every=None, growth=None), [True, True, False, False]),
        (sgp.UntilSettled(shift=0.5, every=3, growth=None), [True, True, False, True]),
        (sgp.UntilSettled(shift=0.5, every=None, growth=1.0), [True, True, False, True]),
        (sgp.NeverLearn(), [False, False, False, False]),
    ],
)
def test_schedules(schedule, wanted):
    shifts = [np.inf, 0.7, 0.3, 0.1]
    assert [schedule.wants(Arrival(n, shift)) for n, shift in enumerate(shifts)] == wanted


def test_a_settled_stream_learns_whenever_it_has_grown_by_half():
    schedule = sgp.UntilSettled(every=None)
    learns = [n for n in range(101) if schedule.wants(Arrival(n, 0.0))]
    assert learns == [1, 2, 3, 5, 7, 11, 17, 25, 38, 57, 86]
    by_next_to_nothing = sgp.UntilSettled(every=None, growth=1e-320)
    assert all(by_next_to_nothing.wants(Arrival(n, 0.0)) for n in range(1, 50))


@pytest.mark.parametrize(
    ("growth", "surprise", "learns"),
    [(1.5, 3.0, True), (1.5, 1.9, False), (1.1, 3.0, False), (2.0, 1.0, True), (1.9, 1.0, True),
     (1.8, 1.0, False)],
)  # fmt: skip
def test_a_stream_learns_where_it_surprises_or_comes_nearest_to_having_doubled(
    growth, surprise, learns
):
    """The next of as large batches would bring a growth of 1.9 to 2.2, and one of 1.8 to 2.1."""
    arrival = Arrival(5, growth=growth, num_data=1000, median_error=lambda: surprise)
    assert sgp.WhenGrown().wants(arrival) == learns


# ---- labels of one class ----


def of_class(data, number):
    X, Y = data
    return X[Y[:, 0] == number], Y[Y[:, 0] == number]


def classifier(likelihood=None, **options):
    """It hardly moves, as the laws ask only whether it learns."""
    given = {"pseudo_points": EVERY_INPUT, "hyperparameters": sgp.PointHyperparameters(), **options}
    return sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(), likelihood or gpflow.likelihoods.Bernoulli(),
        optimiser=sgp.LocalOptimiser(max_iterations=2, rounds=1, site_steps=5), **given,
    )  # fmt: skip


@pytest.mark.parametrize(
    "strategy",
    [sgp.PointHyperparameters(), slow(sgp.VariationalHyperparameters(num_samples=2))],
    ids=["a point", "a distribution"],
)
def test_hyperparameters_stay_where_they_are_until_there_are_two_classes(labels, strategy):
    model = classifier(hyperparameters=strategy, learning=sgp.EveryUpdate())
    before, (X, Y) = model.parameter_vector.value(), of_class(labels, 1.0)
    found = [model.update((X[rows], Y[rows])) for rows in (slice(0, 5), slice(5, None))]
    assert [one.iterations for one in found] == [0, 0]
    np.testing.assert_array_equal(model.parameter_vector.value(), before)
    assert model.state.only_class == 1.0
    assert model.update(of_class(labels, 0.0)).iterations > 0
    assert model.state.only_class is None
    assert model.update((X, Y)).iterations > 0
    assert not np.allclose(model.parameter_vector.value(), before)


@pytest.mark.slow
def test_the_two_classes_may_have_come_in_different_batches_of_one_label(labels):
    X, Y = labels
    model = classifier()
    rows = [np.flatnonzero(Y[:, 0] == number)[:1] for number in (1, 1, 0, 1)]
    assert [model.update((X[i], Y[i])).iterations > 0 for i in rows] == [False, False, True, True]


def test_what_is_asked_for_is_done(labels):
    assert classifier().update(of_class(labels, 1.0), learn=True).iterations > 0
    model = classifier(learning=sgp.NeverLearn())
    model.update(of_class(labels, 1.0))
    assert model.update(of_class(labels, 0.0)).iterations == 0


def test_the_second_class_is_learned_from_whatever_the_schedule_says_of_its_number(labels):
    model = classifier(learning=sgp.EveryUpdate(every=3))
    model.update(of_class(labels, 1.0))
    assert model.update(of_class(labels, 0.0)).iterations > 0
    assert model.update(labels).iterations == 0


def test_points_move_all_the_same_where_hyperparameters_are_known(labels):
    model = classifier(hyperparameters=FIXED, pseudo_points=sgp.PrivatePseudoPoints(5))
    assert model.update(of_class(labels, 1.0)).iterations > 0


def test_several_classes_are_held_alike_and_numbers_never(labels):
    X, Y = labels
    softmax = classifier(gpflow.likelihoods.Softmax(3), num_latent_gps=3)
    assert softmax.update((X, np.full_like(Y, 2.0))).iterations == 0
    assert softmax.state.only_class == 2.0
    counts = classifier(gpflow.likelihoods.Poisson())
    counts.update((X, np.ones_like(Y)), learn=False)
    assert counts.state.only_class is None


def test_a_loaded_model_and_one_from_a_journal_go_on_holding(labels, tmp_path):
    X, Y = of_class(labels, 1.0)
    model = classifier(journal=tmp_path / "journal")
    model.update((X[:10], Y[:10]))
    model.save(tmp_path / "model.npz")

    def modules():
        return gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Bernoulli()

    loaded = sgp.StreamingGP.load(tmp_path / "model.npz", *modules())
    resumed = sgp.StreamingGP.resume(tmp_path / "journal", *modules())
    for one in (loaded, resumed):
        assert one.update((X[10:], Y[10:])).iterations == 0
    np.testing.assert_array_equal(resumed.predict_f(X)[0], loaded.predict_f(X)[0])


def test_an_adopted_ledger_may_hold_any_class(labels):
    model = classifier()
    model.update(of_class(labels, 1.0))
    model.adopt(pvi.Ledger(model.prior()).with_factors(model.factors))
    assert model.update(of_class(labels, 1.0), batch_id="next").iterations > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "points", [sgp.PrivatePseudoPoints(10), sgp.SharedPseudoPoints(40)], ids=["own", "shared"]
)
def test_a_stream_that_is_sorted_by_class_is_learned(points):
    """q(ε) of one class alone is a constant function, and of that nothing came back: 0.55, 0.40."""
    banana = datasets.load_banana()
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(lengthscales=[1.0, 1.0]),
        gpflow.likelihoods.Bernoulli(), pseudo_points=points,
    )  # fmt: skip
    for rows in np.array_split(np.argsort(banana.Y[:, 0], kind="stable"), 8):
        model.update((banana.X[rows], banana.Y[rows]))
    wrong = (model.predict_y(banana.X_test)[0] > 0.5) != (banana.Y_test > 0.5)
    assert np.mean(wrong) < 0.2
