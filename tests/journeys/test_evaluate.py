"""Test-then-train scores are those of predictions made before learning, and forgetting is told; an
alarm on log densities that fall.
"""

import json
import sys

import gpflow
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure

import streaming_gp as sgp
from streaming_gp import plotting
from streaming_gp.errors import InvalidDataError, StreamingGPError
from streaming_gp.evaluate import BatchError, DriftAlarm, Summary, prequential
from tests.oracles.builders import EVERY_INPUT, FIXED
from tests.oracles.reference import smooth_data
from tests.tolerances import ALGEBRA, STANDARD_ERRORS

HALF_LOG_2PI = 0.5 * np.log(2.0 * np.pi)


class LastMean:
    """Says that y ~ N(mean of the last batch, 1), and nothing of itself; 0 before any batch."""

    def __init__(self):
        self.mean, self.asked = 0.0, []

    def predict_y(self, X):
        self.asked.append(X)
        return np.full((len(X), 1), self.mean), np.ones((len(X), 1))

    def predict_log_density(self, data):
        return -HALF_LOG_2PI - 0.5 * (data[1][:, 0] - self.mean) ** 2

    def update(self, data):
        self.mean = data[1].mean()


class Constant(LastMean):
    """Never learns; says ``means`` [1, P], whatever the input."""

    def __init__(self, likelihood, means):
        super().__init__()
        self.likelihood, self.means = likelihood, np.array([means])

    def predict_y(self, X):
        return np.repeat(self.means, len(X), axis=0), None

    def update(self, data):
        pass


def batch(*targets):
    return np.zeros((len(targets), 1)), np.array(targets, float)[:, None]


def numbered_batches(number, size=5):
    """Batches whose inputs are their own number."""
    return [(np.full((size, 1), float(i)), np.full((size, 1), float(i))) for i in range(number)]


def test_scores_of_a_small_stream_by_hand():
    steps = list(prequential(LastMean(), iter([batch(1, 3), batch(2, 2, 5)])))
    first, second = steps
    assert (first.batch, first.num_points, second.batch, second.num_points) == (1, 2, 2, 3)
    assert first.mse == 5.0  # the prior says 0
    assert first.smse == 5.0  # over the variance of 1 and 3
    assert first.nlpd == pytest.approx(HALF_LOG_2PI + 2.5)
    assert (first.forgetting, first.forgetting_nlpd) == (None, None)
    assert second.mse == 3.0  # having seen 1 and 3 it says 2
    assert second.target_variance == pytest.approx(np.var([1, 3, 2, 2, 5]))
    assert second.smse == pytest.approx(3.0 / 1.84)
    assert second.nlpd == pytest.approx(HALF_LOG_2PI + 1.5)
    # of 1 and 3 the model said 2 once it had learned them, and says 3 now
    assert second.forgetting == pytest.approx((2.0 - 1.0) / 1.84)
    assert second.forgetting_nlpd == pytest.approx(0.5 * (2.0 - 1.0))
    assert second.error_rate is second.num_pseudo_points is second.free_energy is None


