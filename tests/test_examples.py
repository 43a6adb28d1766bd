"""Examples from end to end in their quick runs, and experiments, which run with the slow tests."""

import io
import json
import runpy
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest

pytestmark = pytest.mark.example
ROOT = Path(__file__).resolve().parents[1]


def finished(script, out, *options):
    """What a run that ended well printed: an example by its path, an experiment by its module."""
    status, printed, errors = run(script, out, *options)
    assert status == 0, errors
    return printed


def run(script, out, *options):
    """Status, output and errors of a program, in this process: TensorFlow is there already."""
    printed, errors, status = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [script, "--out", str(out), *options])
        patch.syspath_prepend(ROOT / "examples")
        with redirect_stdout(printed), redirect_stderr(errors):
            try:
                if script.endswith(".py"):
                    runpy.run_path(str(ROOT / script), run_name="__main__")
                else:
                    runpy.run_module(script, run_name="__main__")
            except SystemExit as end:
                status = end.code
            finally:
                plt.close("all")
    return status, printed.getvalue(), errors.getvalue()


def in_a_process(script, out, *options):
    """The same, by itself: of programs that begin processes, measure theirs, or have an end that
    the shell sees.
    """
    program = [script] if script.endswith(".py") else ["-m", script]
    done = subprocess.run(
        [sys.executable, *program, "--out", str(out), *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout, done.stderr


def results_of(script, out, *options):
    finished(script, out, *options)
    return json.loads((out / "results.json").read_text())


def results_of_process(script, out, *options):
    status, _, errors = in_a_process(script, out, *options)
    assert status == 0, errors
    return json.loads((out / "results.json").read_text())


def test_the_short_banana_example_draws_the_stream(tmp_path):
    results = results_of_process("examples/banana.py", tmp_path, "--quick")
    assert results["command"] == "python examples/banana.py --quick"
    records = results["stream"]
    assert [one["method"] for one in records] == 3 * ["VI"] + 3 * ["ML"]
    assert records[2]["test_error"] <= 0.11
    assert (tmp_path / "banana_stream.png").stat().st_size > 20_000


def test_a_file_is_read_on_where_a_model_was_stopped(tmp_path):
    summary = results_of("examples/csv_stream.py", tmp_path, "--quick")["summary"]
    assert (summary["batches"], summary["rows"] + summary["skipped"]) == (4, 2000)
    assert summary["smse"] < 0.01


def test_the_short_example_of_bayesian_optimisation_comes_near_the_minimum(tmp_path):
    assert results_of("examples/bayesian_optimisation.py", tmp_path, "--quick")["regret"][-1] < 0.2


def test_the_short_example_of_a_changing_world_forgets(tmp_path):
    pytest.importorskip("river", reason="the river extra is not installed")
    found = results_of("examples/changing_world.py", tmp_path, "--quick")
    rows = {row["method"]: row for row in found["summary"]}
    assert rows["every batch counts"]["smse_end"] > 0.5
    assert rows["alarm"]["smse_end"] < 0.01


def test_three_places_learn_one_function_and_one_withdraws(tmp_path):
    results = results_of("examples/federated_gp.py", tmp_path, "--quick")
    assert results["rounds"][-1]["test_smse"] < 0.01
    assert results["removed"]["deviation_at_2"] > 0.1


def test_the_short_federated_example_has_the_lists_that_are_promised(mnist, tmp_path):
    methods = ("--methods", "pvi-sync,bcm-split")
    runs = results_of("examples/federated_mnist.py", tmp_path, "--quick", *methods)["runs"]
    assert [(one["method"], one["partition"], one["seed"]) for one in runs] == [
        ("pvi-sync", "iid", 0), ("bcm-split", "iid", 0)
    ]  # fmt: skip
    lists = ("round", "seconds", "messages", "bytes", "test_error", "test_nll")
    assert [{len(one[name]) for name in lists} for one in runs] == [{2}, {1}]


def test_the_short_private_example_spends_its_budget_and_no_more(mnist, tmp_path):
    pytest.importorskip("dp_accounting", reason="the privacy extra is not installed")
    rounds = results_of("examples/private_federation.py", tmp_path, "--quick")["rounds"]
    assert 1.9 < rounds[-1]["spent"] <= 2.0
    assert rounds[-1]["test_error"] < rounds[0]["test_error"]


@pytest.mark.slow
def test_the_banana_example_writes_figures_and_numbers(tmp_path):
    done = finished("experiments.papers.banana", tmp_path, "--quick")
    for figure in ("banana_stream.png", "banana_failure.png", "banana_methods.png"):
        assert (tmp_path / figure).stat().st_size > 20_000
    results = json.loads((tmp_path / "results.json").read_text())
    assert [r["batch"] for r in results["stream"] if r["method"] == "VI"] == [1, 2, 3]
    last = f"VI after batch 3: test error {100 * results['stream'][2]['test_error']:.2f} %"
    assert last in done


@pytest.mark.slow
def test_the_banana_example_with_its_own_nuts_run(tmp_path):
    results = results_of("experiments.papers.banana", tmp_path, "--nuts-samples", "50")
    assert results["nuts"]["samples"] == 50
    assert {r["method"] for r in results["batch"]} == {"VI", "ML"}


def test_the_barrett_example_writes_figures_and_numbers(barrett, tmp_path):
    results = results_of("examples/barrett_stream.py", tmp_path, "--quick")
    assert [r["batch"] for r in results["batches"]] == list(range(1, 7))
    assert (tmp_path / "barrett_stream.png").stat().st_size > 10_000


@pytest.mark.slow
def test_the_example_of_seven_torques_compares_with_seven_models(barrett, tmp_path):
    results = results_of("experiments.measured.seven_torques", tmp_path, "--quick")
    assert [one["pseudo_points"] for one in results["summary"]] == [28, 28]
    assert [row["joint"] for row in results["joints"]] == list(range(1, 8))
    assert (tmp_path / "seven_torques.png").stat().st_size > 10_000


@pytest.mark.slow
def test_the_robot_arm_example_resumes_and_needs_no_data(tmp_path):
    options = ("--quick", "--source", "simulated")
    first = finished("experiments.papers.robot_arm", tmp_path, *options, "--methods", "private VI")
    assert "simulated arm, not of a real one" in first
    kept = next((tmp_path / "runs").glob("*private VI*"))
    written = kept.stat().st_mtime_ns
    both = finished(
        "experiments.papers.robot_arm", tmp_path, *options, "--methods", "private VI", "shared VI"
    )
    assert "1 of 2 runs are there already" in both
    everything = "--methods", "private VI", "shared VI", "batch SGPR", "--finished"
    done = finished("experiments.papers.robot_arm", tmp_path, *options, *everything)
    assert "2 of 2 runs are there already" in done
    assert kept.stat().st_mtime_ns == written
    results = json.loads((tmp_path / "results.json").read_text())
    assert {row["method"] for row in results["summary"]} == {"private VI", "shared VI"}
    assert all(run["batch"] == [1, 2, 3, 4, 5, 6] for run in results["curves"])
    (pair,) = results["private_and_shared"]
    assert (pair["joint"], pair["streams"]) == (3, 1)
    assert pair["private_ahead"] == (pair["private_smse"] < pair["shared_smse"])
    for figure in ("robot_arm_smse.png", "robot_arm_nlpd.png"):
        assert (tmp_path / figure).stat().st_size > 10_000


@pytest.mark.slow
def test_the_endless_stream_stays_within_its_budget(tmp_path):
    results = results_of_process("experiments.measured.endless_stream", tmp_path, "--quick")
    assert results["summary"]["pseudo_points"] <= 60
    assert results["summary"]["megabytes_grown"] < 50.0
    assert len(results["batches"]) == 120


@pytest.mark.slow
def test_a_stream_that_is_killed_loses_nothing(tmp_path):
    rows = results_of_process("experiments.measured.killed_stream", tmp_path, "--quick")["summary"]
    assert sum(row["kills"] for row in rows) >= 5
    assert all(row["updates_lost"] == 0 for row in rows)
    assert all(row["same_bit_for_bit"] == row["streams"] for row in rows)


@pytest.mark.slow
def test_threads_see_committed_states_alone(tmp_path):
    for row in results_of_process("experiments.measured.many_threads", tmp_path, "--quick")[
        "summary"
    ]:
        assert row["of_no_state"] == row["errors"] == 0
        assert row["predictions"] > row["states"] == 21


@pytest.mark.slow
def test_small_updates_of_every_strategy_learn_the_function(tmp_path):
    results = results_of_process("experiments.measured.small_updates", tmp_path, "--quick")
    for kind, worst in (("regression", 0.5), ("labels", 0.4)):  # zero, or one half, has 0.7 or 0.5
        rows = results[kind]
        assert len({row["method"] for row in rows}) == 4
        assert all(row["rmse"] < worst for row in rows)
        assert all(None not in row.values() for row in rows)  # others cannot absorb


@pytest.mark.slow
def test_settings_of_a_long_stream_stand_side_by_side(tmp_path):
    script = "experiments.measured.stream_defaults"
    first, few = results_of_process(script, tmp_path, "--quick")["summary"]
    assert first["smse"] < few["smse"] < 0.2
    assert results_of_process(script, tmp_path, "--quick")["summary"] == [first, few]


@pytest.mark.slow
def test_more_rows_hold_more_of_a_batch(kin8nm, tmp_path):
    first, last = results_of("experiments.measured.rows_of_a_batch", tmp_path, "--quick")["summary"]
    assert 0.0 < last["nats"] < first["nats"]
    for row in (first, last):
        assert row["of_10_rows"] < row["of_30_rows"] < 1.0
        assert row["rows_for_0.5"] < row["rows_for_0.9"] < row["rows_for_0.99"] <= row["data"]


@pytest.mark.slow
def test_readings_of_the_kernel_probit_table_are_set_beside_it(tmp_path):
    rows = results_of("experiments.papers.stochastic_ep_readings", tmp_path, "--quick")["summary"]
    found = [float(row["test_log_likelihood"].split()[0]) for row in rows]
    assert len(rows) == 4
    assert {row["paper_log_likelihood"] for row in rows} == {-0.378}
    assert found[0] > found[2] > found[3]  # a narrower kernel and a smaller prior are less certain
    assert found[0] > found[1] > found[3]


@pytest.mark.slow
def test_too_few_points_are_warned_of_and_enough_are_not(tmp_path):
    few, enough = results_of("experiments.measured.overconfidence", tmp_path, "--quick")["summary"]
    assert few["warned"]
    assert few["at_points"] > 10.0 * few["exact_at_points"]
    assert few["at_points"] / 4.0 < few["shown_error"] < 4.0 * few["at_points"]
    assert not enough["warned"]
    assert enough["at_points"] < 3.0


@pytest.mark.slow
def test_a_line_s_hyperparameters_are_known_as_nuts_knows_them(tmp_path):
    results = results_of("experiments.measured.hyperparameter_widths", tmp_path, "--quick")
    one, five = results["summary"]
    assert (one["problem"], one["points"], one["components"]) == ("line", "dense", 3)
    assert one["furthest"] < 0.6  # of a short chain
    assert one["furthest"] == pytest.approx(five["furthest"], abs=0.05)
    assert (tmp_path / "hyperparameter_widths.png").exists()


@pytest.mark.slow
def test_tiny_batches_go_on_and_add_up(tmp_path):
    (row,) = results_of("experiments.measured.tiny_batches", tmp_path, "--quick")["summary"]
    assert row["all_finite"]
    assert row["least_variance"] > 0.0
    assert row["points"] <= 40
    assert row["lost_by_merges_per_datum"] > 0.0
    assert row["rmse"] < 0.1
    assert row["largest_unexplained"] < 1e-9


@pytest.mark.slow
def test_an_alarm_finds_a_changed_function_that_full_memory_does_not(tmp_path):
    pytest.importorskip("river", reason="the river extra is not installed")
    found = results_of("experiments.measured.changing_world", tmp_path, "--quick")
    rows = {row["method"]: row for row in found["summary"]}
    assert {row["first_alarm"] for row in rows.values()} == {7}
    assert rows["every batch counts"]["smse_end"] > 0.5
    assert rows["window of 5 batches"]["smse_end"] < 0.1
    assert rows["alarm"]["smse_end"] < 0.01
    assert (tmp_path / "changing_world.png").stat().st_size > 10_000


@pytest.mark.slow
def test_three_arms_in_turn_are_the_one_model_that_sees_all_batches(barrett, tmp_path):
    rows = results_of("experiments.measured.three_arms", tmp_path, "--quick")["summary"]
    found = {(one["epsilon"], one["order"]): one["beyond_one_model"] for one in rows}
    assert abs(found["fixed", "in turn"]) < 1e-9
    assert abs(found["variational", "in turn"]) < 0.2  # after two batches of each place
    assert not any(one["refused_or_failed"] for one in rows)
    assert (tmp_path / "three_arms.png").stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.nvflare
def test_three_organisations_bear_mishaps(tmp_path):
    pytest.importorskip("nvflare", reason="the nvflare extra is not installed")
    results = results_of_process("experiments.measured.organisations", tmp_path, "--quick")
    for one in results["undisturbed"]:
        assert one["difference"] < 1e-6
        assert one["processes"] == 3
        assert one["plain_numbers"] == 0 < one["plain_numbers_in_the_file"]
    for one in results["disturbed"]:
        assert one["mishaps"] == 3
        assert one["difference"] < {"synchronous": 1e-6, "asynchronous": 1e-3}[one["schedule"]]
        assert (one["failed"], one["refused"]) == (0, 0)


def test_the_control_loop_notices_a_load_and_is_right_again(tmp_path):
    pytest.importorskip("mujoco", reason="the simulation extra is not installed")
    found = results_of("examples/control_loop.py", tmp_path, "--quick")["summary"]
    assert found["points"] == 2050
    assert found["standardised_before"] < 2.0
    assert found["noticed_after"] <= 10
    assert found["standardised_later"] < 2.0
    assert (tmp_path / "control_loop.png").stat().st_size > 10_000


@pytest.mark.slow
def test_one_point_at_a_time_is_ahead_of_others_and_its_late_steps_are_counted(barrett, tmp_path):
    pytest.importorskip("river", reason="the river extra is not installed")
    results = results_of_process("experiments.measured.control_loops", tmp_path, "--quick")
    online, *others = results["errors"]
    assert online["mse"] < 0.5 * min(one["mse"] for one in others if "seven" not in one["learner"])
    assert [one["learner"] for one in results["latency"]] == 2 * ["none", "a process", "a thread"]
    assert {one["steps"] for one in results["latency"]} == {200}


@pytest.mark.slow
def test_the_stochastic_ep_example_resumes_and_counts_memory(tmp_path):
    finished("experiments.papers.stochastic_ep", tmp_path, "--quick")
    again = finished("experiments.papers.stochastic_ep", tmp_path, "--quick")
    assert "24 of 24 runs are there already" in again
    results = json.loads((tmp_path / "results.json").read_text())
    rows = {row["method"]: row for row in results["summary"]}
    factor = 8 * (40 + 40**2)
    kept = {"EP": 41, "ADF": 1, "SEP": 2, "DSEP": 5, "AEP": 2, "DAEP": 5}
    assert {name: row["bytes"] for name, row in rows.items()} == {
        name: number * factor for name, number in kept.items()
    }
    assert all(float(row["test_error"].split()[0]) < 0.05 for row in rows.values())
    assert {row["method"] for row in results["flipped"]} == set(kept)
    for figure in ("stochastic_ep.png", "stochastic_ep_flipped.png"):
        assert (tmp_path / figure).stat().st_size > 10_000


@pytest.mark.slow
def test_one_factor_for_all_pieces_is_near_distributed_ep_at_a_fraction_of_its_memory(tmp_path):
    results = results_of("experiments.papers.sampled_moments", tmp_path, "--quick")
    rows = {row["method"]: row for row in results["summary"]}
    factor = 8 * (4 + 4**2)
    assert {name: row["bytes"] // factor for name, row in rows.items()} == {
        "DEP": 21, "ADF": 1, "SEP": 2, "AEP": 2
    }  # fmt: skip
    assert all(one["refused"] == 0 for one in results["runs"])
    assert all(float(row["mean_error"].split()[0]) < 0.3 for row in rows.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "more_runs", "more_parameters"), [("learned", 0, 1), ("fixed", 1, 0)]
)
def test_the_network_example_of_stochastic_ep_resumes_and_counts_memory(
    tmp_path, rng, noise, more_runs, more_parameters
):
    """On invented data in the published form."""
    X = rng.standard_normal((120, 3))
    y = 5.0 + 2.0 * np.maximum(X[:, 0], 0.0) + 0.3 * rng.standard_normal(120)
    folder = tmp_path / "uci" / "wine-quality-red"
    folder.mkdir(parents=True)
    np.savez(folder / "data.npz", X=X, y=y, test_rows=np.arange(24).reshape(2, 12))
    options = "--quick", "--passes", "10", "--noise", noise, "--data", str(tmp_path)
    finished("experiments.papers.stochastic_ep_networks", tmp_path / "out", *options)
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "runs").iterdir()}
    assert len(kept) == 2 * (3 + more_runs)
    finished("experiments.papers.stochastic_ep_networks", tmp_path / "out", *options, "--finished")
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    rows = {row["method"]: row for row in results["summary"]}
    one = 2 * 8 * (4 * 5 + 6 + more_parameters)  # mean and variance, float64
    assert {name: row["factor_bytes"] for name, row in rows.items()} == {
        "EP": 108 * one, "SEP": one, "ADF": 0
    }  # fmt: skip
    assert all(float(row["rmse"].split()[0]) < 0.75 * y.std() for row in rows.values())
    assert (tmp_path / "out" / "stochastic_ep_networks.png").stat().st_size > 10_000


