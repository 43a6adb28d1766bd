"""The benchmarks' streams are what they say, and rivals are right where they are exact."""

import ast
import importlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import gpflow
import numpy as np
import pytest

from experiments.benchmarks import plan, streams
from experiments.benchmarks.figures import unbeaten
from experiments.benchmarks.machine import fast_routines
from experiments.benchmarks.methods import METHODS, Hyperparameters, Prediction, Setup
from experiments.benchmarks.one_run import attempted
from experiments.benchmarks.scores import pit_deviation, scores
from experiments.benchmarks.summary import MEANS, defaults, means_of_best, summarised
from experiments.measured.rows_of_a_batch import nats
from streaming_gp.errors import InvalidDataError, StreamingGPError
from tests.tolerances import ALGEBRA

ROOT = Path(__file__).resolve().parents[2]
OF = Hyperparameters(1.3, np.array([0.8, 1.4]), 0.05)


def setup(**changes):
    fields = {"num_data": 60, "num_batches": 3, "points": 5, "classes": False, "seed": 0}
    return Setup(OF, **{**fields, **changes})


def data(rng, number):
    X = rng.uniform(-2.0, 2.0, (number, 2))
    noise = 0.2 * rng.standard_normal(number)
    return X, (np.sin(2.0 * X[:, 0]) * X[:, 1] + noise)[:, None]


def streamed(name, X, Y, **changes):
    learner = METHODS[name].learner(setup(num_data=len(X), **changes))
    for rows in np.array_split(np.arange(len(X)), 3):
        learner.update(X[rows], Y[rows])
    return learner


