"""Gaussian processes as models of clients: their update rule, ledgers from elsewhere, one ε of all.

The free energy of a Gaussian process by a point ε that all clients share has a term of each client,
and one of the prior. With ``q(f | ε) = p(f | ε) Π_m t_m(u_m) / 𝒵(ε)`` and factors that are held, it
is

    ``F(ε) = Σ_m E_q(f|ε)[log p(y_m | f, ε)] − KL(q(f | ε) ‖ p(f | ε))``,

and its gradient is a sum over clients and the prior, as in PVI 2018, eq. 5. With L and w the
factorised stack of all pseudo-observations (``conditioning``), ``−KL = log 𝒵 − E_q[log Π t]`` is
``−C log det L − ½ ‖w‖² + ½ (‖L⁻ᵀ w‖² + C (R − ‖L⁻¹‖²))``. Where parameters have GPflow priors, the
prior's term has their log density as well (MAP).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
import tensorflow as tf

from streaming_gp.errors import InvalidDataError, PrivacyWarning
from streaming_gp.gp.fit import sites
from streaming_gp.gp.fit.fitted import Fitted
from streaming_gp.gp.fit.local_model import LocalModel
from streaming_gp.gp.fit.projection import GPLedger
from streaming_gp.gp.process.graphs import spec
from streaming_gp.gp.process.observations import DataObservations, PseudoObservations
from streaming_gp.gp.process.process import Process, PseudoPointFactor, observations_of
from streaming_gp.gp.process.tensors import Stack
from streaming_gp.inputs import as_name, require_flag
from streaming_gp.numerics.linalg import solve_lower
from streaming_gp.pvi.ledger import Ledger
from streaming_gp.pvi.model import SecondOrder
from streaming_gp.pvi.task import LocalResult, LocalTask
from streaming_gp.validation import Data

LARGEST_CERTAINTY = 1e12
"""So many prior precisions for each data point are more than numbers of 64 bits can tell."""
LARGEST_DISTANCE = 1e6
"""The prior's standard deviations by which pseudo-observations may pull, each alone."""
STEP = 1e-4
"""Of differences of gradients, in numbers ε of the size of one: errors are of its square."""


@runtime_checkable
class FitsFactors(Protocol):
    """A model that fits data under a cavity that someone else holds."""

    def fit_factor(
        self, data: Any, cavity: Process, own: PseudoPointFactor | None, hold: bool = True
    ) -> Fitted:
        """See :meth:`streaming_gp.StreamingGP.fit_factor`."""
        ...


@dataclass(frozen=True)
class GPUpdate:
    """The update rule of clients whose model is a :class:`~streaming_gp.StreamingGP`.

    A client fits its shard under its cavity, as :meth:`StreamingGP.update` fits a batch, by the
    model's own strategies. Its pseudo-points stay where its first visit put them, so that damped
    factors are on one set of points; and each visit averages over ε with the same random numbers,
    so that rounds have a fixed point, whatever the schedule. With a point at every input, which is
    the model's default, an answer holds the data, and a
    :class:`~streaming_gp.errors.PrivacyWarning` says so: ``PrivatePseudoPoints(10)`` sends a
    summary.

    ``clients = pvi.make_clients(gp, shards, update=GPUpdate())``,
    ``server = pvi.Server(gp.prior(), clients)``, and after the rounds ``gp.adopt(server.ledger)``.

    :param keep_points: Whether points stay. If not, each visit moves them on, as
        :meth:`StreamingGP.revisit` does: for schedules in which answers enter in full, such as
        ``pvi.Arrivals`` and ``pvi.Sequential``. A damped factor would keep old and new points.
    :raises InvalidDataError: if that is neither true nor false.

    >>> server = sgp.pvi.run(model, shards, rounds=1, update=sgp.GPUpdate())
    >>> model.adopt(server.ledger)
    >>> [*model.factors]
    ['c0', 'c1']
    """

    keep_points: bool = True

    def __post_init__(self) -> None:
        require_flag("keep_points", self.keep_points)

    def __call__(self, task: LocalTask) -> LocalResult:
        """Fit the client's data under its cavity.

        :raises InvalidDataError: if the model is none of Gaussian-process factors, or its
            strategies make factors that rest on one another, or a point of ε.
        """
        model = task.model
        if not isinstance(model, FitsFactors):
            raise InvalidDataError(
                f"GPUpdate is for clients of a StreamingGP, got a {type(model).__name__}"
            )
        fitted = model.fit_factor(task.data, task.cavity, task.own, self.keep_points)
        if any(isinstance(one, DataObservations) for one in fitted.factor.pseudo_observations):
            warnings.warn(
                "the model has a point at every input, so that a client's answer holds its inputs "
                "and targets: where data may not move, give the model few points, such as "
                "pseudo_points=PrivatePseudoPoints(10)",
                PrivacyWarning,
                stacklevel=2,
            )
        diagnostics = {
            "nugget": fitted.nugget,
            "clipped_sites": float(fitted.clipped_sites),
            "unexplained": fitted.unexplained,
        }
        return LocalResult(
            fitted.factor, fitted.free_energy, fitted.iterations, diagnostics=diagnostics
        )