@pytest.mark.slow
def test_the_posterior_server_example_resumes_and_comes_near_its_reference(tmp_path):
    finished("experiments.papers.posterior_server", tmp_path, "--quick")
    runs = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir()}
    assert {path: path.stat().st_mtime_ns for path in runs} == runs
    rows = results_of("experiments.papers.posterior_server", tmp_path, "--quick")["summary"]
    assert {(one["method"], one["samples"]) for one in rows} >= {("SNEP", 2), ("SNEP", 10)}
    for one in rows:
        if one["method"] == "SNEP":
            assert one["without_effect"] == 0
            assert one["mean_error"] < 0.2
    assert (tmp_path / "posterior_server.png").stat().st_size > 10_000


@pytest.mark.slow
def test_the_clutter_example_finds_the_exact_moments_and_forgets_the_partition(tmp_path):
    results = results_of("experiments.papers.clutter", tmp_path, "--quick")
    found = {(row["problem"], row["method"]): row for row in results["one_dimensional"]}
    for problem in ("unimodal", "bimodal"):
        exact = found[problem, "exact"]
        for method in ("VI", "PVI", "EP"):
            assert abs(found[problem, method]["mean"] - exact["mean"]) < 0.05
            assert abs(found[problem, method]["sd"] / exact["sd"] - 1.0) < 0.1
    for row in results["3.1"] + results["3.2"]:
        assert max(row["mean"], row["covariance"]) < 0.01
    for name in ("clutter_1d.png", "clutter_2d.png"):
        assert (tmp_path / name).stat().st_size > 10_000