def assert_predicts(learner, X, mean, variance, tolerance):
    found = learner.predict(X)
    np.testing.assert_allclose(found.mean, np.ravel(mean), rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(found.variance, np.ravel(variance), rtol=tolerance, atol=tolerance)


def gpr(X, Y):
    return gpflow.models.GPR((X, Y), OF.kernel(), noise_variance=OF.noise)


# ---- rivals that are exact ----


@pytest.fixture
def rows(rng):
    """X and Y of sixty rows, and new inputs."""
    return *data(rng, 60), rng.uniform(-2.0, 2.0, (20, 2))


@pytest.mark.parametrize("name", ["block-cholesky", "local-gps-100"])
def test_a_rival_that_holds_everything_is_the_exact_gp(rows, name):
    X, Y, X_new = rows
    learner = streamed(name, X, Y)
    assert_predicts(learner, X_new, *gpr(X, Y).predict_y(X_new), 1e-8)
    assert learner.held().number == 60


def test_the_window_is_the_exact_gp_on_the_newest_points(rng):
    X, Y = data(rng, 600)
    X_new = rng.uniform(-2.0, 2.0, (20, 2))
    learner = streamed("window-500", X, Y)
    assert_predicts(learner, X_new, *gpr(X[100:], Y[100:]).predict_y(X_new), 1e-6)


def test_recursive_regression_on_random_features_is_bayesian_linear_regression(rows):
    from experiments.benchmarks.methods.features import fourier

    X, Y, X_new = rows
    features = fourier(OF, 500, seed=3)
    phi, phi_new = features(X), features(X_new)
    covariance = np.linalg.inv(np.eye(500) + phi.T @ phi / OF.noise)
    mean = phi_new @ covariance @ phi.T @ Y / OF.noise
    variance = np.sum(phi_new @ covariance * phi_new, axis=1) + OF.noise
    assert_predicts(streamed("features-500", X, Y, seed=3), X_new, mean, variance, 1e-8)


def test_a_learned_scale_mends_a_noise_that_is_too_small(rng):
    X, Y = data(rng, 600)
    X_new, Y_new = data(rng, 600)
    small = Hyperparameters(OF.variance, OF.lengthscales, 1e-4)
    nlpd = {}
    for name in ("features-500", "features-500-scaled"):
        learner = METHODS[name].learner(Setup(small, 600, 1, 5, False, 0))
        learner.update(X, Y)
        nlpd[name] = scores(learner.predict(X_new), Y_new, False)["nlpd"]
    assert nlpd["features-500-scaled"] < min(1.0, nlpd["features-500"] - 1.0)


def test_many_random_features_are_nearly_the_kernel(rng):
    from experiments.benchmarks.methods.features import fourier

    X = rng.uniform(-2.0, 2.0, (20, 2))
    phi = fourier(OF, 40_000, seed=0)(X)
    np.testing.assert_allclose(phi @ phi.T, OF.kernel()(X).numpy(), atol=0.05)


def test_shared_points_that_stay_are_sgpr_on_all_batches(rows):
    """At fixed points and hyperparameters the stream loses nothing."""
    from experiments.benchmarks.methods.shared_2017 import StreamingSparseGP

    (X, Y, X_new), noise = rows, gpflow.likelihoods.Gaussian(OF.noise)
    Z, halves = X[::6], [(X[:30], Y[:30]), (X[30:], Y[30:])]
    first = StreamingSparseGP(halves[0], OF.kernel(), noise, Z, None)
    both = StreamingSparseGP(halves[1], OF.kernel(), noise, Z, first.summary())
    evidences = np.cumsum([float(one.maximum_log_likelihood_objective()) for one in (first, both)])
    for found, batch, evidence, rtol, atol in (
        (first, halves[0], evidences[0], 1e-6, 1e-5),
        (both, (X, Y), evidences[1], 1e-3, 1e-3),
    ):
        sparse = gpflow.models.SGPR(batch, OF.kernel(), Z, noise_variance=OF.noise)
        np.testing.assert_allclose(evidence, sparse.elbo(), rtol=rtol)
        for a, b in zip(found.predict_y(X_new), sparse.predict_y(X_new), strict=True):
            np.testing.assert_allclose(a, b, atol=atol)


@pytest.mark.slow
def test_shared_points_learn_batch_after_batch(rows):
    X, Y, _ = rows
    learner = streamed("bui2017-120", X, Y, effort=0.2)
    error = learner.predict(X).mean - Y[:, 0]
    assert np.mean(error**2) < 0.5 * np.var(Y)
    assert learner.held().number == 60


def test_local_gps_divide_and_keep_every_point(rng):
    X, Y = data(rng, 900)
    learner = streamed("local-gps-100", X, Y)
    assert learner.held().number == 900
    error = learner.predict(X).mean - Y[:, 0]
    assert np.mean(error**2) < 2.0 * 0.2**2


@pytest.mark.slow  # compiles for seconds
def test_an_online_svgp_learns_labels(rows):
    X, Y, _ = rows
    learner = streamed("svgp-replay-50", X, (Y > 0.0).astype(float), classes=True, effort=0.05)
    assert learner.held().number == 120
    probability = learner.predict(X).mean
    assert probability.shape == (60,)
    assert ((probability > 0.0) & (probability < 1.0)).all()


def test_regression_on_labels_predicts_probabilities(rows):
    X, Y, _ = rows
    labels = (Y > 0.0).astype(float)
    probability = streamed("block-cholesky", X, labels, classes=True).predict(X).mean
    assert np.mean((probability > 0.5) == labels[:, 0]) > 0.9


def test_vecchia_with_all_neighbours_is_the_exact_gp_at_what_it_learned(rng):
    pytest.importorskip("gpboost")
    X, Y = data(rng, 18)  # fewer than its neighbours
    X_new = rng.uniform(-2.0, 2.0, (5, 2))
    learner = streamed("gpboost-refitted", X, Y)
    of = learner.hyperparameters()
    exact = gpflow.models.GPR((X, Y), of.kernel(), noise_variance=of.noise)
    assert_predicts(learner, X_new, *exact.predict_y(X_new), 1e-4)


# ---- streams ----


def test_a_sorted_stream_is_sorted_and_complete():
    banana = streams.load("banana-10")
    X, Y = banana.joined()
    assert len(banana.batches) == 40
    assert {len(batch) for batch, _ in banana.batches} == {10}
    assert (np.diff(X[:, 0]) >= 0.0).all()
    np.testing.assert_allclose(X.std(axis=0), 1.0)
    assert set(np.ravel(Y)) == {0.0, 1.0}
    assert len(streams.load("banana-133").batches) == 3


def test_the_drifting_stream_moves_away_from_its_beginning():
    drift = streams.load("drift-500")
    assert len(drift.batches) == 10
    (early, _), (late, _) = drift.batches[0], drift.batches[-1]
    nearest = [np.argmin(np.sum((x - drift.X_test) ** 2, axis=1)) for x in (*early, *late)]
    moved = np.concatenate([drift.batches[0][1], drift.batches[-1][1]]) - drift.Y_test[nearest]
    assert np.std(moved[:500]) > 2.0 * np.std(moved[500:])


def test_the_arm_is_sorted_by_the_named_joint(barrett):
    arm = streams.load("barrett3-by1-500")
    X, Y = arm.joined()
    assert len(arm.batches) == 24
    assert (np.diff(X[:, 0]) >= 0.0).all()
    assert Y.shape == (12_000, 1)
    np.testing.assert_allclose([Y.mean(), Y.std()], [0.0, 1.0], atol=1e-9)


def test_hyperparameters_are_learned_from_two_batches_or_a_few_more_points():
    assert len(streams.load("drift-500").first()[0]) == 1000
    assert len(streams.drift(1, 1000, None).first()[0]) == 200
    assert len(streams.load("banana-10").first()[0]) == 100


def test_what_a_batch_says_is_what_it_adds_to_the_log_evidence(rng):
    earlier, X = rng.uniform(-2.0, 2.0, (20, 2)), rng.uniform(-2.0, 2.0, (10, 2))

    def information(X):
        K = np.array(OF.kernel()(X)) / OF.noise
        return 0.5 * np.linalg.slogdet(K + np.eye(len(X)))[1]

    found = nats(OF, X, earlier)
    assert np.all(np.diff(found) <= 0.0)
    added = information(np.concatenate([earlier, X])) - information(earlier)
    np.testing.assert_allclose(np.sum(found), added, rtol=ALGEBRA)
    np.testing.assert_allclose(np.sum(nats(OF, X, X[:0])), information(X), rtol=ALGEBRA)


# ---- scores and choices ----


def test_a_calibrated_prediction_has_an_even_histogram(rng):
    y = rng.standard_normal(20_000)
    right = Prediction(np.zeros(len(y)), np.ones(len(y)))
    certain = Prediction(np.zeros(len(y)), np.full(len(y), 1e-4))
    assert pit_deviation(right, y) < 0.05
    assert pit_deviation(certain, y) > 1.4
    assert scores(right, y[:, None], False)["nlpd"] == pytest.approx(1.419, abs=0.02)


def test_the_better_setting_of_a_family_counts_and_the_first_seed_says_which():
    common = {"stream": "s", "family": "window", "tuned": "first batches"}
    common |= {"version": "1", "quick": False, "failed": None, **dict.fromkeys(MEANS, 1.0)}
    rows = [
        {**common, "method": name, "seed": seed, "error": error}
        for name, seed, error in (("a", 0, 0.2), ("b", 0, 0.1), ("b", 1, 0.5))
    ]
    (best,) = means_of_best(rows)
    assert (best["method"], best["error"], best["seeds"]) == ("b", pytest.approx(0.3), 2)


def test_the_default_is_set_beside_the_best_rival_that_streams():
    common = {"stream": "s", "tuned": "t", "version": "1", "quick": False, "failed": None}
    common |= {"reached_limit": False, "seed": 0, **dict.fromkeys(MEANS, 1.0)}
    rows = [
        {**common, "method": name, "family": name, "group": group, "error": error}
        for name, group, error in (
            ("default", "ours", 0.3), ("window", "rival", 0.2), ("linear", "rival", 0.4),
            ("sgpr", "limit", 0.1),
        )
    ]  # fmt: skip
    (found,) = defaults(means_of_best(rows))
    assert (found["error"], found["rival"], found["rival_error"]) == (0.3, "window", 0.2)


def test_the_progress_says_how_fast_the_machine_was():
    row = {"stream": "banana-1", "family": "f", "tuned": "t", "version": "1", "quick": False}
    row |= {"failed": "it did", **dict.fromkeys(MEANS), "method": "private", "seed": 0}
    rows = [row | {"reference_cpu_seconds": seconds} for seconds in (2.0, 1.0)]
    assert summarised(rows)["progress"][0]["reference"] == "1.0 to 2.0"
    assert summarised([row])["progress"][0]["reference"] == "not measured"


def test_numpy_is_told_what_scipys_blas_calls_the_processor():
    said = fast_routines()
    if not said:
        pytest.skip("SciPy has another BLAS here")
    look = "import numpy, scipy.linalg, threadpoolctl as t; print(t.threadpool_info())"
    environment = {**os.environ, **said}
    found = subprocess.run([sys.executable, "-c", look], env=environment, capture_output=True)
    libraries = ast.literal_eval(found.stdout.decode())
    (scipys,) = (one["architecture"] for one in libraries if "scipy" in one["filepath"])
    assert scipys == said["OPENBLAS_CORETYPE"]
    (numpys,) = (one["architecture"] for one in libraries if "numpy" in one["filepath"])
    assert numpys != "Prescott"  # what it takes a processor for that it does not know


def test_only_points_that_none_is_below_are_unbeaten():
    points = np.array([[1.0, 3.0], [2.0, 2.0], [3.0, 2.5], [1.0, 4.0]])
    assert unbeaten(points).tolist() == [True, True, False, False]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [("magic", "no stream 'magic'"), ("banana-1/magic", "no method 'magic'")],
)
def test_unknown_names_are_named(pattern, message):
    with pytest.raises(InvalidDataError, match=message):
        plan.tasks([pattern], 0, quick=False, limit=1.0)


