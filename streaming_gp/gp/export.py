"""All that predictions of a trained model need, as plain arrays for :mod:`streaming_gp.runtime`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
from gpflow import functions as gf
from gpflow import kernels as gk
from gpflow import likelihoods as gl
from gpflow.likelihoods.utils import inv_probit

from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.outputs import MixedPosterior
from streaming_gp.gp.prediction import Posterior
from streaming_gp.gp.process.dense import DenseProcess
from streaming_gp.gp.process.nearest import NearestNeighbors, NearestProcess, data_of
from streaming_gp.gp.process.observations import PseudoObservations
from streaming_gp.gp.process.prior import PriorAt, latent_kernels
from streaming_gp.runtime import LIKELIHOODS, Description, predictor
from streaming_gp.runtime.near import Rows as NearRows
from streaming_gp.runtime.predictor import Draw, ExportedGP
from streaming_gp.serialization import PathLike

PROBES = 100
"""Points, and as many middles between points, at which a file is compared with the model."""
_STATIONARY = ("variance", "lengthscales")
_KERNELS: dict[type, tuple[str, ...]] = {
    gk.SquaredExponential: _STATIONARY,
    gk.RationalQuadratic: (*_STATIONARY, "alpha"),
    gk.Exponential: _STATIONARY,
    gk.Matern12: _STATIONARY,
    gk.Matern32: _STATIONARY,
    gk.Matern52: _STATIONARY,
    gk.Cosine: _STATIONARY,
    gk.Periodic: ("period",),
    gk.Linear: ("variance",),
    gk.Polynomial: ("variance", "offset", "degree"),
    gk.Constant: ("variance",),
    gk.White: ("variance",),
    gk.Sum: (),
    gk.Product: (),
}
_MEAN_FUNCTIONS: dict[type, tuple[str, ...]] = {
    gf.Zero: (),
    gf.Constant: ("c",),
    gf.Linear: ("A", "b"),
}


@dataclass(frozen=True)
class Exported:
    """What is in a file, and what it does not keep, at inputs like those of the data.

    :param num_values: The number of values of ε.
    :param nats: How much less log density an observation has in the mean than under the model's own
        values of ε.
    :param error: The largest difference of a mean, and of a deviation, from those that the model
        has at these values of ε, in deviations of f.
    """

    num_values: int
    nats: float
    error: float


def export(
    path: PathLike, posterior: Posterior, nats: float = 0.0, single: bool = False
) -> Exported:
    """Write all that predictions need to a file.

    :param path: The file; one that was there is replaced.
    :param posterior: The posterior of a model.
    :param nats: How much log density an observation may lose for a smaller and faster file, of as
        few values of ε as that allows; zero for all that the model predicts with.
    :param single: Whether observations are in single precision.
    :raises InvalidDataError: for mixed outputs, for conditional pseudo-points, and for a kernel or
        mean function that has no NumPy form.
    :raises OSError: if the file cannot be written; a file that was there stays as it was.
    """
    if isinstance(posterior, MixedPosterior):
        raise InvalidDataError(
            "LinearCoregionalization has no NumPy form and cannot be exported; wanted latent "
            "functions that are not mixed"
        )
    if posterior.dense is None:
        raise InvalidDataError(
            "conditional pseudo-points cannot be exported; wanted private, shared or own ones"
        )
    inputs, lost, error = _probes(posterior), 0.0, 0.0
    if nats > 0.0 and len(inputs):
        posterior, lost = _smallest(posterior, inputs, nats)
    content = _content(posterior)
    if single:
        content = predictor.in_single_precision(content)
        if len(inputs):
            error = _error(posterior, predictor.Predictor(content), inputs)
    predictor.write(path, content)
    return Exported(len(posterior.draws), lost, error)


def _content(posterior: Posterior) -> ExportedGP:
    process, number = posterior.dense, 0
    assert process is not None
    if isinstance(process, NearestProcess):
        each = [one.far or DenseProcess(one.prior) for one in process.each]
        near, number = [one.joined for one in process.each], process.number
    else:
        each, near = [process], [None] * len(posterior.draws)
    wholes = [observed for dense in each for observed in dense.observed]
    inputs: list[np.ndarray] = []
    draws = zip(posterior.draws, wholes, near, strict=True)
    nothing = np.zeros((0, posterior.local.input_dim))
    return ExportedGP(
        Z=np.concatenate([nothing, *(one.Z for one in each[0].members)]),
        draws=tuple(
            _draw(posterior, epsilon, whole, _rows(rows, number, inputs))
            for epsilon, whole, rows in draws
        ),
        near=tuple(inputs),
    )


# ---- what is needed and no more ----


def _probes(posterior: Posterior) -> np.ndarray:
    """Inputs like those of the data [N, D]: some of the points, and the middles between some."""
    members = posterior.dense.members if posterior.dense is not None else ()
    Z = np.concatenate([np.zeros((0, posterior.local.input_dim)), *(one.Z for one in members)])
    if not len(Z):
        return Z
    ones, others, some = np.random.default_rng(0).integers(len(Z), size=(3, PROBES))
    return np.concatenate([Z[some], 0.5 * (Z[ones] + Z[others])])


def _smallest(posterior: Posterior, inputs: np.ndarray, nats: float) -> tuple[Posterior, float]:
    """The same at as few values of ε as lose no more than so many nats, conditioned on near rows
    alone where these lose no more, and what is lost.
    """
    q, process = posterior.process.hyperparameters, posterior.dense
    assert process is not None
    mean, variance = _moments(posterior, inputs)
    number, most = 1, len(posterior.draws)
    while number <= most:
        draws = np.asarray(q.mean)[None] if q is not None and number == 1 else posterior.draws
        prior = PriorAt(posterior.local.prior, draws[:number])
        for nothing in _unconditioned(process, prior):
            dense = nothing.conditioned_on(process.members)
            smaller = replace(posterior, draws=draws[:number], dense=dense)
            other, spread = _moments(smaller, inputs)
            ratio = variance / spread
            lost = 0.5 * (ratio - 1.0 - np.log(ratio) + (mean - other) ** 2 / spread)
            if float(lost.sum(axis=1).mean()) <= nats:
                return smaller, float(lost.sum(axis=1).mean())
        number *= 2
    return posterior, 0.0


def _unconditioned(
    process: DenseProcess | NearestProcess, prior: PriorAt
) -> list[DenseProcess | NearestProcess]:
    """On near rows, where there are more rows than are near, and else as the process is."""
    if isinstance(process, NearestProcess):
        return [NearestProcess(prior, process.number)]
    num_rows = sum(len(one.Z) for one in data_of(process.members))
    near, dense = NearestNeighbors().unconditioned(prior, num_rows), DenseProcess(prior)
    return [near, dense] if isinstance(near, NearestProcess) else [dense]


def _moments(posterior: Posterior, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of observations with Gaussian noise, else of f."""
    is_gaussian = type(posterior.local.likelihood) is gl.Gaussian
    found = posterior.predict_y(inputs) if is_gaussian else posterior.predict_f(inputs)
    mean, variance = (np.asarray(part) for part in found)
    return mean, variance