@pytest.mark.slow
def test_an_outlier_loses_its_influence_under_a_robust_loss_only(tmp_path):
    found = results_of("experiments.papers.influence", tmp_path, "--quick")["influence"]
    for name, values in found.items():
        falling = np.diff(values) < 0.0
        assert falling.all() if "loss" in name else not falling.any(), name
    assert (tmp_path / "influence.png").stat().st_size > 10_000


def test_the_mixture_stream_finds_its_clusters(tmp_path):
    results = results_of("examples/mixture_stream.py", tmp_path, "--quick")
    used = [one["components"] for one in results["stream"]]
    assert used[0] < used[-1]
    assert (tmp_path / "mixture_stream.png").stat().st_size > 10_000


@pytest.mark.slow
def test_the_federated_example_resumes_and_reports_every_round(mnist, tmp_path):
    options = ("--quick", "--partition", "label", "--methods")
    finished("experiments.papers.federated_mnist", tmp_path, *options, "pvi-natural")
    both = finished("experiments.papers.federated_mnist", tmp_path, *options, "pvi-natural,fedavg")
    assert "pvi-natural" not in both
    results = json.loads((tmp_path / "results.json").read_text())
    assert [one["method"] for one in results["runs"]] == ["pvi-natural", "fedavg"]
    for one in results["runs"]:
        lengths = {len(one[key]) for key in ("round", "seconds", "messages", "bytes", "test_error")}
        assert lengths == {one["round"][-1]}
    assert (tmp_path / "mnist_label.png").stat().st_size > 10_000


