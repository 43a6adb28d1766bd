"""The contracts of families, and of models."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from streaming_gp import serialization
from streaming_gp.errors import ImproperError, InvalidDataError
from streaming_gp.expfam import ExponentialFamily, Factor
from streaming_gp.pvi.guards import Checks
from streaming_gp.pvi.ledger import Posterior
from streaming_gp.pvi.model import (
    ConjugateModel,
    Data,
    LikelihoodModel,
    Model,
    SampledModel,
    TiltedModel,
)
from streaming_gp.testing.assertions import (
    copies,
    ensure,
    ensure_close,
    ensure_refused,
    ensure_same,
)

ALGEBRA, INVERSION = 1e-9, 1e-5
NUM_SAMPLES, STANDARD_ERRORS = 20_000, 6.0


# ---- families ----


def check_family(family: type[ExponentialFamily], members: Sequence[ExponentialFamily]) -> None:
    """Check that a family obeys the laws that the ledger and the local updates rely on.

    Products, quotients and powers; normalisation; divergences; draws; parameters of every kind and
    back; errors for improper products; files, copies and pickles.

    :param family: The family.
    :param members: At least two different members of one shape, of 64-bit floating-point numbers.
    :raises AssertionError: on the first law that does not hold.
    """
    ensure(len(members) > 1, "at least two members are given to check a family by")
    for member in members:
        ensure(isinstance(member, family), f"every member is a {family.__name__}")
        ensure(member.is_proper, "members are proper")
        _check_parameters(member)
        _check_moments(member)
        _check_refusals(member)
    for p, q in permutations(members[:2]):
        ensure(p.form == q.form, "members of one shape have one form")
        _check_products(p, q)
        _check_divergence(p, q)
    for member in members:
        _check_copies(member)


def _check_products(p: ExponentialFamily, q: ExponentialFamily) -> None:
    a, b = p.as_factor(), q.as_factor()
    ratio = q / p
    ensure_same((a * b) / b, a, "(a × b) / b is a", ALGEBRA)
    ensure_same(a**2.0, a * a, "a² is a × a", ALGEBRA)
    ensure_same(a**0.0 * b, b, "a⁰ is one", ALGEBRA)
    ensure_close((a**0.3).log_scale, 0.3 * a.log_scale, "powers keep the constant", ALGEBRA)
    ensure_same(p.times([ratio]), q, "p × (q / p) is q", ALGEBRA)
    ensure_same(p.times([ratio, b]).exchanged([b], []), q, "what is divided out is gone", ALGEBRA)
    ensure_same(q.times([a]).cavity(a), b, "a cavity is the posterior without the factor", ALGEBRA)
    points = p.sample(5, 0)
    both = a.log_value(points) + b.log_value(points)
    ensure_close((a * b).log_value(points), both, "products multiply values", ALGEBRA)


def _check_divergence(p: ExponentialFamily, q: ExponentialFamily) -> None:
    divergence = float(p.kl_divergence(q))
    ensure_close(p.kl_divergence(p), 0.0, "KL(p ‖ p) is zero", ALGEBRA)
    ensure(divergence > 0.0, "KL(p ‖ q) is positive where p and q differ")
    points = p.sample(NUM_SAMPLES, 1)
    log_ratios = np.asarray(p.log_prob(points) - q.log_prob(points))
    _ensure_mean(log_ratios, divergence, "KL(p ‖ q) is the mean of log p − log q over draws from p")


def _check_parameters(member: ExponentialFamily) -> None:
    family = type(member)
    ensure_close(member.as_factor().log_integral(), 0.0, "a density integrates to one", ALGEBRA)
    twin = family.from_mean_parameters(*member.mean_parameters())
    ensure_same(twin, member, "mean parameters determine a member", INVERSION)
    numbers = member.unconstrained()
    twin = family.from_unconstrained(numbers)
    ensure_same(twin, member, "unconstrained numbers determine a member", INVERSION)
    other = family.from_unconstrained(numbers + tf.ones_like(numbers))
    ensure(other.is_proper, "any unconstrained numbers make a proper member")
    draws = [np.asarray(member.sample(7, seed)) for seed in (0, 0, 1)]
    ensure(len(draws[0]) == 7, "sample gives as many draws as it is asked for")
    ensure(np.array_equal(draws[0], draws[1]), "a seed determines the draws")
    ensure(not np.array_equal(draws[0], draws[2]), "another seed gives other draws")


def _check_moments(member: ExponentialFamily) -> None:
    """Mean parameters are ``∂A/∂η``, and expectations of the statistics."""
    by_gradient = ExponentialFamily.mean_parameters(member)
    draws = member.sufficient_statistics(member.sample(NUM_SAMPLES, 2))
    for mean, gradient, drawn in zip(member.mean_parameters(), by_gradient, draws, strict=True):
        ensure_close(mean, gradient, "mean parameters are the log-partition's slope", INVERSION)
        sentence = "mean parameters are the statistics' means over draws"
        _ensure_mean(np.asarray(drawn), np.asarray(mean), sentence)


def _ensure_mean(draws: np.ndarray, wanted: np.ndarray | float, sentence: str) -> None:
    error = STANDARD_ERRORS * np.std(draws, axis=0) / np.sqrt(len(draws))
    ensure(np.all(np.abs(np.mean(draws, axis=0) - wanted) <= error + ALGEBRA), sentence)


def _check_refusals(member: ExponentialFamily) -> None:
    try:
        member.times([member.as_factor() ** -2.0])
    except ImproperError:
        pass
    else:
        ensure(False, "a product without an integral raises ImproperError")
    own = member.as_factor().as_arrays()
    ensure(member.objection_to(own) is None, "a factor of the same form is accepted")
    nan, ones = (
        tuple(np.full(np.shape(eta), value) for eta in own.natural) for value in (np.nan, 1)
    )
    bad = {
        "what is no factor": object(),
        "a factor that is not finite": own * Factor(own.family, nan),
        "a factor of other shapes": Factor(own.family, tuple(eta[None] for eta in own.natural)),
        "a factor of integers": Factor(own.family, ones),
    }
    for what, factor in bad.items():
        ensure(isinstance(member.objection_to(factor), str), f"{what} is objected to in words")


def _check_copies(member: ExponentialFamily) -> None:
    name = type(member).__name__
    for twin in copies(member, f"a {name}"):
        ensure_same(twin, member, f"a copy of a {name} is the same")
    arrays, factor = member.as_arrays(), member.as_factor().as_arrays()
    ensure(arrays.num_bytes == factor.num_bytes > 0, "num_bytes is the size of the parameters")
    classes = serialization.registered_classes()
    ensure(name in classes, f"{name} is registered by streaming_gp.serialization.storable")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "family.npz"
        serialization.write(path, "check", (arrays, factor), classes)
        twin, twin_factor = serialization.read(path, "check", classes)
    ensure_same(twin, arrays, "a file gives back the same member, bit by bit")
    ensure_same(twin_factor, factor, "a file gives back the same factor, bit by bit")


# ---- models ----

SEED = np.array([3, 5], np.int32)
ROUNDING = 1e-5  # of 32-bit floating-point numbers, summed in another order


def check_model(model: Model, data: tuple[Any, Any]) -> None:
    """Check that a model does what clients and local updates ask of it.

    Prior and start; data that it takes and refuses; the expected log-likelihood, its seed and its
    gradient; copies and pickles; and each further capability that it has
    (``streaming_gp.pvi.model``).

    :param model: The model.
    :param data: Inputs X [N, D] and observations Y [N, P] that it can take, N > 2; X may be None
        for a model without inputs.
    :raises AssertionError: on the first thing that does not hold.
    """
    ensure(isinstance(model, Model), "a model has all methods of streaming_gp.pvi.Model")
    _check_prior(model)
    _check_data(model, *data)
    arrays = model.as_data(*data)
    twins: list[Any] = copies(model, f"a {type(model).__name__}")
    if isinstance(model, LikelihoodModel):
        value = _check_expected_log_likelihood(model, arrays)
        for twin in twins:
            again = twin.expected_log_likelihood(model.initial(0), *arrays, SEED)
            ensure_close(again, value, "a copy of the model gives the same likelihood", ROUNDING)
    if isinstance(model, ConjugateModel):
        _check_conjugacy(model, model.prior(), arrays)
    if isinstance(model, SampledModel):
        values = np.asarray(model.log_likelihood(model.prior().sample(4, 0), *arrays))
        ensure(values.shape == (4,), "log_likelihood gives one number for each draw")
        ensure(np.isfinite(values).all(), "log_likelihood is finite for draws from the prior")
    if isinstance(model, TiltedModel):
        X, Y = (tf.convert_to_tensor(array) for array in arrays)
        value = model.log_tilted(model.initial(0), X[0], Y[0], 1.0)
        ensure(np.shape(value) == (), "log_tilted is a scalar")
        ensure(np.isfinite(value), "log_tilted is finite where a fit starts")
    checks = getattr(model, "checks", None)
    ensure(checks is None or isinstance(checks, Checks), "checks are Checks")


def _check_prior(model: Model) -> None:
    prior, start = model.prior(), model.initial(0)
    ensure(isinstance(prior, Posterior), "the prior has all methods of streaming_gp.pvi.Posterior")
    ensure(start.form == prior.form, "a fit starts at a member of the prior's family and shape")
    if not isinstance(prior, ExponentialFamily):
        return
    ensure(prior.is_proper, "the prior is proper")
    ensure_same(model.prior(), prior, "the prior is the same each time")
    ensure(prior.objection_to(prior.as_factor()) is None, "the prior accepts its own factors")
    ensure_same(model.initial(0), start, "a seed determines the start")


def _check_data(model: Model, X: Any, Y: Any) -> None:
    arrays = model.as_data(X, Y)
    ensure(len(arrays) == 2, "as_data gives X and Y")
    for name, array in zip("XY", arrays, strict=True):
        ensure(isinstance(array, np.ndarray), f"{name} is a NumPy array")
        ensure(array.ndim == 2 and len(array) == len(Y), f"{name} has a row for each datum")
        ensure(array.dtype.kind == "f", f"{name} holds floating-point numbers")
    for once, twice in zip(arrays, model.as_data(*arrays), strict=True):
        ensure(np.array_equal(once, twice), "data that were taken are taken as they are")
    Y = np.asarray(Y)
    ensure_refused(lambda: model.as_data(X, np.full(np.shape(Y), np.nan)), "Y of NaN")
    if X is not None:
        X = np.asarray(X)
        ensure_refused(lambda: model.as_data(X, Y[:-1]), "Y with fewer rows than X")
        ensure_refused(lambda: model.as_data(X[:0], Y[:0]), "a shard without data")
        ensure_refused(lambda: model.as_data(np.full(np.shape(X), np.inf), Y), "infinite X")


def _check_expected_log_likelihood(model: LikelihoodModel, data: Data) -> Any:
    q = model.initial(0)
    value = model.expected_log_likelihood(q, *data, SEED)
    ensure(np.shape(value) == (), "the expected log-likelihood is a scalar")
    ensure(np.isfinite(value), "the expected log-likelihood is finite where a fit starts")
    again = model.expected_log_likelihood(q, *data, SEED)
    ensure(float(value) == float(again), "a seed determines the expected log-likelihood")
    natural = tuple(tf.convert_to_tensor(eta) for eta in q.natural)
    with tf.GradientTape() as tape:
        tape.watch(natural)
        watched = model.expected_log_likelihood(type(q)(*natural), *data, SEED)
    for gradient in tape.gradient(watched, natural):
        ensure(gradient is not None, "the expected log-likelihood is differentiable in q")
        ensure(np.isfinite(gradient).all(), "the gradient is finite where a fit starts")
    return value


def _check_conjugacy(model: ConjugateModel, prior: Any, data: Data) -> None:
    X, Y = data
    try:
        whole = model.likelihood_factor(X, Y)
    except InvalidDataError:  # conjugate under other settings only
        return
    ensure(prior.objection_to(whole.as_arrays()) is None, "the prior accepts likelihood_factor")
    parts = model.likelihood_factor(X[:1], Y[:1]) * model.likelihood_factor(X[1:], Y[1:])
    ensure_same(parts, whole, "likelihood_factor multiplies over data", ROUNDING)
