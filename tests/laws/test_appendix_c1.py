"""Shared points and a point ε (PVI 2018, app. C.1; Bui et al. 2017a), by either memory or none."""

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp
from tests.oracles.reference import (
    expected_log_prior,
    independent_bound,
    log_evidence_of,
    points_of,
)
from tests.tolerances import THROUGH_CHOLESKY

STEP = 1e-4
AT_THE_OPTIMUM = 0.3
"""Nats for each unit of ε: what SciPy's optimiser leaves of gradients of hundreds."""


@pytest.fixture(
    scope="module",
    params=["evidence", "divergence", pytest.param(False, marks=pytest.mark.slow)],
    ids=["C.1", "eq. 93", "without"],
)
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
    before = of_past(earlier, model)
    info = model.update((X[30:], Y[30:]))
    return request.param, model, earlier, before, info, (X[30:], Y[30:])


def of_past(earlier, model):
    """What the past has to say at the ε that the model holds, by the evidence or by eq. 93."""
    q, _, known = earlier
    return {
        "evidence": log_evidence_of(known, model.kernel),
        "divergence": expected_log_prior(model.kernel, gpflow.functions.Zero(), q),
        False: 0.0,
    }


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
    gained = of_past(earlier, model)["evidence"] - before["evidence"]
    wanted = appendix_c1(model, added, earlier, data) - gained
    assert info.free_energy == pytest.approx(wanted, abs=THROUGH_CHOLESKY)


def test_a_point_is_where_the_bound_with_or_without_memory_is_largest(third_update):
    """q(b) is at its optimum, so that it may be held while ε takes a step."""
    memory, model, earlier, _, _, data = third_update
    added, _, _ = points_of(model)
    vector = model.parameter_vector
    at = vector.value()

    def by_each(epsilon):
        vector.assign(epsilon)
        past = of_past(earlier, model)
        alone = appendix_c1(model, added, earlier, data) - past["evidence"]
        return np.array([alone + term for term in past.values()])

    steps = STEP * np.eye(len(at))
    slopes = np.transpose([(by_each(at + s) - by_each(at - s)) / (2 * STEP) for s in steps])
    vector.assign(at)
    largest = dict(zip(of_past(earlier, model), np.abs(slopes).max(axis=1), strict=True))
    other = largest["evidence" if memory is False else False]
    assert largest[memory] < AT_THE_OPTIMUM < 0.3 * other
