"""What predictions of a trained model need, as plain arrays for :mod:`streaming_gp.runtime`."""

from __future__ import annotations

from typing import Any

import numpy as np
from gpflow import functions as gf
from gpflow import likelihoods as gl
from gpflow.likelihoods.utils import inv_probit

from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.kernel_descriptions import constrained_value, describe, describe_kernel
from streaming_gp.gp.outputs import Predictions
from streaming_gp.gp.predictor import PredictionFunctions, Predictor
from streaming_gp.gp.process.conditioning import GaussianProcess
from streaming_gp.gp.process.covariances import latent_kernels
from streaming_gp.runtime import LIKELIHOODS, Description
from streaming_gp.runtime.exported import Draw, ExportedGP

_MEAN_FUNCTIONS: dict[type, tuple[str, ...]] = {
    gf.Zero: (),
    gf.Constant: ("c",),
    gf.Linear: ("A", "b"),
}


def exported(predictor: Predictions) -> ExportedGP:
    """What predictions need of the process that a predictor holds.

    :param predictor: Its predictions.
    :raises InvalidDataError: for mixed outputs, for conditional pseudo-points, and for a kernel or
        mean function that has no NumPy form.
    """
    if not isinstance(predictor, Predictor):
        raise InvalidDataError(
            "LinearCoregionalization has no NumPy form and cannot be exported; wanted latent "
            "functions that are not mixed"
        )
    if type(predictor.functions.gp) is not GaussianProcess:
        raise InvalidDataError(
            "conditional pseudo-points cannot be exported; wanted private, shared or own ones"
        )
    held = predictor.held.tensors
    factorised = [np.asarray(part) for part in held.conditioned]
    draws = zip(held.draws.numpy(), *factorised, strict=True)
    return ExportedGP(
        Z=held.stack.Z.numpy(),
        precision_factor=held.stack.precision_factor.numpy(),
        draws=tuple(_draw(predictor.functions, *values) for values in draws),
    )


def _draw(
    functions: PredictionFunctions, epsilon: np.ndarray, chol: np.ndarray, white: np.ndarray
) -> Draw:
    gp, D = functions.gp, functions.input_dim
    with functions.epsilon.substituted(epsilon):
        return Draw(
            kernels=tuple(describe_kernel(one, D) for one in latent_kernels(gp.kernel)),
            mean_function=describe_mean_function(gp.mean_function),
            likelihood=describe_likelihood(functions.likelihood),
            chol=chol,
            white=white,
        )


def describe_mean_function(mean_function: gf.Function) -> Description:
    """A mean function at the values that its parameters hold now.

    :raises InvalidDataError: if it has no NumPy form; names it.
    """
    return describe("mean function", mean_function, _MEAN_FUNCTIONS)


def describe_likelihood(likelihood: Any) -> Description:
    """A likelihood at the values that its parameters hold now.

    f can be predicted without one: a likelihood that has no NumPy form has its name alone, which is
    none of those that have one.
    """
    kind = type(likelihood)
    if kind is gl.Gaussian:
        variance, scale = likelihood.variance, likelihood.scale
        if isinstance(variance if scale is None else scale, gf.Function):
            return Description("Gaussian with noise that depends on the input")
        noise = constrained_value(variance) if scale is None else constrained_value(scale) ** 2
        return Description("Gaussian", {"variance": noise})
    if kind is gl.Bernoulli and likelihood.invlink is not inv_probit:
        return Description("Bernoulli with a link of its own")
    is_own = kind.__name__ in LIKELIHOODS and kind is not gl.Bernoulli
    return Description(f"{kind.__name__} of {kind.__module__}" if is_own else kind.__name__)
