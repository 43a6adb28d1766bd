"""The model that an estimator makes at its first batch: its scale, defaults and labels."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
from scipy.special import log_ndtr

from streaming_gp.errors import InvalidDataError, PoorFitWarning
from streaming_gp.gp import (
    DataObservations,
    HyperparameterStrategy,
    LearningSchedule,
    LocalOptimiser,
    PseudoObservations,
    PseudoPointStrategy,
    StreamingGP,
)
from streaming_gp.gp.process.nearest import Conditioning
from streaming_gp.inputs import require_flag


@dataclass(eq=False, repr=False)
class Estimator:
    """The settings that all estimators have, and the model of scaled inputs that they make."""

    kernel: gpflow.kernels.Kernel | str | None = None
    _: KW_ONLY
    pseudo_points: PseudoPointStrategy | None = None
    hyperparameters: HyperparameterStrategy | None = None
    optimiser: LocalOptimiser | None = None
    learning: LearningSchedule | None = None
    conditioning: Conditioning | None = None
    scale: bool = True

    def _new_model(
        self, num_inputs: int, likelihood: gpflow.likelihoods.Likelihood, **options: Any
    ) -> StreamingGP:
        """A model that has seen nothing yet.

        :param options: Further arguments of the model, and what takes the place of settings that
            the user has not given.
        """
        require_flag("scale", self.scale)
        if self.kernel is None or isinstance(self.kernel, str):
            kernel = default_kernel(num_inputs, self.kernel or "squared-exponential")
        else:
            kernel = copy.deepcopy(self.kernel)
        if isinstance(getattr(likelihood, "variance", None), TargetNoise):
            see_columns(kernel, num_inputs)
        settings = "pseudo_points", "hyperparameters", "optimiser", "learning", "conditioning"
        given = {name: getattr(self, name) for name in settings}
        options |= {name: value for name, value in given.items() if value is not None}
        return StreamingGP(kernel, likelihood, **options)


@dataclass(frozen=True, eq=False)
class Scaling:
    """An affine map of each column, to mean 0 and standard deviation 1 of the rows it was made of.

    :param mean: The value that becomes 0, [D].
    :param unit: The distance from it that becomes 1, [D].
    :param is_open: Whether there was one value only, which says of no unit, [D].
    """

    mean: np.ndarray
    unit: np.ndarray
    is_open: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray, scale: bool = True) -> Scaling:
        """The map that standardises these columns.

        NaN counts as no value. A column without values, or with one value only, keeps its unit,
        until :meth:`with_units_of` others.

        :param values: Columns [N, D].
        :param scale: Whether to scale; if not, the map changes nothing.
        """
        if not scale:
            nothing = np.zeros(values.shape[1])
            return cls(nothing, nothing + 1.0, nothing > 0.0)
        has_value = np.isfinite(values)
        number = np.maximum(has_value.sum(axis=0), 1)
        mean = np.where(has_value, values, 0.0).sum(axis=0) / number
        with np.errstate(over="ignore", invalid="ignore"):
            squares = np.where(has_value, values - mean, 0.0) ** 2
        if not np.isfinite(squares.sum()):
            raise InvalidDataError("columns are too large for a scale: their squares overflow")
        spread = np.sqrt(squares.sum(axis=0) / number)
        is_constant = spread <= 1e-12 * np.abs(mean)
        return cls(mean, np.where(is_constant, 1.0, spread), is_constant)

    def with_units_of(self, values: np.ndarray) -> Scaling:
        """The map in which columns that had one value only have the unit of that and of these, if
        they differ. All that was mapped so far stays where it is: there it is at 0.

        :param values: Further rows of the columns [N, D].
        """
        if not self.is_open.any():
            return self
        both = Scaling.of(np.concatenate([self.mean[None], values]))
        unit = np.where(self.is_open, both.unit, self.unit)
        return Scaling(self.mean, unit, self.is_open & both.is_open)

    def filled(self, values: np.ndarray) -> np.ndarray:
        """Columns [N, D] with the mean where there is no value."""
        return np.where(np.isnan(values), self.mean, values)

    def scaled(self, values: np.ndarray) -> np.ndarray:
        """Columns [..., D] in these units."""
        return (values - self.mean) / self.unit

    def original(self, values: np.ndarray) -> np.ndarray:
        """Scaled columns [..., D] in their own units again."""
        return self.mean + self.unit * values

    def to_record(self) -> dict[str, list[float]]:
        """As JSON takes it, without loss."""
        return {name: values.tolist() for name, values in vars(self).items()}

    @classmethod
    def from_record(cls, record: Mapping[str, Sequence[float]]) -> Scaling:
        """The one whose :meth:`to_record` this is."""
        mean, unit = np.array(record["mean"]), np.array(record["unit"])
        return cls(mean, unit, np.array(record.get("is_open", np.zeros(len(unit))), bool))


def warn_if_alike(what: str, values: np.ndarray, scale: bool) -> None:
    """Warn where a first batch fixes a scale, and no column of it [N, C] says anything of one.

    :param what: The name of the values.
    :param scale: Whether there is a scale.
    """
    if scale and (values == values[0]).all():
        warnings.warn(
            f"{what} of the first batch are all alike, and so they fix no scale for the stream: "
            "wanted a typical first batch, or scale=False with data in units of their spread",
            PoorFitWarning,
            stacklevel=3,  # where the batch was given
        )


MOST_FEW = 1000
"""So many rows are few enough to be learned from again."""


def few_rows(model: StreamingGP) -> tuple[np.ndarray, np.ndarray] | None:
    """Inputs and targets of all data that a model has learned from, where these are few and it has
    a point at every input; else None.
    """
    members = model.posterior_process.pseudo_observations
    data = [one for one in members if isinstance(one, DataObservations)]
    if not data or len(data) < len(members) or sum(len(one.Z) for one in data) > MOST_FEW:
        return None
    return np.concatenate([one.Z for one in data]), np.concatenate([one.Y for one in data])


# ---- defaults ----


KERNELS: dict[str, type[gpflow.kernels.IsotropicStationary]] = {
    "squared-exponential": gpflow.kernels.SquaredExponential,
    "matern32": gpflow.kernels.Matern32,
    "matern52": gpflow.kernels.Matern52,
}
"""Kernels by the names that estimators and the command line know them by."""

MOST_LENGTHSCALES = 100
"""More inputs than these share one lengthscale, as few rows say anything of each."""


def default_kernel(num_inputs: int, name: str = "squared-exponential") -> gpflow.kernels.Kernel:
    """A kernel over standardised inputs, one lengthscale for each, or one for all if they are many.

    They start at ``√D 10^(−1/D)``: the edge of one of ten like cells that share the spread of the
    data. In one dimension that is a tenth of a standard deviation; in many it nears √D, the length
    of a typical input. Pseudo-points that are few are placed by this start, so that too long a one
    leaves a rough function with too few.

    :param num_inputs: The number of inputs D.
    :param name: The name of the kernel.
    :raises InvalidDataError: if there is no kernel of this name.
    """
    if name not in KERNELS:
        raise InvalidDataError(f"kernel must be one of {list(KERNELS)}, got {name!r:.100}")
    start = np.sqrt(num_inputs) * 10.0 ** (-1.0 / num_inputs)
    each = np.full(num_inputs, start) if num_inputs <= MOST_LENGTHSCALES else start
    with logarithmic_parameters():
        return KERNELS[name](lengthscales=each)


class TargetNoise(gpflow.functions.Function):
    """Variance [N, P] of Gaussian noise that differs from target to target, and by row.

    :param num_targets: The number P of targets.
    :param is_weighted: Whether the last column of the inputs has the weight of each row, by which
        the variance is divided.
    """

    def __init__(self, num_targets: int, is_weighted: bool) -> None:
        super().__init__()
        transform = gpflow.utilities.positive(base="exp")
        self.variance = gpflow.Parameter(np.full(num_targets, 0.1), transform=transform)
        self.is_weighted = is_weighted

    def __call__(self, X: tf.Tensor) -> tf.Tensor:
        weight = X[..., -1:] if self.is_weighted else tf.ones_like(X[..., :1])
        return self.variance / weight


def see_columns(kernel: gpflow.kernels.Kernel, number: int) -> None:
    """Let every part of a kernel see the first columns only, of those that it sees."""
    for part in kernel.submodules:
        if isinstance(part, gpflow.kernels.Kernel) and not hasattr(part, "kernels"):
            part.active_dims = np.arange(number)[part.active_dims]
    if not hasattr(kernel, "kernels"):
        kernel.active_dims = np.arange(number)[kernel.active_dims]


def default_likelihood(
    num_classes: int | None = None,
    least_variance: float | None = None,
    num_targets: int = 1,
    is_weighted: bool = False,
) -> gpflow.likelihoods.Likelihood:
    """Gaussian noise, or a probit for two classes, or a softmax for several.

    :param num_classes: The number of classes; None for regression.
    :param least_variance: A lower bound of the noise's variance.
    :param num_targets: The number of targets, each with noise of its own.
    :param is_weighted: As in :class:`TargetNoise`.
    """
    if num_targets > 1 or is_weighted:
        return gpflow.likelihoods.Gaussian(TargetNoise(num_targets, is_weighted))
    if num_classes is None:
        with logarithmic_parameters():
            return gpflow.likelihoods.Gaussian(0.1, variance_lower_bound=least_variance)
    if num_classes > 2:
        return gpflow.likelihoods.Softmax(num_classes)
    return gpflow.likelihoods.Bernoulli()


def logarithmic_parameters() -> AbstractContextManager[None]:
    """Positive GPflow parameters that are made within have an exponential transform.

    GPflow's default, TFP's softplus, registers a gradient with TensorFlow whenever it is traced,
    and that keeps the graphs of every model ever fitted: too many in a cross-validation.
    """
    return gpflow.config.as_context(replace(gpflow.config.config(), positive_bijector="exp"))


# ---- labels ----


def class_number(label: Any, classes: Sequence[Any]) -> int:
    """The number of a label among all."""
    try:
        return classes.index(label)
    except ValueError:
        raise InvalidDataError(
            f"the label {label!r} is none of the classes {list(classes)}"
        ) from None


def class_probabilities(mean: np.ndarray) -> np.ndarray:
    """Probabilities [N, C] of all classes from a likelihood's mean.

    :param mean: The mean of a softmax [N, C], or of a Bernoulli variable [N, 1].
    """
    both = np.hstack([1.0 - mean, mean]) if mean.shape[1] == 1 else mean
    return both / both.sum(axis=1, keepdims=True)


NODES, WIDTH, ROWS = 48, 6.0, 200
"""Of the integral over the largest value: nodes, deviations on either side, rows at a time."""


def largest_probabilities(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """The probability that each of C independent Gaussians is the largest: [N, C].

    ``∫ N(t; m_c, v_c) Π_{j ≠ c} Φ((t − m_j) / √v_j) dt``, by the trapezoidal rule.

    :param mean: Means [N, C].
    :param variance: Variances [N, C].
    """
    parts = []
    for start in range(0, len(mean), ROWS):
        m, deviation = mean[start : start + ROWS], np.sqrt(variance[start : start + ROWS])
        width = WIDTH * deviation.max(axis=1, keepdims=True)
        t = m.max(axis=1, keepdims=True) + width * np.linspace(-1.0, 1.0, NODES)
        z = (t[:, :, None] - m[:, None]) / deviation[:, None]  # [N, K, C]
        log_below = log_ndtr(z)
        log_others = log_below.sum(axis=2, keepdims=True) - log_below
        p = np.exp(log_others - 0.5 * z**2).sum(axis=1) / deviation
        parts.append(p / p.sum(axis=1, keepdims=True))
    return np.concatenate(parts)


def with_columns(model: StreamingGP, places: np.ndarray, number: int) -> StreamingGP:
    """A model whose observations have further columns, which were zero in all rows so far.

    The targets of a Gaussian process without a mean are linear in the observations, so that this
    is the model that had known of them, at fixed hyperparameters.

    :param places: The places of the present columns among all.
    :param number: The number of all columns.
    """
    state = model.state

    def extended(one: Any) -> Any:
        if isinstance(one, DataObservations) and one.is_gaussian and one.num_groups == 1:
            Y = np.zeros((len(one.Y), number))
            Y[:, places] = one.Y
            return replace(one, Y=Y)
        if not isinstance(one, PseudoObservations) or len(one.precision_factor) != 1:
            raise InvalidDataError(
                "classes that come later want factors that stand alone and one kernel for all; "
                "name all classes in the first partial_fit"
            )
        targets = np.zeros((*one.pseudo_targets.shape[:2], number))
        targets[..., places] = one.pseudo_targets
        return replace(one, pseudo_targets=targets)

    factors = {
        name: replace(factor, pseudo_observations=tuple(map(extended, factor.pseudo_observations)))
        for name, factor in state.factors.items()
    }
    state = replace(state, factors=factors, dims=(state.dims[0], number))
    parts = (copy.deepcopy(one) for one in (model.kernel, model.likelihood))
    return StreamingGP.from_state(state, *parts)