@pytest.mark.slow
def test_the_example_of_short_visits_begins_all_rules_at_one_posterior(mnist, tmp_path):
    finished("experiments.measured.short_visits", tmp_path, "--quick")
    written = (tmp_path / "results.json").read_bytes()
    assert "last error" not in finished("experiments.measured.short_visits", tmp_path, "--quick")
    assert (tmp_path / "results.json").read_bytes() == written
    rows = json.loads(written)["summary"]
    assert len({one["free_energy_before"] for one in rows}) == 1
    assert len({one["free_energy_after"] for one in rows}) == len(rows) == 4
    assert (tmp_path / "short_visits.png").stat().st_size > 10_000


@pytest.mark.slow
def test_the_sweep_chooses_by_held_back_images_and_resumes(mnist, tmp_path):
    options = ("--quick", "--partition", "label", "--methods", "gvi-1-core,gvi-10-cores")
    finished("experiments.papers.federated_sweeps", tmp_path, *options)
    best = finished("experiments.papers.federated_sweeps", tmp_path, *options, "--best")
    assert "-choose.json" not in best
    results = json.loads((tmp_path / "results.json").read_text())
    for row in results["summary"]:
        tried = [one for one in results["sweep"] if one["method"] == row["method"]]
        assert row["tried"] == len(tried)
        assert row["held_back_error"] == min(one["error"] for one in tried)
        assert row["seeds"] == 1
        assert row["error"] != row["held_back_error"]
    assert (tmp_path / "mnist_label_sweep.png").stat().st_size > 10_000
    assert (tmp_path / "mnist_label.png").stat().st_size > 10_000


