"""Whether the state that a file describes can be that of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from streaming_gp import expfam
from streaming_gp.errors import FileFormatError, ImproperError
from streaming_gp.gp import structure
from streaming_gp.gp.process.process import Process
from streaming_gp.gp.state import ModelState
from streaming_gp.inputs import is_positive_integer


def refuse_unsound(source: Any, state: ModelState) -> None:
    """Refuse a state that no model can have come to.

    :param source: Where it comes from, for the error.
    :raises FileFormatError: naming what is wrong with it.
    """
    objection = _objection_to(state)
    if objection is not None:
        raise FileFormatError(f"{source} holds no sound model: {objection}")


def _objection_to(state: ModelState) -> str | None:
    if len(state.dims) != 2 or not all(d is None or is_positive_integer(d) for d in state.dims):
        return f"dims are {state.dims!r:.100}, wanted two positive integers or None"
    q = state.prior.hyperparameters
    objection = None if q is None else _objection_to_posterior(q)
    if objection is not None:
        return f"its prior: {objection}"
    before = Process((), q)
    for name, factor in state.factors.items():
        objection = before.objection_to(factor)
        if objection is not None:
            return f"factor {name!r}: {objection}"
        members = (*before.pseudo_observations, *factor.pseudo_observations)
        before = Process(members[:1], q)
    try:
        _ = state.ledger.posterior
    except ImproperError as error:
        return str(error)
    return None


def _objection_to_posterior(q: Any) -> str | None:
    if not isinstance(q, expfam.Gaussian):
        return f"q(ε) is a {type(q).__name__}, wanted a Gaussian"
    if not all(isinstance(eta, (np.ndarray, np.generic)) for eta in q.natural):
        return "the natural parameters of q(ε) are no arrays"
    objection = q.objection_to(expfam.Factor(type(q), q.natural))
    if objection is not None:
        return objection
    if any(np.asarray(eta).dtype != np.float64 for eta in q.natural):
        return "q(ε) is not in float64"
    return None if type(q).is_proper_natural(*q.natural) else "q(ε) is no distribution"


def refuse_values(modules: structure.Modules, values: Mapping[str, np.ndarray]) -> None:
    """Refuse values that kernel, mean function and likelihood cannot take.

    :raises FileFormatError: naming the first.
    """
    for path, leaf in structure.leaves(modules).items():
        wanted, value = structure.variable(leaf), values.get(path)
        fits = (
            isinstance(value, (np.ndarray, np.generic))
            and value.dtype == wanted.dtype.as_numpy_dtype
            and value.shape == tuple(wanted.shape)
            and bool(np.isfinite(value).all())
        )
        if not fits:
            raise FileFormatError(
                f"the value of {path} does not fit: wanted finite {wanted.dtype.name} of shape "
                f"{list(wanted.shape)}, got {value!r:.60}"
            )