ROUNDING = 1e-9
"""By which a sum of weights may be above the number of data."""
MOST_COLUMNS = 1000
"""Of inputs, where the model has not seen any yet."""


def largest_factor(prior: Process, points: int, num_latent_gps: int, input_dim: int | None) -> int:
    """The bytes of a factor of so many pseudo-points.

    :param input_dim: The number of input columns, if it is known.
    """
    columns = MOST_COLUMNS if input_dim is None else input_dim
    return 8 * points * (columns + num_latent_gps * (points + 1)) + prior.num_bytes


def objection_to_size(factor: PseudoPointFactor, kernel: Any, num_data: int) -> str | None:
    """Why these pseudo-observations are of no data, or None.

    Precisions are measured in those of the prior and pulls in its standard deviations, by the
    kernel as it is now; both may be wrong by orders of magnitude without harm.
    """
    kernels = getattr(kernel, "kernels", None) or [getattr(kernel, "kernel", kernel)]
    for one in factor.pseudo_observations:
        if isinstance(one, DataObservations):
            if not one.weights.sum() <= num_data * (1.0 + ROUNDING):
                return f"it has the weight of {one.weights.sum():.3g} data, at most {num_data}"
            if one.is_gaussian:
                continue
            one = one.observed(None)
        if not isinstance(one, PseudoObservations) or not len(one.Z):
            continue
        variance = float(np.mean([np.asarray(each.K_diag(one.Z)) for each in kernels]))
        with np.errstate(over="ignore", invalid="ignore"):
            own = np.square(one.precision_factor)
            own = own if one.is_diagonal else np.sum(own, axis=-1)
            pull = np.abs(one.precision_mean).max(axis=-1, initial=0.0)
            certainty = float(np.max(own)) * variance / num_data
            distance = float(np.max(pull / np.maximum(own, 1.0 / variance))) / np.sqrt(variance)
        if not certainty <= LARGEST_CERTAINTY:
            return (
                f"it holds {certainty:.3g} prior precisions for each data point, at most "
                f"{LARGEST_CERTAINTY:g}"
            )
        if not distance <= LARGEST_DISTANCE:
            return (
                f"it pulls by {distance:.3g} of the prior's standard deviations, at most "
                f"{LARGEST_DISTANCE:g}"
            )
    return None


def refuse_foreign(ledger: GPLedger, prior: Process) -> None:
    """Refuse a ledger that is none of a model with this prior."""
    if not isinstance(ledger, Ledger):
        raise InvalidDataError(f"wanted a ledger, got a {type(ledger).__name__}")
    for name in ledger.factors:
        as_name("the name of a factor", name)
    if ledger.prior.form != prior.form:
        raise InvalidDataError(
            f"wanted a ledger of a {prior.form}, got one of a {ledger.prior.form}"
        )
    for name, factor in ledger.factors.items():
        objection = prior.objection_to(factor)
        if objection is not None:
            raise InvalidDataError(f"factor {name!r} is none of this model: {objection}")


def refuse_sizes(process: Process, sizes: tuple[int, ...]) -> None:
    """Refuse a process with other input columns, groups or columns of a group."""
    others = {one.sizes for one in process.pseudo_observations} - {sizes}
    if others:
        raise InvalidDataError(
            "wanted pseudo-observations with input columns, groups and columns of a group "
            f"{sizes}, got {sorted(others)}"
        )


