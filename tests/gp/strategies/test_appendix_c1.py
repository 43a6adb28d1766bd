"""Shared points and a point ε (PVI 2018, app. C.1; Bui et al. 2017a), with and without memory."""

from types import SimpleNamespace

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp
from tests.reference import independent_bound
from tests.tolerances import THROUGH_CHOLESKY

STEP = 1e-4
AT_THE_OPTIMUM = 0.3
"""Nats for each unit of ε: what SciPy's optimiser leaves of gradients of hundreds."""


def points_of(model):
    """q(u) of all shared points, as N(intercept, scale scaleᵀ), and their prior."""
    (one,) = model.posterior_process.compact.pseudo_observations
    prior = model.kernel(one.Z).numpy() + one.nugget * np.eye(len(one.Z))
    R = one.precision_factor[0]
    covariance = np.linalg.inv(np.linalg.inv(prior) + R @ R.T)
    mean = covariance @ R @ one.pseudo_targets[0]
    scale = np.linalg.cholesky(0.5 * (covariance + covariance.T))
    q = SimpleNamespace(Z=one.Z, nugget=one.nugget, intercept=mean[None], scale=scale[None])
    return q, (np.zeros(len(one.Z)), prior), one


def log_evidence_of(one, kernel):
    """``log ∫ t(a) p(a | ε) da`` of pseudo-observations, less their 2π."""
    R, s = one.precision_factor[0], one.pseudo_targets[0][:, 0]
    B = np.eye(len(R)) + R.T @ (kernel(one.Z).numpy() + one.nugget * np.eye(len(R))) @ R
    return -0.5 * (s @ np.linalg.solve(B, s) + np.linalg.slogdet(B)[1])


@pytest.fixture(scope="module", params=[True, False], ids=["with memory", "without"])
def third_update(request):
    """A model after three batches, what was known before the third, and what the update said."""
    rng = np.random.default_rng(8)
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian(0.1),
        pseudo_points=sgp.SharedPseudoPoints(6),
        hyperparameters=sgp.PointHyperparameters(remember=request.param),
        optimiser=sgp.LocalOptimiser(max_iterations=400),
    )  # fmt: skip
    X = rng.uniform(-2, 2, (45, 1))
    Y = np.sin(2.0 * X) + 0.2 * rng.standard_normal(X.shape)
    for i in (0, 15):
        model.update((X[i : i + 15], Y[i : i + 15]))
    earlier = points_of(model)
    evidence_before = log_evidence_of(earlier[2], model.kernel)
    info = model.update((X[30:], Y[30:]))
    return request.param, model, earlier, evidence_before, info, (X[30:], Y[30:])


def appendix_c1(model, added, earlier, data):
    """The bound of appendix C.1 at the ε that the model holds now."""
    q, prior, _ = earlier
    noise = model.likelihood.variance.numpy()
    return independent_bound(
        model.kernel, gpflow.functions.Zero(), noise, q, added, data, prior_of_earlier=prior
    )


def test_an_update_reports_the_bound_of_appendix_c1_less_its_memory(third_update):
    """What the past gains by ε is no gain of this batch."""
    _, model, earlier, before, info, data = third_update
    added, _, _ = points_of(model)
    gained = log_evidence_of(earlier[2], model.kernel) - before
    wanted = appendix_c1(model, added, earlier, data) - gained
    assert info.free_energy == pytest.approx(wanted, abs=THROUGH_CHOLESKY)


def test_a_point_is_where_the_bound_with_or_without_memory_is_largest(third_update):
    """q(b) is at its optimum, so that it may be held while ε takes a step."""
    remembers, model, earlier, _, _, data = third_update
    added, _, _ = points_of(model)
    vector = model.parameter_vector
    at = vector.value()

    def both(epsilon):
        vector.assign(epsilon)
        bound = appendix_c1(model, added, earlier, data)
        return np.array([bound, bound - log_evidence_of(earlier[2], model.kernel)])

    steps = STEP * np.eye(len(at))
    with_memory, without = np.transpose([(both(at + s) - both(at - s)) / (2 * STEP) for s in steps])
    vector.assign(at)
    mine, other = (with_memory, without) if remembers else (without, with_memory)
    assert np.abs(mine).max() < AT_THE_OPTIMUM < 0.3 * np.abs(other).max()