def test_tasks_are_learned_one_after_another_and_the_first_is_not_forgotten(mnist, tmp_path):
    results = results_of("examples/continual.py", tmp_path, "--quick")
    assert [one["coreset"] for one in results["runs"]] == [0, 40]
    for one in results["runs"]:
        assert [len(errors) for errors in one["test_errors"]] == [1, 2, 3, 4, 5]
        assert all(errors[0] < 0.05 for errors in one["test_errors"])
    assert (tmp_path / "continual.png").stat().st_size > 10_000


@pytest.mark.slow
def test_a_hostile_client_is_the_only_one_refused(mnist, tmp_path):
    results = results_of("experiments.measured.hostile_client", tmp_path, "--quick")
    refused = {(one["partition"], one["client"]): one["refused"] for one in results["summary"]}
    assert refused["iid", "honest"] == refused["label", "honest"] == 0
    assert min(refused["iid", "hostile"], refused["label", "hostile"]) > 5
    assert not any(one["refused_of_others"] for one in results["summary"])
    assert all(np.isfinite(one["last_nll"]) for one in results["summary"])


@pytest.mark.slow
def test_private_federation_spends_what_it_is_given_and_keeps_its_runs(mnist, tmp_path):
    choice = ("--quick", "--seeds", "1", "--epsilons", "2", "--models", "logistic")
    rows = results_of("experiments.measured.private_federation", tmp_path, *choice)["summary"]
    assert [row["method"] for row in rows] == ["fedavg", "pvi"]
    assert all(0.0 < row["spent"] <= 2.0 for row in rows)
    assert all(row["error"] < 0.9 for row in rows)
    again = finished("experiments.measured.private_federation", tmp_path, *choice)
    assert "last error" not in again
    assert (tmp_path / "private_federation.png").stat().st_size > 10_000