def test_rows_that_miss_a_target_are_learned_as_the_model_does_and_not_scored(rng):
    X, Y = smooth_data(rng, 40)
    Y = np.concatenate([Y, -Y], axis=1)
    missing = np.where(rng.random(Y.shape) < 0.3, np.nan, Y)
    whole = ~np.isnan(missing).any(axis=1)
    halves = [(np.array(X[i::2]), missing[i::2]) for i in range(2)]
    nothing = X, np.full_like(Y, np.nan)
    models = [
        sgp.StreamingGP(
            gpflow.kernels.SquaredExponential(),
            gpflow.likelihoods.Gaussian(0.1),
            hyperparameters=FIXED,
            missing=missing_entries,
        )
        for missing_entries in ("drop", "drop", "refuse")
    ]
    first, second = prequential(models[0], [halves[0], nothing, halves[1]])
    assert (first.batch, second.batch) == (1, 3)
    assert first.num_points + second.num_points == whole.sum() < 40
    models[1].update(halves[0])
    inputs, targets = X[1::2][whole[1::2]], Y[1::2][whole[1::2]]
    density = models[1].predict_log_density((inputs, targets))
    assert second.nlpd == pytest.approx(-np.mean(density))
    models[1].update(halves[1])
    for one, other in zip(*(model.predict_f(X) for model in models[:2]), strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(BatchError, match=r"batch 1 could not be scored: .*Y must be finite"):
        next(prequential(models[2], halves))


def test_running_means_weight_every_point_alike():
    summary = Summary(tuple(prequential(LastMean(), [batch(1, 3), batch(2, 2, 5)])))
    assert summary.num_points == 5
    assert summary.running_smse == pytest.approx((5.0, (1 + 9 + 0 + 0 + 9) / 5 / 1.84))
    assert summary.smse == summary.running_smse[-1]
    assert summary.nlpd == pytest.approx(HALF_LOG_2PI + (2 * 2.5 + 3 * 1.5) / 5)
    assert summary.seconds == sum(step.seconds for step in summary.steps) > 0.0
    assert summary.forgetting == summary.steps[-1].forgetting
    assert summary.error_rate is summary.free_energy is summary.num_pseudo_points is None


def test_the_variance_of_the_targets_needs_no_second_look_at_them(rng):
    batches = [(np.zeros((n, 1)), rng.normal(1e3, [1.0, 9.0], (n, 2))) for n in (1, 40, 7)]
    model = Constant(None, [1e3, 1e3])
    for seen, step in enumerate(prequential(model, batches, keep=0), start=1):
        Y = np.concatenate([Y for _, Y in batches[:seen]])
        assert step.target_variance == pytest.approx(np.var(Y, axis=0).mean(), rel=ALGEBRA)


@pytest.mark.parametrize(
    ("likelihood", "means", "error_rate"),
    [
        (gpflow.likelihoods.Bernoulli(), [0.7], 0.75),
        (gpflow.likelihoods.Softmax(3), [0.2, 0.3, 0.5], 0.5),
        (gpflow.likelihoods.MultiClass(3), [0.6, 0.3, 0.1], 0.75),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_likelihood_decides_that_classes_are_counted(likelihood, means, error_rate):
    labels = {0.7: batch(1, 0, 0, 0), 0.2: batch(2, 0, 2, 1), 0.6: batch(0, 1, 1, 2)}[means[0]]
    summary = Summary(tuple(prequential(Constant(likelihood, means), [labels, labels])))
    assert [step.error_rate for step in summary.steps] == [error_rate, error_rate]
    assert summary.error_rate == error_rate
    assert summary.steps[0].mse is summary.smse is summary.steps[0].smse is None
    assert summary.forgetting == 0.0


class Reporting(LastMean):
    """Has pseudo-points, and reports a free energy for every second batch."""

    def __init__(self):
        super().__init__()
        self.posterior_process, self.free_energy = self, 0.5

    num_pseudo_points = 7

    def update(self, data):
        super().update(data)
        self.free_energy = None if self.free_energy else 2.5
        return self


def test_pseudo_points_and_free_energies_are_scored_where_a_model_has_them():
    summary = Summary(tuple(prequential(Reporting(), [batch(1, 3), batch(2, 2)])))
    assert [step.free_energy for step in summary.steps] == [None, 2.5]
    assert summary.num_pseudo_points == 7
    assert summary.free_energy is None


def test_targets_that_do_not_vary_have_no_smse():
    summary = Summary(tuple(prequential(LastMean(), [batch(2, 2), batch(2, 4)])))
    assert summary.steps[0].smse is None
    assert summary.running_smse == (None, pytest.approx((4 + 4 + 0 + 4) / 4 / 0.75))


def test_what_is_kept_is_bounded_and_random_batches_stay():
    model = LastMean()
    steps = list(prequential(model, numbered_batches(400), keep=2, keep_batches=60))
    assert [len(X) for X in model.asked[:3]] == [5, 2, 5]  # exam, first kept points, next exam
    assert max(len(X) for X in model.asked) == 2 * (60 + 1)
    kept = np.unique(model.asked[-1])
    assert len(kept) == 61
    assert abs(np.mean(kept < 200) - 0.5) < STANDARD_ERRORS * 0.5 / np.sqrt(60)
    assert steps[-1].forgetting_nlpd == pytest.approx(0.5 * np.mean((399 - kept[:-1]) ** 2))


@pytest.mark.parametrize("sizes", [{"keep": 0}, {"keep_batches": 0}])
def test_nothing_kept_means_nothing_asked_again(sizes):
    model = LastMean()
    steps = list(prequential(model, numbered_batches(3), **sizes))
    assert [len(X) for X in model.asked] == [5, 5, 5]
    assert all(step.forgetting is None for step in steps)


def test_a_step_is_told_before_the_next_batch_is_read():
    read = []

    def batches():
        for data in numbered_batches(3):
            read.append(data)
            yield data

    steps = prequential(LastMean(), batches())
    assert not read
    assert next(steps).batch == len(read) == 1
    assert next(steps).batch == len(read) == 2


def test_a_model_that_fails_is_named_with_its_batch():
    class Broken(LastMean):
        def update(self, data):
            if self.mean:
                raise RuntimeError("out of ink")
            super().update(data)

    steps = prequential(Broken(), [batch(1, 3), batch(2, 2)])
    assert next(steps).batch == 1
    with pytest.raises(
        BatchError, match="batch 2 was scored but could not be learned: RuntimeError: out of ink"
    ) as caught:
        next(steps)
    assert caught.value.batch == 2
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert isinstance(caught.value, StreamingGPError)


def test_bad_arguments_are_refused_at_once():
    with pytest.raises(InvalidDataError, match="keep must be an integer, at least 0, got -1"):
        prequential(LastMean(), [], keep=-1)
    switched = gpflow.likelihoods.SwitchedLikelihood([gpflow.likelihoods.Gaussian()])
    with pytest.raises(InvalidDataError, match="SwitchedLikelihood"):
        prequential(Constant(switched, [0.0]), [])
    with pytest.raises(InvalidDataError, match="at least one step"):
        Summary(())
    with pytest.raises(BatchError, match=r"batch 1 could not be scored.*means of 3 outputs"):
        next(prequential(Constant(None, [0.0, 1.0, 2.0]), [batch(1, 3)]))
    with pytest.raises(BatchError, match=r"pair \(X, Y\), got NoneType"):
        next(prequential(LastMean(), [None]))


def test_records_are_json_and_the_figure_shows_them():
    from matplotlib.figure import Figure

    class Certain(LastMean):
        def predict_log_density(self, data):
            return np.where(data[1][:, 0] == self.mean, 0.0, -np.inf)

    batches = [batch(1, 3), batch(2, 2), batch(0, 1)]
    summary = Summary(tuple(prequential(Certain(), batches, keep=0)))
    records = json.loads(json.dumps(summary.to_records(), allow_nan=False))
    assert [record["smse"] for record in records] == [step.smse for step in summary.steps]
    assert [record["running_smse"] for record in records] == list(summary.running_smse)
    assert [record["nlpd"] for record in records] == [None, 0.0, None]

    figure = Figure()
    plotting.prequential(summary, figure)
    drawn = [ax.get_ylabel() for ax in figure.axes if ax.lines]
    assert drawn == ["SMSE", "seconds an update"]  # the running NLPD is infinite
    np.testing.assert_allclose(figure.axes[0].lines[1].get_ydata(), summary.running_smse)


def test_progress_is_one_line_a_batch_off_a_terminal(capsys):
    list(prequential(LastMean(), [batch(1, 3), batch(2, 2)]))
    assert capsys.readouterr().out == ""
    list(prequential(LastMean(), [batch(1, 3), batch(2, 2)], label="stream"))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("stream, batch 1: SMSE 5, NLPD 3.419")


@pytest.mark.usefixtures("eager")
def test_a_streaming_gp_is_scored_under_its_prior_and_then_as_it_learns(rng):
    X, Y = smooth_data(rng, 30, num_columns=2)
    batches = [(X[:15], Y[:15]), (X[15:], Y[15:]), (X[:5], np.full((5, 2), np.nan))]
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(variance=2.0), gpflow.likelihoods.Gaussian(0.5),
        pseudo_points=EVERY_INPUT, hyperparameters=FIXED,
    )  # fmt: skip
    steps = prequential(model, batches, keep=10)
    first = next(steps)
    assert first.mse == pytest.approx(np.mean(Y[:15] ** 2), rel=ALGEBRA)
    prior = HALF_LOG_2PI + 0.5 * np.log(2.5) + 0.5 * Y[:15] ** 2 / 2.5
    assert first.nlpd == pytest.approx(np.mean(prior.sum(axis=1)), rel=ALGEBRA)

    mean = model.predict_y(X[15:])[0].numpy()
    density = model.predict_log_density(batches[1]).numpy()
    second = next(steps)
    assert second.mse == pytest.approx(np.mean((mean - Y[15:]) ** 2), rel=ALGEBRA)
    assert second.smse == pytest.approx(second.mse / np.var(Y, axis=0).mean(), rel=ALGEBRA)
    assert second.nlpd == pytest.approx(-np.mean(density), rel=ALGEBRA)
    assert (first.num_pseudo_points, second.num_pseudo_points) == (15, 30)
    evidence = Summary((first, second)).free_energy
    assert evidence == pytest.approx(-float(model.training_loss()), rel=1e-6)

    with pytest.raises(BatchError, match=r"batch 3 could not be scored: .*Y must be finite"):
        next(steps)
    assert len(model.factors) == 2


class Falls:
    """Detects a value that is below the one before."""

    def __init__(self):
        self.seen, self.drift_detected = [], False

    def update(self, x):
        self.drift_detected = bool(self.seen) and x < self.seen[-1]
        self.seen.append(x)


def page_hinkley(values, tolerance=0.1, threshold=50.0, memory=0.9999, least=30):
    """The number of the first value at which the test for a fall alarms (Page 1954), or None."""
    fallen, highest, total = 0.0, -1.0, 0.0
    for number, value in enumerate(values, start=1):
        total += value
        fallen = memory * fallen + value - total / number + tolerance
        highest = max(highest, fallen)
        if number >= least and highest - fallen > threshold:
            return number - 1
    return None


def alarms(alarm, values, size):
    """The numbers of the batches that are unlike those before."""
    return [n for n, batch in enumerate(values.reshape(-1, size)) if alarm.update(batch)]


def test_a_batch_is_unlike_those_before_if_any_of_its_data_says_so():
    alarm = DriftAlarm(Falls())
    assert not alarm.update(np.array([[1.0], [2.0]]))
    assert alarm.update([3.0, 2.5, 4.0])
    assert not alarm.update([4.0])
    assert alarm.detector.seen == [1.0, 2.0, 3.0, 2.5, 4.0, 4.0]


def test_log_densities_that_are_not_finite_are_refused_as_a_whole():
    alarm = DriftAlarm(Falls())
    with pytest.raises(InvalidDataError, match="must be finite"):
        alarm.update([1.0, -np.inf])
    assert alarm.detector.seen == []


def test_without_river_the_default_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "river.drift", None)
    with pytest.raises(InvalidDataError, match=r"needs river: pip install '\.\[river\]'"):
        DriftAlarm()


def test_the_default_is_the_page_hinkley_test_for_a_fall(rng):
    pytest.importorskip("river", reason="the river extra is not installed")
    values = rng.normal(0.0, 0.7, 2000) - 1.5 * (np.arange(2000) >= 1000)
    first = page_hinkley(values)
    assert 1000 < first < 1100
    assert alarms(DriftAlarm(), values, 25)[0] == first // 25
    assert page_hinkley(-values) is None
    assert alarms(DriftAlarm(), -values, 25) == []  # a model that learns is no reason for alarm


def test_after_an_alarm_the_new_world_is_the_usual_one(rng):
    pytest.importorskip("river", reason="the river extra is not installed")
    values = rng.normal(0.0, 0.7, 3000) - 5.0 * (np.arange(3000) >= 1000)
    assert alarms(DriftAlarm(), values, 100) == [10]


# ---- plots of models ----


@pytest.fixture(scope="module")
def model():
    found = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(lengthscales=[1.0, 2.0]),
        gpflow.likelihoods.Gaussian(0.1),
        gpflow.functions.Constant(1.0),
        pseudo_points=EVERY_INPUT,
        optimiser=sgp.LocalOptimiser(max_iterations=2),
    )
    rng = np.random.default_rng(2)
    for number in (5, 8):
        X = rng.uniform(-1.0, 1.0, (number, 2))
        found.update((X, X[:, :1]), learn=False)
    return found