def refuse_variational(q: Process) -> None:
    """Refuse factors that speak of ε where all clients share a point."""
    if q.hyperparameters is not None:
        raise InvalidDataError(
            "q(ε) is learned by the factors of clients; a point that all share wants a model with "
            "FixedHyperparameters()"
        )


class HyperparameterTerms:
    """These terms to second order about the ε that a model's parameters hold.

    :param local: The model.
    """

    def __init__(self, local: LocalModel) -> None:
        self._local = local
        epsilon, stack = spec(local.parameters.size), local.gp.stack_spec(local.input_dim)
        X, Y = spec(None, local.input_dim), spec(None, local.output_dim)
        self._data_term = local.graphs.compiled(
            self._with_gradient(self._expected), epsilon, stack, X, Y, of="data"
        )
        self._prior_term = local.graphs.compiled(
            self._with_gradient(self._of_the_prior), epsilon, stack, of="prior"
        )

    def of_data(self, q: Process, data: Data) -> SecondOrder:
        """``Σ_n E_q(f|ε)[log p(y_n | f_n, ε)]`` of X [N, D] and Y [N, P]."""
        return self._at_present(self._data_term, q, *data)

    def of_prior(self, q: Process) -> SecondOrder:
        """``−KL(q(f | ε) ‖ p(f | ε)) + log p(ε)``."""
        return self._at_present(self._prior_term, q)

    def _at_present(self, term: Callable[..., Any], q: Process, *data: np.ndarray) -> SecondOrder:
        stack = self._local.gp.stack(observations_of(q), self._local.input_dim)
        at = self._local.parameters.value()

        def gradient(epsilon: np.ndarray) -> np.ndarray:
            return np.asarray(term(epsilon, stack, *data)[1])

        value, slope = term(at, stack, *data)
        return SecondOrder(float(value), np.asarray(slope), partial(_slopes, gradient, at))

    def _expected(self, stack: Stack, X: tf.Tensor, Y: tf.Tensor) -> tf.Tensor:
        gp = self._local.gp
        mean, variance = gp.predict(stack, X, *gp.condition(stack))
        return sites.expected_log_density(self._local.likelihood, X, mean, variance, Y)

    def _of_the_prior(self, stack: Stack) -> tf.Tensor:
        return self._local.parameters.log_prior_density() - self._divergence(stack)

    def _divergence(self, stack: Stack) -> tf.Tensor:
        """``KL(q(f | ε) ‖ p(f | ε))``: []."""
        gp = self._local.gp
        L, w = conditioned = gp.condition(stack)
        inverse = solve_lower(L, tf.linalg.diag(tf.ones_like(L[..., 0])))
        error = tf.matmul(inverse, w, transpose_a=True)
        size = tf.cast(tf.size(L[..., 0]), L.dtype)
        trace = tf.cast(tf.shape(w)[-1], L.dtype) * (size - tf.reduce_sum(tf.square(inverse)))
        expected = gp.log_constants(stack) - 0.5 * (tf.reduce_sum(tf.square(error)) + trace)
        return expected - gp.log_normaliser(stack, conditioned)

    def _with_gradient(self, term: Callable[..., tf.Tensor]) -> Callable[..., Any]:
        """The value of a term and its gradient [E] by ε."""

        def both(epsilon: tf.Tensor, *arguments: Any) -> tuple[tf.Tensor, tf.Tensor]:
            with tf.GradientTape() as tape:
                tape.watch(epsilon)
                with self._local.parameters.substituted(epsilon):
                    value = term(*arguments)
            return value, tape.gradient(value, epsilon, unconnected_gradients="zero")

        return both


def _slopes(gradient: Callable[[np.ndarray], np.ndarray], at: np.ndarray) -> np.ndarray:
    """The derivative [E, E] of a gradient by central differences.

    Differentiation twice through a Cholesky factor takes a graph ten times as large.
    """
    steps = np.diag(STEP * np.maximum(1.0, np.abs(at)))
    slopes = np.array([(gradient(at + h) - gradient(at - h)) / (2.0 * h.sum()) for h in steps])
    return 0.5 * (slopes + slopes.T)