@pytest.mark.slow
def test_a_liar_is_held_back_and_honest_clients_are_not(tmp_path):
    rows = results_of("experiments.measured.hostile_client", tmp_path, "--quick", "--lies")["lies"]
    found = {(row["shards"], row["rule"]): row for row in rows}
    plain, agreement = found["iid", "sum"], found["iid", "agreement, 3"]
    assert plain["surest_moved"] > 1000.0
    assert agreement["surest_moved"] < 1.0
    assert agreement["honest_moved"] < 1e-6
    assert not any(row["flipped_refused"] + row["surest_refused"] for row in rows)


@pytest.mark.slow
def test_the_network_example_resumes_and_shares_runs_between_studies(mnist, tmp_path):
    script, options = "experiments.papers.posterior_server_networks", ("--quick", "--studies")
    first = finished(script, tmp_path, *options, "methods")
    assert first.count(".json: error") == 5
    again = finished(script, tmp_path, *options, "methods,beta")
    assert again.count(".json: error") == 2  # the others were there
    results = json.loads((tmp_path / "results.json").read_text())
    rows = {(row["study"], row["label"]): row for row in results["summary"]}
    assert rows["methods", "p-SNEP"]["mean_error"] == rows["beta", "beta 0.25"]["mean_error"]
    for row in rows.values():
        assert row["refused"] == 0
        assert row["mean_error"] < 0.85  # after forty iterations
    assert rows["methods", "Adam"]["drawn_error"] is None
    for study in ("methods", "beta"):
        assert (tmp_path / f"{study}.png").stat().st_size > 10_000