def test_a_missing_module_is_named(monkeypatch):
    from experiments.benchmarks.methods import learner

    monkeypatch.setattr(learner, "find_spec", lambda name: None)
    with pytest.raises(StreamingGPError, match="river"):
        plan.tasks(["drift-500/river*"], 0, quick=False, limit=1.0)
    assert plan.tasks(["drift-500/private*"], 0, quick=False, limit=1.0)


def test_random_methods_get_further_seeds_at_their_better_setting():
    methods = ["private", "features-500", "features-500-scaled", "sgpr-1000"]
    first = plan.tasks([f"drift-500/{name}" for name in methods], 0, False, 1.0)
    better = {task.key for task in first if task.method != "features-500"}
    found = plan.repeated(first, better, [1, 2])
    assert [(one.method, one.seed) for one in found] == [
        ("features-500-scaled", 1), ("features-500-scaled", 2),
    ]  # fmt: skip


def test_variants_are_planned_for_the_first_streams_alone():
    first, other = (plan.planned(stream) for stream in ("kin8nm-500", "kin8nm-100"))
    assert first == list(METHODS)
    assert {"default", "private", "block-cholesky"} <= set(other)
    assert not {"private-fading", "block-cholesky@all"} & set(other)
    assert "private-fading" in plan.planned("drift-500")
    assert "block-cholesky@all" not in plan.planned("drift-500")


