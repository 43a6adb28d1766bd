"""What a point ε remembers by (PVI 2018, app. C.1 and eq. 93), and what one says of the other."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

import streaming_gp as sgp
from streaming_gp.gp import Exact, PseudoObservations, Variational
from streaming_gp.gp.bounds import Sites
from streaming_gp.gp.bounds.base import divergence_gained
from streaming_gp.gp.bounds.problem import Earlier
from tests.oracles.problems import (
    COLUMNS,
    NUGGET,
    kernels_of,
    known_points,
    model_of_columns,
    problem_of,
)
from tests.oracles.reference import expected_log_prior, smooth_data
from tests.tolerances import ALGEBRA, THROUGH_CHOLESKY

pytestmark = pytest.mark.usefixtures("eager")
SIZES = 5, 3
"""Of two batches: the second is padded to the size of the first."""


def observed(rng, size, groups):
    R = rng.standard_normal((groups, size, size)) + 2.0 * np.eye(size)
    u = 2.0 + rng.standard_normal((groups, size, COLUMNS // groups))
    Z = rng.uniform(-2.0, 2.0, (size, 2))
    return PseudoObservations(Z, R, np.swapaxes(R, 1, 2) @ u, NUGGET)


def after_two_batches(rng, groups, remember="divergence", takes_over=False):
    """The problem of a third one, whose new points may take over what is known."""
    point = sgp.PointHyperparameters(remember=remember)
    model = model_of_columns(sgp.PrivatePseudoPoints(6), point, groups)
    local = model._compile(2, COLUMNS).local
    known = tuple(observed(rng, size, groups) for size in SIZES)
    problem = problem_of(local, smooth_data(rng, 15, COLUMNS), known[0], rng)
    stacks = local.gp.stack(known, 2), local.gp.stack((), 2)
    if takes_over:
        earlier = Earlier(stacks[0], tf.zeros([], tf.float64))
        problem = problem._replace(stack=stacks[1], earlier=earlier)
    else:
        problem = problem._replace(stack=stacks[0])
    return SimpleNamespace(model=model, local=local, known=known, problem=problem)


def columns_of(at):
    """Of each column alone: its kernel, R, s, and the nugget and places of all points together."""
    Z = np.concatenate([one.Z for one in at.known])
    for column, k in enumerate(kernels_of(at.model)):
        g, c = divmod(column, COLUMNS // at.known[0].pseudo_targets.shape[0])
        R, first = np.zeros((sum(SIZES), sum(SIZES))), SIZES[0]
        R[:first, :first], R[first:, first:] = (one.precision_factor[g] for one in at.known)
        yield k, R, np.concatenate([one.pseudo_targets[g, :, c] for one in at.known]), Z


def frozen(at):
    """q(a) of each column at the ε that the model holds, in dense matrices."""
    found = []
    for k, R, s, Z in columns_of(at):
        prior = np.linalg.inv(k(Z).numpy() + NUGGET * np.eye(len(Z)))
        covariance = np.linalg.inv(prior + R @ R.T)
        mean = covariance @ (prior @ np.full(len(Z), 2.0) + R @ s)
        scale = np.linalg.cholesky(covariance)
        found.append(
            SimpleNamespace(Z=Z, nugget=NUGGET, intercept=mean[None, :, None], scale=scale[None])
        )
    return found


def of_past(at, each):
    """``Σ E_q(a)[log p(a | ε)]`` of all columns at the ε that the model holds."""
    own = zip(kernels_of(at.model), each, strict=True)
    return sum(expected_log_prior(k, at.model.mean_function, one) for k, one in own)


def elsewhere(at, rng):
    return at.local.parameters.value() + 0.3 * rng.standard_normal(at.local.parameters.size)


def at_epsilon(at, function, epsilon):
    with at.local.parameters.substituted(tf.constant(epsilon)):
        return float(function())


def log_evidence(at):
    return at.local.gp.log_normaliser(at.local.gp.condition(at.problem.past))


def gained(at):
    return divergence_gained(at.local, at.problem)


@pytest.mark.parametrize("groups", [1, COLUMNS])
def test_what_is_known_at_the_epsilon_before_is_q_of_all_points_and_padding_says_nothing(
    rng, groups
):
    at = after_two_batches(rng, groups)
    held = at.local.gp.held(at.problem.stack)
    speak = held.nugget < 1.0
    np.testing.assert_array_equal(speak, np.arange(2 * SIZES[0]) < sum(SIZES))
    scale = tf.boolean_mask(held.scale, speak, axis=1).numpy()
    mean = tf.boolean_mask(held.mean, speak, axis=1).numpy()
    for column, one in enumerate(frozen(at)):
        g, c = divmod(column, COLUMNS // groups)
        np.testing.assert_allclose(mean[g, :, c], one.intercept[0, :, 0], rtol=ALGEBRA)
        wanted = one.scale[0] @ one.scale[0].T
        np.testing.assert_allclose(scale[g] @ scale[g].T, wanted, atol=ALGEBRA)


@pytest.mark.parametrize("groups", [1, COLUMNS])
@pytest.mark.parametrize(
    ("bound", "takes_over"), [(Variational(), False), (Variational(), True), (Exact(), False)]
)
def test_a_bound_adds_what_eq_93_says_in_dense_matrices(rng, bound, groups, takes_over):
    at = after_two_batches(rng, groups, "divergence", takes_over)
    forgetful = after_two_batches(rng, groups, False).local
    epsilon = elsewhere(at, rng)
    zeros = Sites(*(tf.zeros([15, COLUMNS], tf.float64) for _ in range(2)))

    def value(local):
        given = tf.constant(epsilon[None]), at.problem.Z_start, at.problem, zeros
        return float(bound.free_energy(local, *given))

    difference = value(at.local) - value(forgetful)
    q = frozen(at)
    before = of_past(at, q)
    at.model.parameter_vector.assign(epsilon)
    assert difference == pytest.approx(of_past(at, q) - before, abs=THROUGH_CHOLESKY)


@pytest.mark.parametrize("takes_over", [False, True], ids=["private", "taken over"])
def test_the_evidence_gains_as_much_as_the_divergence_or_more(rng, takes_over):
    """Jensen's inequality: they touch at the ε before, and there only."""
    at = after_two_batches(rng, 1, takes_over=takes_over)
    start = at.local.parameters.value()
    before = at_epsilon(at, lambda: log_evidence(at), start)
    assert at_epsilon(at, lambda: gained(at), start) == pytest.approx(0.0, abs=ALGEBRA)
    for _ in range(20):
        epsilon = elsewhere(at, rng)
        of_evidence = at_epsilon(at, lambda: log_evidence(at), epsilon) - before
        assert of_evidence > at_epsilon(at, lambda: gained(at), epsilon)


@pytest.mark.parametrize("groups", [1, COLUMNS])
def test_at_the_epsilon_before_both_have_one_gradient(rng, groups):
    at = after_two_batches(rng, groups)
    start = tf.constant(at.local.parameters.value())
    gradients = []
    for function in (log_evidence, gained):
        with tf.GradientTape() as tape:
            tape.watch(start)
            with at.local.parameters.substituted(start):
                value = function(at)
        gradients.append(tape.gradient(value, start))
    assert np.abs(gradients[0]).max() > 0.1
    np.testing.assert_allclose(*gradients, atol=THROUGH_CHOLESKY)


def test_before_any_data_nothing_is_remembered(rng):
    at = after_two_batches(rng, 1)
    at.problem = at.problem._replace(stack=at.local.gp.stack((), 2))
    assert at_epsilon(at, lambda: gained(at), elsewhere(at, rng)) == 0.0


def test_frozen_points_are_held_as_they_are(rng):
    model = model_of_columns(sgp.ConditionalPseudoPoints(6), sgp.PointHyperparameters(), 1)
    gp = model._compile(2, COLUMNS).local.gp
    stack = gp.stack((known_points(rng, 5),), 2)
    assert gp.held(stack) is stack