@pytest.fixture
def figure():
    return Figure()


def test_a_posterior_is_the_models_along_one_input(model, figure):
    axes = figure.subplots()
    data = np.zeros((3, 2)), np.full((3, 1), 0.5)
    assert plotting.posterior(model, axes, limits=(-2.0, 2.0), dimension=1, data=data) is axes
    mean, dots, ticks = axes.lines
    Z = np.concatenate([factor.Z for factor in model.factors.values()])
    at = np.stack([np.full(200, np.median(Z[:, 0])), mean.get_xdata()], axis=1)
    np.testing.assert_allclose(mean.get_ydata(), model.predict_f(at)[0][:, 0], rtol=1e-9)
    (band,) = axes.collections
    low, high = band.get_paths()[0].get_extents().intervaly
    predicted, variance = map(np.asarray, model.predict_f(at))
    np.testing.assert_allclose(high, (predicted + 2.0 * np.sqrt(variance)).max(), rtol=1e-9)
    np.testing.assert_allclose(low, (predicted - 2.0 * np.sqrt(variance)).min(), rtol=1e-9)
    assert dots.get_ydata().tolist() == [0.5] * 3
    np.testing.assert_array_equal(ticks.get_xdata(), Z[:, 1])
    assert axes.get_xlim() == (-2.0, 2.0)