# ---- the command ----


def run(out, *options):
    command = [sys.executable, "-m", "experiments.benchmarks", "--quick", "--out", str(out)]
    return subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "no memory left"),
        ("while True: pass", "stopped at 1 CPU seconds"),
        ("held = bytearray(2**30)", "ended with status 1: MemoryError"),
        ("raise SystemExit('why')", "ended with status 1: why"),
    ],
)
def test_a_run_that_does_not_end_well_is_told_apart(program, message, monkeypatch):
    main = importlib.import_module("experiments.benchmarks.__main__")
    monkeypatch.setattr(main, "_most_bytes", lambda: 2**29)
    monkeypatch.setattr(main, "SLACK", 600)  # of wall time, on a machine that has other work
    assert message in main._ended([sys.executable, "-c", program], 1.0)


@pytest.mark.slow
def test_the_command_resumes(tmp_path):
    first = run(tmp_path, "--only", "banana-10/private")
    assert first.returncode == 0, first.stderr
    both = run(tmp_path, "--only", "banana-10/private", "banana-10/window-500")
    assert both.returncode == 0, both.stderr
    assert "1 of 2 runs are there already" in both.stdout
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert [row["method"] for row in rows] == ["private", "window-500"]
    for row in rows:
        assert row["failed"] is None
        assert row["learning_cpu_seconds"] > 0.0
        assert 0.0 <= row["error"] <= 1.0
        assert [at["data_seen"] for at in row["trace"]] == sorted(
            at["data_seen"] for at in row["trace"]
        )
        assert row["trace"][-1]["error"] == row["error"]
    assert (tmp_path / "banana-10.png").stat().st_size > 10_000


@pytest.mark.slow
def test_how_a_rival_fails_is_its_result_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(METHODS, "window-500", replace(METHODS["window-500"], setting=("many",)))
    row = attempted(plan.tasks(["banana-10/window-500"], 0, True, 1.0)[0], None, tmp_path)
    assert row["failed"].startswith("TypeError: ")


@pytest.mark.slow
def test_the_command_ends_with_one_line_on_an_unknown_name(tmp_path):
    finished = run(tmp_path, "--only", "magic")
    assert finished.returncode == 2
    assert len([line for line in finished.stderr.splitlines() if line.startswith("error: ")]) == 1
    assert "Traceback" not in finished.stderr