@pytest.mark.slow
def test_the_generalised_example_resumes(mnist, tmp_path):
    finished("experiments.papers.generalised_mnist", tmp_path, "--quick", "--studies", "divergence")
    both = finished(
        "experiments.papers.generalised_mnist", tmp_path, "--quick", "--studies", "divergence,rate"
    )
    assert "0.75" not in both
    results = json.loads((tmp_path / "results.json").read_text())
    titles = [row["title"] for row in results["summary"]]
    assert titles.count("VI") == titles.count("PVI") == titles.count("PGVI, α = 0.75") == 1
    assert len({row["learning_rate"] for row in results["summary"]}) == 4
    for row in results["summary"]:
        assert row["refused_or_failed"] == 0
        assert row["last_error"] < 0.8
    for study in ("divergence", "rate"):
        assert (tmp_path / f"mnist_{study}.png").stat().st_size > 10_000


@pytest.mark.slow
def test_the_study_of_stopping_says_how_many_epochs_visits_took(mnist, tmp_path):
    results = results_of("experiments.papers.generalised_stopping", tmp_path, "--quick")
    rows = results["summary"]
    assert [row["prior_means"] for row in rows] == [0.0, 0.0, 0.0, 0.1, 0.1]
    assert len({row["title"] for row in rows}) == 5
    for row, one in zip(rows, results["runs"], strict=True):
        assert row["refused_or_failed"] == 0
        assert [len(visits) for visits in one["visits"]] == [10, 10]
        if row["stops_early"]:
            assert 4 <= row["last_epochs"] < row["first_epochs"] < row["epochs"]
        else:
            assert row["first_epochs"] == row["last_epochs"] == row["epochs"]
    assert (tmp_path / "mnist_stopping.png").stat().st_size > 10_000


@pytest.mark.slow
def test_clients_that_share_the_start_answer_under_renyi_divergences(mnist, tmp_path):
    results = results_of(
        "experiments.papers.generalised_sequential", tmp_path, "--quick", "--studies", "start"
    )
    lost = {(row["alpha"], row["shares_start"]): row["lost"] for row in results["summary"]}
    assert lost[1.0, True] == lost[1.0, False] == lost[5.0, True] == 0
    assert lost[5.0, False] > 0
    for row in results["summary"]:
        assert row["seeds"] == 1
        assert row["round"] <= 2
        assert row["error"] < 0.5
    assert (tmp_path / "mnist_start.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("program", "options"),
    [
        ("examples/barrett_stream.py", ["--joint", "9"]),
        ("examples/barrett_stream.py", ["--points", "0"]),
        ("examples/federated_mnist.py", ["--methods", "magic"]),
        *(
            pytest.param(f"experiments.papers.{name}", options, marks=pytest.mark.slow)
            for name, options in (
                ("generalised_mnist", ["--studies", "magic"]),
                ("robot_arm", ["--joints", "9"]),
                ("robot_arm", ["--methods", "magic"]),
            )
        ),
    ],
)
def test_bad_options_end_a_program_with_one_line(request, tmp_path, program, options):
    for part, data in {"barrett": "barrett", "mnist": "mnist"}.items():
        if part in program:
            request.getfixturevalue(data)
    status, _, errors = run(program, tmp_path, "--quick", *options)
    assert status == 2
    (error,) = [line for line in errors.splitlines() if "error: " in line]
    assert ("'magic'" in error) == ("magic" in options)
    assert "Traceback" not in errors