def test_a_ledger_has_a_bar_for_each_factor(model, figure):
    axes = plotting.ledger(model, figure.subplots())
    assert [bar.get_width() for bar in axes.patches] == [5, 8]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["batch-0", "batch-1"]
    assert axes.get_title() == "prior × 2 factors, 13 points"


def test_every_hyperparameter_has_its_axes(model, figure):
    axes = plotting.hyperparameters(model, figure, num_samples=50)
    samples = model.hyperparameter_samples(50)
    assert len(axes) == sum(values[0].size for values in samples.values())
    by_title = {ax.get_title(): ax for ax in axes}
    assert by_title["kernel.lengthscales[1]"].get_xscale() == "log"
    assert by_title["mean_function.c"].get_xscale() == "linear"
    span = by_title["kernel.lengthscales[1]"].lines[0].get_xdata()
    np.testing.assert_allclose(
        span[[0, -1]], np.sort(samples["kernel.lengthscales"][:, 1])[[0, -1]]
    )


def test_without_axes_new_ones_are_made(model):
    plt.switch_backend("Agg")
    for draw in (plotting.posterior, plotting.ledger):
        assert draw(model).figure in map(plt.figure, plt.get_fignums())
    plt.close("all")


def test_what_cannot_be_drawn_is_refused(model, figure):
    empty = sgp.StreamingGP(gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian(0.1))
    with pytest.raises(InvalidDataError, match="wanted a model that has learned something"):
        plotting.posterior(empty)
    with pytest.raises(InvalidDataError, match="dimension must be from 0 to 1, got 2"):
        plotting.posterior(model, dimension=2)
    with pytest.raises(InvalidDataError, match="output must be from 0 to 0, got 1"):
        plotting.posterior(model, output=1)
    gpflow.set_trainable(empty.kernel, False)
    gpflow.set_trainable(empty.likelihood, False)
    with pytest.raises(InvalidDataError, match="no hyperparameters that are trainable"):
        plotting.hyperparameters(empty, figure)


def test_points_of_a_label_that_has_no_colour_are_refused():
    axes = Figure().subplots()
    X = np.array([[0.0, 1.0], [1.0, 0.0]])
    with pytest.raises(InvalidDataError, match=r"labels must be 0 or 1, got \[-1"):
        plotting.labelled_points(axes, X, np.array([[-1.0], [1.0]]))
    assert not axes.collections
    plotting.labelled_points(axes, X, np.array([[0.0], [1.0]]))
    assert [len(one.get_offsets()) for one in axes.collections] == [1, 1]
