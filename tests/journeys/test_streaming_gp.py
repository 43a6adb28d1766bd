"""The streaming model as a GPflow model, and what its updates report."""

import gpflow
import numpy as np
import pytest

from streaming_gp.progress import progress_bar
from tests.oracles.builders import EVERY_INPUT, FIXED, assert_unchanged, regressor
from tests.oracles.reference import smooth_data
from tests.tolerances import ALGEBRA


def test_update_info_and_progress(rng, capsys):
    """Off a terminal, the progress is one line."""
    model, seen = regressor(), []
    with progress_bar("batch 1") as callback:
        info = model.update(smooth_data(rng), callback=lambda p: [seen.append(p), callback(p)])
    assert [p.iteration for p in seen] == list(range(1, info.iterations + 1))
    most = 10 + 20  # over locations as well, and over q(ε) alone
    assert {(p.batch_id, p.max_iterations) for p in seen} == {("batch-0", most)}
    assert info.free_energy <= seen[-1].free_energy  # one factor is kept for all ε
    assert info.num_pseudo_points == 5
    assert info.seconds > 0.0
    assert info.clipped_sites == 0
    with pytest.raises(AttributeError):
        info.batch_id = "other"
    end = f"batch 1: {info.iterations} iterations, free energy {seen[-1].free_energy:.2f}\n"
    assert capsys.readouterr().out == end


def test_it_is_a_gpflow_model_whose_deep_copy_continues_on_its_own(rng, capsys):
    model, second = regressor(pseudo_points=EVERY_INPUT), smooth_data(rng, 20)
    assert isinstance(model, gpflow.models.GPModel)
    model.update(smooth_data(rng, 20))
    assert set(gpflow.utilities.parameter_dict(model)) == {
        ".kernel.variance", ".kernel.lengthscales", ".likelihood.variance",
    }  # fmt: skip
    model.print_summary()
    printed = capsys.readouterr().out
    assert "kernel.lengthscales" in printed
    assert "prior × 1 factors, 20 points" in printed
    clone = gpflow.utilities.deepcopy(model)
    assert np.isfinite(model.training_loss())
    assert clone.training_loss() == model.training_loss()
    model.update(second)
    assert (len(model.factors), len(clone.factors)) == (2, 1)
    clone.update(second)
    assert_unchanged(model, second[0], clone.predict_f(second[0]))


def test_gpflow_can_optimise_the_log_normaliser(rng):
    """A stream fitted at fixed ε is still a GPflow objective in ε."""
    model = regressor(pseudo_points=EVERY_INPUT, hyperparameters=FIXED)
    for _ in range(2):
        model.update(smooth_data(rng, 20))
    before = float(model.training_loss())
    gpflow.optimizers.Scipy().minimize(
        model.training_loss, model.kernel.trainable_variables, options={"maxiter": 20}
    )
    assert float(model.training_loss()) < before - 1.0


def test_a_new_kernel_is_seen(rng):
    """Compiled functions belong to the parameters they were traced with."""
    model = regressor(hyperparameters=FIXED)
    X, Y = smooth_data(rng)
    model.update((X, Y))
    model.kernel = gpflow.kernels.SquaredExponential(variance=5.0, lengthscales=[0.2, 0.2])
    model.update((X, Y))
    oracle = regressor(hyperparameters=FIXED)
    oracle.kernel = model.kernel
    oracle.adopt(model.ledger)
    for a, b in zip(model.predict_f(X), oracle.predict_f(X), strict=True):
        np.testing.assert_allclose(a, b, rtol=ALGEBRA)