def test_bad_data_end_an_example_with_one_line(tmp_path):
    (tmp_path / "banana").mkdir()
    (tmp_path / "banana" / "banana.csv").write_text("not the data")
    status, _, errors = run("examples/banana.py", tmp_path, "--quick", "--data", str(tmp_path))
    assert status == 2
    assert "error: " in errors
    assert "sha256" in errors
    assert "Traceback" not in errors


@pytest.mark.slow
def test_bayesian_optimisation_finds_better_points_and_keeps_its_runs(tmp_path):
    rows = results_of("experiments.measured.bayesian_optimisation", tmp_path, "--quick")["summary"]
    assert [row["method"] for row in rows] == ["streaming, four pending", "refit, compiled once"]
    for row in rows:
        assert 0.0 <= row["regret"] < 5.0
        assert row["seconds"] > 0.0
    kept = sorted((tmp_path / "runs").iterdir())
    assert len(kept) == 2
    regrets = json.loads(kept[0].read_text())["regret"]
    assert len(regrets) == 14
    assert regrets == sorted(regrets, reverse=True)
    assert regrets[-1] < regrets[5]
    assert (tmp_path / "bayesian_optimisation.png").is_file()


@pytest.mark.slow
def test_points_one_at_a_time_cost_the_same_and_the_error_falls(tmp_path):
    (found,) = results_of("experiments.measured.million_points", tmp_path, "--quick")["summary"]
    assert found["points"] == 20_000
    assert found["all_finite"]
    assert found["least_variance"] > 0.0
    assert found["least_eigenvalue"] > -1e-9
    assert found["rmse_late"] < found["rmse_early"] < 0.1
    assert (tmp_path / "million_points.png").is_file()


@pytest.mark.slow
def test_active_learning_asks_for_rows_and_keeps_its_runs(kin8nm, tmp_path):
    rows = results_of("experiments.measured.active_learning", tmp_path, "--quick")["summary"]
    assert len(rows) == len({row["method"] for row in rows}) == 4
    for row in rows:
        assert row["pool"] == "kin8nm"
        assert row["seconds"] > 0.0
    for path in (tmp_path / "runs").iterdir():
        first, last = json.loads(path.read_text())["errors"]
        assert last < first
    assert (tmp_path / "active_learning.png").is_file()


@pytest.mark.slow  # eleven methods compile
def test_all_methods_learn_from_clients_that_differ(mnist, tmp_path):
    once = ("--quick", "--seeds", "1", "--divided", "iid")
    rows = results_of("experiments.measured.clients_that_differ", tmp_path, *once)["summary"]
    assert len(rows) == len({row["method"] for row in rows}) == 12
    assert len({row["messages"] for row in rows}) == 1
    all_asked = (*once, "--clients", "10", "--methods", "masked")
    rows = results_of("experiments.measured.clients_that_differ", tmp_path, *all_asked)["summary"]
    assert {row["method"] for row in rows} > {"masked", "fedavg"}
    assert all(row["last_error"] < 0.9 for row in rows)
    assert (tmp_path / "clients_that_differ.png").is_file()


@pytest.mark.slow
def test_a_large_csv_file_is_learned_in_bounded_memory_and_after_kills(tmp_path):
    alone, killed = results_of_process("experiments.measured.csv_stream", tmp_path, "--quick")[
        "summary"
    ]
    assert alone["processes"] == 1
    assert killed["processes"] > 1
    for row in (alone, killed):
        assert (row["same"], row["rows"], row["skipped"]) == ("yes", 1998, 2)
        assert row["grown_megabytes"] < 300.0
