"""Updates that learn nothing: linear algebra at the present q(ε)."""

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp import datasets, pvi
from streaming_gp.gp import Arrival
from tests.oracles.builders import (
    EVERY_INPUT,
    assert_same_arrays,
    classifier,
    known_model,
    labelled,
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


@pytest.mark.parametrize(
    "points",
    [
        pytest.param(points, id=name, marks=[pytest.mark.slow] * (name != "all"))
        for name, points in STRATEGIES.items()
    ],
)
def test_absorbing_is_an_update_at_known_hyperparameters(data, new_inputs, points):
    X, Y = data
    model, batches = known_model(points), [(X[i::3], Y[i::3]) for i in range(3)]
    learned = [model.update(batch) for batch in batches]
    before = [predicted(model, new_inputs), model.predict_f(new_inputs, True)]
    model.adopt(pvi.Ledger(model.prior()))
    for one, batch in zip(learned, batches, strict=True):
        other = model.update(batch, learn=False)
        assert other.iterations == 0
        np.testing.assert_allclose(one.free_energy, other.free_energy, rtol=ALGEBRA)
    for full_cov, wanted in enumerate(before):
        assert_same_arrays(model.predict_f(new_inputs, bool(full_cov)), wanted, ALGEBRA)


def test_absorbing_labels_is_an_update_at_known_hyperparameters(rng, new_inputs):
    X, Y = labelled(rng)
    model = known_model(
        FIXED_POINTS, gpflow.likelihoods.Bernoulli(),
        optimiser=sgp.LocalOptimiser(rounds=1, site_steps=200),
    )  # fmt: skip
    found = []
    for learn in (None, False):
        if found:
            model.adopt(pvi.Ledger(model.prior()))
        model.update((X[:30], Y[:30]), learn=learn)
        model.update((X[30:], Y[30:]), learn=learn)
        found.append([*predicted(model, new_inputs), model.predict_f(new_inputs, True)[1]])
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


def test_a_growth_of_next_to_nothing_is_every_update():
    assert all(
        sgp.UntilSettled(every=None, growth=1e-320).wants(Arrival(n, 0.0)) for n in range(1, 50)
    )


def test_how_far_an_update_moves_the_hyperparameters_is_in_units_of_their_width(data):
    X, Y = data
    model = regressor(pseudo_points=EVERY_INPUT)
    before = model.hyperparameter_posterior.mean
    model.update((X, Y))
    q = model.hyperparameter_posterior
    shift = np.sqrt(np.mean((q.mean - before) ** 2 / q.variance))
    np.testing.assert_allclose(model.state.shift, shift, rtol=ALGEBRA)


# ---- labels of one class ----


@pytest.fixture
def labels(rng):
    X = rng.uniform(-3.0, 3.0, (60, 1))
    return X, (np.sin(2.0 * X) > 0.0).astype(float)


def of_class(data, number):
    X, Y = data
    return X[Y[:, 0] == number], Y[Y[:, 0] == number]


def at_every_input(**options):
    """Of one kind, which is compiled once."""
    return classifier(pseudo_points=EVERY_INPUT, **options)


def test_q_of_the_hyperparameters_stays_the_prior_until_there_are_two_classes(labels):
    strategy = sgp.VariationalHyperparameters(num_samples=2)
    model = at_every_input(hyperparameters=strategy, learning=sgp.EveryUpdate())
    prior, (X, Y) = model.hyperparameter_posterior, of_class(labels, 1.0)
    found = [model.update((X[rows], Y[rows])) for rows in (slice(0, 10), slice(10, None))]
    assert [one.iterations for one in found] == [0, 0]
    np.testing.assert_array_equal(model.hyperparameter_posterior.mean, prior.mean)
    assert model.state.only_class == 1.0
    assert model.update(of_class(labels, 0.0)).iterations > 0
    assert model.state.only_class is None
    assert model.update((X, Y)).iterations > 0
    assert not np.allclose(model.hyperparameter_posterior.mean, prior.mean)


@pytest.mark.slow
def test_the_two_classes_may_have_come_in_different_batches_of_one_label(labels):
    X, Y = labels
    model = at_every_input()
    rows = [np.flatnonzero(Y[:, 0] == number)[:1] for number in (1, 1, 0, 1)]
    assert [model.update((X[i], Y[i])).iterations > 0 for i in rows] == [False, False, True, True]


def test_what_is_asked_for_is_done(labels):
    assert at_every_input().update(of_class(labels, 1.0), learn=True).iterations > 0
    model = at_every_input(learning=sgp.NeverLearn())
    model.update(of_class(labels, 1.0))
    assert model.update(of_class(labels, 0.0)).iterations == 0


def test_the_second_class_is_learned_from_whatever_the_schedule_says_of_its_number(labels):
    model = at_every_input(learning=sgp.EveryUpdate(every=3))
    model.update(of_class(labels, 1.0))
    assert model.update(of_class(labels, 0.0)).iterations > 0
    assert model.update(labels).iterations == 0


def test_points_move_all_the_same_where_hyperparameters_are_known(labels):
    model = classifier(hyperparameters=sgp.FixedHyperparameters())
    assert model.update(of_class(labels, 1.0)).iterations > 0


def test_several_classes_are_held_alike_and_numbers_never(labels):
    X, Y = labels
    softmax = at_every_input(likelihood=gpflow.likelihoods.Softmax(3), num_latent_gps=3)
    assert softmax.update((X, np.full_like(Y, 2.0))).iterations == 0
    counts = classifier(likelihood=gpflow.likelihoods.Poisson())
    assert counts.update((X, np.ones_like(Y))).iterations > 0


def test_a_loaded_model_and_one_from_a_journal_go_on_holding(labels, tmp_path):
    X, Y = of_class(labels, 1.0)
    model = at_every_input(journal=tmp_path / "journal")
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
    model = at_every_input()
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
