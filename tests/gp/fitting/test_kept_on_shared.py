"""On shared points, too, an update reports the free energy of what the ledger keeps."""

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp.gp.fitting.kept_bound import KeptBound
from streaming_gp.gp.fitting.kept_on_shared import bound_at
from tests.gp.builders import FIXED, known_model, labelled
from tests.reference import independent_bound, log_evidence_of, points_of, smooth_data
from tests.tolerances import THROUGH_CHOLESKY


@pytest.mark.parametrize(
    ("likelihood", "moves"),
    [
        ("regression", True),
        ("classification", False),
        pytest.param("regression", False, marks=pytest.mark.slow),
        pytest.param("classification", True, marks=pytest.mark.slow),
    ],
)
def test_at_one_epsilon_it_is_the_bound_that_was_maximised(rng, likelihood, moves):
    regression = likelihood == "regression"
    data = [smooth_data(rng, 20) if regression else labelled(rng, 20) for _ in range(3)]
    chosen = None if regression else gpflow.likelihoods.Bernoulli()
    points = sgp.SharedPseudoPoints(8, optimise_locations=moves)
    model = known_model(points, chosen, FIXED, optimiser=sgp.LocalOptimiser(max_iterations=16))
    for batch in data[:2]:
        model.update(batch)
    cavity = model.posterior_process
    info = model.update(data[2])
    compiled = model._compiled
    at = compiled.parameters.value()[None]
    found = bound_at(KeptBound(compiled.local), cavity, model.posterior_process, at, data[2])
    assert found == pytest.approx(info.free_energy, abs=10.0 * THROUGH_CHOLESKY)


@pytest.mark.slow
def test_it_is_the_mean_of_dense_bounds_over_the_values_of_epsilon(rng):
    """q(a) is taken at one ε; what it says of the others is ``q(a) / p(a | ε)`` all the same."""
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian(0.1),
        pseudo_points=sgp.SharedPseudoPoints(5), optimiser=sgp.LocalOptimiser(max_iterations=8),
    )  # fmt: skip
    X = rng.uniform(-3, 3, (24, 1))
    Y = np.sin(2.0 * X) + 0.1 * rng.standard_normal(X.shape)
    model.update((X[:12], Y[:12]))
    earlier, prior, one = points_of(model)
    before, cavity = log_evidence_of(one, model.kernel), model.posterior_process
    data = X[12:], Y[12:]
    info = model.update(data)
    q, vector = model.hyperparameter_posterior, model.parameter_vector
    kept_bound = KeptBound(model._compiled.local)
    draws, wanted = kept_bound.draws(q, seed=1), []
    for epsilon in draws:
        vector.assign(epsilon)
        wanted.append(
            independent_bound(
                model.kernel, gpflow.functions.Zero(), model.likelihood.variance.numpy(),
                earlier, points_of(model)[0], data, prior_of_earlier=prior,
            ) - log_evidence_of(one, model.kernel) + before
        )  # fmt: skip
    found = bound_at(kept_bound, cavity, model.posterior_process, draws, data)
    assert found == pytest.approx(np.mean(wanted), abs=10.0 * THROUGH_CHOLESKY)
    reported = info.free_energy + float(q.kl_divergence(cavity.hyperparameters))
    assert reported == pytest.approx(found, abs=2.0)  # other draws
