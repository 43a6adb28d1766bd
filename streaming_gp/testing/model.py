"""The contract of a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import ExponentialFamily
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
