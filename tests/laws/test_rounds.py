"""What a run counts, when it stops, and that it replays."""

import numpy as np
import pytest

from streaming_gp import datasets, linear, plotting, pvi
from streaming_gp.errors import InvalidDataError
from tests.oracles.reference import labelled_data, regression_data, server


def test_messages_and_bytes_are_counted_both_ways(rng):
    (X, Y), model = regression_data(rng), linear.BayesianLinearRegression(3, 0.09)
    found = server(model, datasets.partition_iid(X, Y, 4), pvi.AnalyticUpdate())
    history = pvi.fit(found, pvi.Synchronous(), 2, evaluate=lambda q: {"mean": q.mean[0]})
    natural = 8 * (3 + 9)
    assert history.column("messages") == [8, 16]
    assert history.column("bytes_up") == [4 * natural, 8 * natural]
    # in the second round each client gets its factor as well
    assert history.column("bytes_down") == [4 * natural, 12 * natural]
    record = history.to_records()[1]
    assert record["bytes"] == 20 * natural
    assert record["round"] == 2
    assert record["metrics"] == {"mean": record["mean"]}


def test_curves_of_several_histories_are_drawn(rng):
    axes = pytest.importorskip("matplotlib.figure").Figure().subplots()
    (X, Y), model = regression_data(rng), linear.BayesianLinearRegression(3, 0.09)
    found = server(model, [(X, Y)], pvi.AnalyticUpdate())
    history = pvi.fit(found, rounds=3, evaluate=lambda q: {"error": float(q.variance[0])})
    plotting.learning_curves(axes, {"mine": history}, "error", "bytes")
    (line,) = axes.get_lines()
    np.testing.assert_array_equal(line.get_xdata(), history.column("bytes"))
    assert line.get_label() == "mine"


def test_asynchronous_runs_replay_exactly_and_say_how_stale_answers_were(rng):
    X, Y = labelled_data(rng)
    model = linear.logistic_regression(3)
    durations = {"c0": 10.0, "c1": 1.0, "c2": 1.3}

    def run(**settings):
        found = server(model, datasets.partition_iid(X, Y, 3), pvi.FixedPointUpdate())
        schedule = pvi.Asynchronous(durations=durations, **settings)
        return pvi.fit(found, schedule, 12), found.posterior

    (history, q), (_, again), (_, damped) = run(), run(), run(staleness_power=1.0)
    for a, b in zip(q.natural, again.natural, strict=True):
        np.testing.assert_array_equal(a, b)
    assert max(history.column("staleness")) > 10
    assert np.abs(np.asarray(damped.mean) - q.mean).max() > 1e-6
    # 36 answers: about ten in ten seconds of each of the fast ones
    assert 16.0 < history[-1].simulated_seconds < 24.0


def test_early_stopping_ends_a_run_that_rests(rng):
    (X, Y), model = regression_data(rng), linear.BayesianLinearRegression(3, 0.09)
    found = server(model, [(X, Y)], pvi.AnalyticUpdate())
    seen = []
    history = pvi.fit(
        found, pvi.Sequential(), 50, evaluate=lambda q: {"first": -q.mean[0]},
        callback=seen.append, stopping=pvi.EarlyStopping("first", patience=3, tolerance=1e-12),
    )  # fmt: skip
    assert len(history) == len(seen) == 4
    with pytest.raises(InvalidDataError, match=r"no metric 'loss' .* \['first'\]"):
        pvi.fit(
            found, rounds=2, evaluate=lambda q: {"first": 0}, stopping=pvi.EarlyStopping("loss")
        )