def _error(posterior: Posterior, exported: predictor.Predictor, inputs: np.ndarray) -> float:
    (mean, variance), (other, spread) = posterior.predict_f(inputs), exported.predict_f(inputs)
    deviation = np.sqrt(np.asarray(variance))
    apart = np.abs(np.asarray(mean) - other), np.abs(deviation - np.sqrt(spread))
    return float(max(np.max(part / deviation) for part in apart))


def _rows(rows: Any, number: int, inputs: list[np.ndarray]) -> NearRows | None:
    """Rows for the file, whose inputs are put down once where several values of ε share them."""
    if rows is None:
        return None
    same = (i for i, one in enumerate(inputs) if np.array_equal(one, rows.Z))
    place = next(same, len(inputs))
    if place == len(inputs):
        inputs.append(rows.Z)
    return NearRows(number, place, rows.targets, rows.noise)


def _blocks(members: Iterable[PseudoObservations]) -> Iterator[np.ndarray]:
    """The blocks of R, of which diagonal ones [G, M] are joined."""
    for is_diagonal, some in groupby(members, lambda one: one.is_diagonal):
        factors = [one.precision_factor for one in some]
        if is_diagonal:
            yield np.concatenate(factors, axis=1)
        else:
            yield from factors


def _draw(
    posterior: Posterior,
    epsilon: np.ndarray,
    whole: Sequence[PseudoObservations],
    near: NearRows | None,
) -> Draw:
    local, gp = posterior.local, posterior.local.gp
    nothing = np.zeros((gp.num_groups, 0, gp.num_latent // gp.num_groups))
    with local.parameters.substituted(tf.constant(epsilon)):
        return Draw(
            kernels=tuple(
                describe_kernel(one, local.input_dim) for one in latent_kernels(local.gp.kernel)
            ),
            mean_function=describe_mean_function(local.gp.mean_function),
            likelihood=describe_likelihood(local.likelihood),
            precision_factor=tuple(_blocks(whole)),
            targets=np.concatenate([nothing, *(one.pseudo_targets for one in whole)], axis=1),
            nugget=np.repeat([one.nugget for one in whole], [len(one.Z) for one in whole]),
            near=near,
        )


def describe_kernel(kernel: gk.Kernel, input_dim: int) -> Description:
    """A single-output kernel at the values that its parameters hold now.

    Within ``ParameterVector.substituted(epsilon)`` these are the values at that ε.

    :param kernel: A kernel of GPflow.
    :param input_dim: The number D of columns of X.
    :raises InvalidDataError: if it is, or is made of, another kernel than those with a NumPy form,
        such as a subclass; names it.
    """
    parts = tuple(describe_kernel(part, input_dim) for part in _parts(kernel))
    described = describe("kernel", kernel, _KERNELS)
    columns = None if parts else _columns(kernel.active_dims, input_dim)
    return Description(described.name, described.parameters, columns, parts)


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


def describe(kind: str, module: gpflow.Module, known: dict[type, tuple[str, ...]]) -> Description:
    """The name of a module's class, and its parameters.

    :param kind: What the module is, for the error.
    :param module: The module.
    :param known: The names of the parameters of every class that there is a NumPy form of.
    :raises InvalidDataError: for another class; names it and those that there are.
    """
    if type(module) not in known:
        raise InvalidDataError(
            f"the {kind} {type(module).__name__} has no NumPy form and cannot be exported; wanted "
            f"one of GPflow's {', '.join(cls.__name__ for cls in known)}"
        )
    names = known[type(module)]
    values = {name: constrained_value(getattr(module, name)) for name in names}
    return Description(type(module).__name__, values)


def constrained_value(parameter: Any) -> np.ndarray:
    """The value that a parameter, variable or number holds now."""
    is_parameter = isinstance(parameter, gpflow.Parameter)
    return np.asarray(tf.convert_to_tensor(parameter) if is_parameter else parameter, np.float64)


def _parts(kernel: gk.Kernel) -> Iterable[gk.Kernel]:
    if isinstance(kernel, gk.Periodic):
        return [kernel.base_kernel]
    return kernel.kernels if isinstance(kernel, (gk.Sum, gk.Product)) else []


def _columns(active_dims: Any, input_dim: int) -> np.ndarray | None:
    """The columns by number, or None for all of them."""
    if not isinstance(active_dims, slice):
        return np.asarray(active_dims)
    columns = np.arange(input_dim)[active_dims]
    return None if np.array_equal(columns, np.arange(input_dim)) else columns
