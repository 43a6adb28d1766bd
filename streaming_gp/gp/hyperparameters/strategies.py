"""How hyperparameters ε are learned, not at all, as a point, or as a distribution; and when.

Every strategy turns a few optimiser variables into values of ε and a penalty on the bound. The
variables are offsets whitened under the cavity q_cav(ε), so that zero means "no change".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import tensorflow as tf

from streaming_gp import expfam
from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam.normal import require_gaussian_family
from streaming_gp.gp.hyperparameters.vector import ParameterVector
from streaming_gp.inputs import is_positive_integer, typed
from streaming_gp.numerics.quadrature import standard_normals
from streaming_gp.serialization import storable

Limits = tuple[float | None, float | None]
"""The least and the largest value of one optimiser variable; None where there is none."""
EVIDENCE, DIVERGENCE = "evidence", "divergence"
"""The terms by which a point can remember: PVI 2018, appendix C.1 and eq. 93."""
WIDTH_UNDER_PRIOR, WIDTH_UNDER_CAVITY = 0.1, 0.5
"""Where the width of q(ε) starts, in units of the prior's or of the cavity's: a start as wide as
the prior averages the bound over values of ε at which nothing can be fitted, and the optimum next
to it explains the data as noise."""
WIDTH_OF_PERIODS = 5e-4
"""The same of periods, under the prior: with the default prior a thousandth of a period. Functions
whose periods differ by more are soon out of step, and the optimum next to such a start knows no
period at all."""
LEAST_WIDTH = 1e-15
"""Of q(ε), in units of the cavity's: a step that makes it narrower has gone astray, and precisions
have squares."""
GROWTH_OF_SHORT = 1.2
"""By which a short stream grows until it learns again, or one whose batch surprises."""
SURPRISE = 2.0
"""A batch surprises whose squared errors are so many times what was predicted."""
FEWEST_SAMPLES = 8
"""The values of ε of a full fit, where data say enough of it."""


@runtime_checkable
class HyperparameterStrategy(Protocol):
    """How ε takes part in a local update: a frozen dataclass of plain fields."""

    def prior(self, parameters: ParameterVector) -> expfam.Gaussian | None:
        """p(ε), or None where ε is a point."""
        ...

    def location_scale(
        self, cavity: expfam.Gaussian | None, parameters: ParameterVector
    ) -> tuple[np.ndarray, np.ndarray]:
        """Where the whitened variables are zero: [E], and their unit: lower factor [E, E]."""
        ...

    def initial(self, parameters: ParameterVector, has_seen_data: bool) -> np.ndarray:
        """Optimiser variables [V] at the start: at the centre of the cavity or prior.

        :param has_seen_data: Whether the cavity is more than the prior.
        """
        ...

    def unmoved(self, size: int) -> np.ndarray:
        """Optimiser variables [V] at which q(ε) is the cavity's, or the point stays."""
        ...

    def limits(self, parameters: ParameterVector) -> list[Limits]:
        """The limits of each of the V optimiser variables."""
        ...

    @property
    def num_draws(self) -> int | None:
        """S where it never changes, else None."""
        ...

    def noise(self, size: int, seed: int, full: bool = True) -> np.ndarray:
        """Common random numbers [S, E]: the bound is averaged over S values of ε.

        :param size: The number E of hyperparameters.
        :param seed: The seed of the numbers.
        :param full: Whether to give as many as the strategy has; otherwise half of them may do.
        """
        ...

    def draw(
        self, variables: tf.Tensor, location: tf.Tensor, scale: tf.Tensor, noise: tf.Tensor
    ) -> tf.Tensor:
        """Values of ε [S, E] for noise [S, E]."""
        ...

    def penalty(self, variables: tf.Tensor, parameters: ParameterVector) -> tf.Tensor:
        """The term that is subtracted from the expected bound: KL(q(ε) ‖ q_cav(ε)) or −log p(ε)."""
        ...

    def posterior(
        self, variables: np.ndarray, location: np.ndarray, scale: np.ndarray
    ) -> expfam.Gaussian | None:
        """q(ε), or None where ε is a point."""
        ...

    @property
    def memory(self) -> str | None:
        """The term of earlier factors that the objective adds to the batch's bound.

        ``"evidence"`` is the log evidence of earlier pseudo-observations (PVI 2018, appendix C.1);
        ``"divergence"`` is what ``−KL(q(a) ‖ p(a | ε))`` gains over its value at the ε before,
        where q(a) is what was known of all earlier points then (appendix C.2, eq. 93). Conditional
        points give the second for both, and count it in the free energy that they report; that of
        others has neither.
        """
        ...

    def forget(self, ledger: Any) -> Any:
        """The ledger of Gaussian-process factors that a new batch finds."""
        ...

    @property
    def remembers(self) -> bool:
        """Whether ε is that of all data so far, where factors hold them."""
        ...

    def check_round(self) -> None:
        """Refuse that several batches are fitted under one ledger, where that makes no sense.

        :raises InvalidDataError: if it makes none.
        """
        ...


@dataclass(frozen=True)
class _Point:
    """A single value of ε."""

    def prior(self, parameters: ParameterVector) -> None:
        return None

    def location_scale(
        self, cavity: expfam.Gaussian | None, parameters: ParameterVector
    ) -> tuple[np.ndarray, np.ndarray]:
        return parameters.value(), np.diag(parameters.unit_log_widths())

    def initial(self, parameters: ParameterVector, has_seen_data: bool) -> np.ndarray:
        return self.unmoved(parameters.size)

    def unmoved(self, size: int) -> np.ndarray:
        return np.zeros(size)

    @property
    def num_draws(self) -> int:
        return 1

    def noise(self, size: int, seed: int, full: bool = True) -> np.ndarray:
        return np.zeros((1, size))

    @property
    def remembers(self) -> bool:
        return True

    def posterior(self, variables: np.ndarray, location: np.ndarray, scale: np.ndarray) -> None:
        return None

    @property
    def memory(self) -> str | None:
        return None

    def forget(self, ledger: Any) -> Any:
        return ledger

    def check_round(self) -> None:
        """One value serves all batches of a round."""


@storable
@dataclass(frozen=True)
class FixedHyperparameters(_Point):
    """ε stays at the values that the GPflow parameters hold.

    >>> fixed = sgp.StreamingGP(*parts, hyperparameters=sgp.FixedHyperparameters())
    >>> fixed.update((X, Y)).iterations
    0
    """

    def unmoved(self, size: int) -> np.ndarray:
        return np.zeros(0)

    def limits(self, parameters: ParameterVector) -> list[Limits]:
        return []

    def draw(
        self, variables: tf.Tensor, location: tf.Tensor, scale: tf.Tensor, noise: tf.Tensor
    ) -> tf.Tensor:
        return location[None]

    def penalty(self, variables: tf.Tensor, parameters: ParameterVector) -> tf.Tensor:
        return tf.zeros([], tf.float64)


@storable
@typed
@dataclass(frozen=True)
class PointHyperparameters(_Point):
    """ε maximises the local free energy of the newest batch (PVI 2018, appendix C.2).

    Parameters that carry a GPflow prior contribute its log density (MAP); without priors this is
    maximum likelihood. Priors are densities in the space that the parameter's ``prior_on`` names.

    :param max_log_decrease: The logarithm of a constrained parameter falls in one update by at most
        so much, to first order. A batch of one point has its maximum likelihood at no noise at all,
        and from there no gradient leads back.
    :param remember: By which term what is known of f has a say. ``"evidence"`` adds the log
        evidence that ε gives to all earlier pseudo-observations, as in appendix C.1; conditional
        points refuse it, as they keep no factor that is free of ε. ``"divergence"`` adds
        ``−KL(q(a) ‖ p(a | ε))``, as in appendix C.2 (eq. 93), where q(a) is what was known of all
        earlier points at the ε before; a point at every input refuses it, as these have no white
        noise of their own. True, the default, is the first, or with conditional points the second.
        With False the newest batch alone decides.
    :raises InvalidDataError: if ``max_log_decrease`` is not positive, or ``remember`` is none of
        these.

    >>> point = sgp.StreamingGP(*parts, hyperparameters=sgp.PointHyperparameters())
    >>> point.hyperparameter_posterior is None
    True
    """

    max_log_decrease: float = 5.0
    remember: bool | Literal["evidence", "divergence"] = True

    def __post_init__(self) -> None:
        is_name = type(self.remember) is str and self.remember in (EVIDENCE, DIVERGENCE)
        if not (is_name or isinstance(self.remember, (bool, np.bool_))):
            raise InvalidDataError(
                f"PointHyperparameters.remember must be true, false, {EVIDENCE!r} or "
                f"{DIVERGENCE!r}, got {self.remember!r:.100}"
            )
        if not self.max_log_decrease > 0.0:
            raise InvalidDataError(
                f"max_log_decrease must be positive, got {self.max_log_decrease}"
            )

    def limits(self, parameters: ParameterVector) -> list[Limits]:
        lowest = {True: -self.max_log_decrease, False: None}
        return [(lowest[bool(constrained)], None) for constrained in parameters.is_constrained()]

    def draw(
        self, variables: tf.Tensor, location: tf.Tensor, scale: tf.Tensor, noise: tf.Tensor
    ) -> tf.Tensor:
        return (location + tf.linalg.matvec(scale, variables))[None]

    def penalty(self, variables: tf.Tensor, parameters: ParameterVector) -> tf.Tensor:
        return -parameters.log_prior_density()

    @property
    def memory(self) -> str | None:
        if self.remember == DIVERGENCE:
            return DIVERGENCE
        return EVIDENCE if self.remember else None

    @property
    def remembers(self) -> bool:
        return bool(self.remember)

    def check_round(self) -> None:
        """:raises InvalidDataError: always, as the batches would end at different values of ε."""
        raise InvalidDataError(
            "batches that are fitted under one ledger would differ in point hyperparameters; "
            f"wanted fixed or variational ones, got {self}"
        )


@storable
@typed
@dataclass(frozen=True)
class VariationalHyperparameters:
    """A Gaussian q(ε) on the unconstrained vector, structured with the function.

    The variational family is ``q(f, ε) = q(ε) p̃(f | ε) t_b(b) / 𝒵_b(ε)`` (maths page, section 2).

    :param full_covariance: Whether q(ε) has a full covariance matrix instead of independent
        Gaussians; short for ``family=expfam.Normal``.
    :param num_samples: The number S of values of ε at which the bound is averaged; even. None, the
        default, for 8. A family with correlations takes at least 2 E, so that the samples'
        covariance can be made exact.
    :param prior_log_scale: The width of the default prior, as a standard deviation of log ε_i (see
        :meth:`.ParameterVector.prior_moments`); parameters with a GPflow prior use that.
    :param forgetting_factor: λ in (0, 1]: the ε part of every factor is raised to λ whenever a new
        batch comes, so that ``q_cav(ε) ∝ p(ε) Π_a t_a(ε)^(λ^age)`` (stabilised forgetting: Kulhavý
        & Zarrop 1993). What factors say of f stays. 1 forgets nothing. Synchronous rounds, in which
        batches have no order, forget nothing either.
    :param family: The Gaussian family of q(ε), if it is another one: a subclass of
        :class:`streaming_gp.expfam.Gaussian`.
    :raises InvalidDataError: if an argument is out of its range.

    >>> learned = sgp.StreamingGP(
    ...     *parts, hyperparameters=sgp.VariationalHyperparameters(full_covariance=True)
    ... )
    >>> learned.hyperparameter_posterior.mean.shape  # lengthscale, variance, noise
    (3,)
    """

    full_covariance: bool = False
    num_samples: int | None = None
    prior_log_scale: float = 2.0
    forgetting_factor: float = 1.0
    family: type[expfam.Gaussian] | None = None

    def __post_init__(self) -> None:
        if self.num_samples is not None and (self.num_samples < 2 or self.num_samples % 2):
            raise InvalidDataError(f"num_samples must be even and positive, got {self.num_samples}")
        if not self.prior_log_scale > 0.0:
            raise InvalidDataError(f"prior_log_scale must be positive, got {self.prior_log_scale}")
        if not 0.0 < self.forgetting_factor <= 1.0:
            raise InvalidDataError(
                f"forgetting_factor must lie in (0, 1], got {self.forgetting_factor}"
            )
        if self.family is not None and self.full_covariance:
            raise InvalidDataError("give full_covariance or a family, not both")
        if self.family is not None:
            require_gaussian_family(self.family)

    def prior(self, parameters: ParameterVector) -> expfam.Gaussian:
        mean, scale = parameters.prior_moments(self.prior_log_scale)
        return _family(self).from_mean_scale(mean, np.diag(scale)).as_arrays()

    def location_scale(
        self, cavity: expfam.Gaussian | None, parameters: ParameterVector
    ) -> tuple[np.ndarray, np.ndarray]:
        assert cavity is not None
        return np.asarray(cavity.mean), np.asarray(cavity.scale)

    def initial(self, parameters: ParameterVector, has_seen_data: bool) -> np.ndarray:
        if has_seen_data:
            return _centred(_family(self), np.full(parameters.size, WIDTH_UNDER_CAVITY))
        widths = np.where(parameters.are_periods(), WIDTH_OF_PERIODS, WIDTH_UNDER_PRIOR)
        return _centred(_family(self), widths)

    def unmoved(self, size: int) -> np.ndarray:
        return _centred(_family(self), np.ones(size))

    def limits(self, parameters: ParameterVector) -> list[Limits]:
        shape = _family(self).unconstrained_shape(parameters.size)
        return [(None, None)] * int(np.prod(shape))

    @property
    def num_draws(self) -> None:
        return None

    def noise(self, size: int, seed: int, full: bool = True) -> np.ndarray:
        number = FEWEST_SAMPLES if self.num_samples is None else self.num_samples
        if _family(self) is not expfam.MeanFieldNormal:  # correlated
            return standard_normals(max(number, 2 * size), size, seed, whiten=True)
        pairs = number // 2 if full else (number // 2 + 1) // 2
        return standard_normals(2 * pairs, size, seed)

    def _whitened(self, variables: Any, size: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean [E] and lower factor [E, E] of q in whitened coordinates."""
        shape = _family(self).unconstrained_shape(size)
        return _family(self).mean_scale_of(tf.reshape(variables, [*shape[:-1], -1]))

    def draw(
        self, variables: tf.Tensor, location: tf.Tensor, scale: tf.Tensor, noise: tf.Tensor
    ) -> tf.Tensor:
        mean, lower = self._whitened(variables, location.shape[0])
        white = mean + tf.linalg.matmul(noise, lower, transpose_b=True)
        return location + tf.linalg.matmul(white, scale, transpose_b=True)

    def penalty(self, variables: tf.Tensor, parameters: ParameterVector) -> tf.Tensor:
        size = parameters.size
        mean, lower = self._whitened(variables, size)
        standard = _family(self).from_mean_scale(
            tf.zeros_like(mean), tf.eye(size, dtype=mean.dtype)
        )
        divergence = _family(self).from_mean_scale(mean, lower).kl_divergence(standard)
        too_narrow = tf.reduce_min(tf.linalg.diag_part(lower)) < LEAST_WIDTH
        return tf.where(too_narrow, tf.constant(np.inf, divergence.dtype), divergence)

    def posterior(
        self, variables: np.ndarray, location: np.ndarray, scale: np.ndarray
    ) -> expfam.Gaussian:
        mean, lower = self._whitened(variables, len(location))
        q_mean = location + scale @ mean.numpy()
        return _family(self).from_mean_scale(q_mean, scale @ lower.numpy()).as_arrays()

    @property
    def memory(self) -> None:  # q(ε) speaks for the past
        return None

    def forget(self, ledger: Any) -> Any:
        """Earlier factors say less of ε, and the same of f."""
        if self.forgetting_factor == 1.0:
            return ledger
        share = self.forgetting_factor
        return ledger.with_factors(
            {name: one.saying_less_of_epsilon(share) for name, one in ledger.factors.items()}
        )

    @property
    def remembers(self) -> bool:
        return self.forgetting_factor == 1.0

    def check_round(self) -> None:
        """Every batch of a round has its own factor of ε."""


def check_evidence(strategy: HyperparameterStrategy) -> None:
    """Refuse a strategy whose q(ε), or whose way to it, is its own where ε is learned from the
    evidence of data: there q(ε) is the Gaussian that is nearest to the posterior.

    :raises InvalidDataError: naming it, and what was wanted.
    """
    if isinstance(strategy, FixedHyperparameters):
        return
    known: type[Any] = PointHyperparameters
    own = ["draw", "posterior"]
    if isinstance(strategy, VariationalHyperparameters):
        known, own = VariationalHyperparameters, [*own, "penalty"]
    changed = [name for name in own if getattr(type(strategy), name) is not getattr(known, name)]
    if changed:
        raise InvalidDataError(
            "with a point at every input hyperparameters are learned from the evidence of the "
            f"data: wanted a strategy with the {' and '.join(changed)} of {known.__name__}, or few "
            f"pseudo-points, got {strategy}"
        )


def _family(strategy: VariationalHyperparameters) -> type[expfam.Gaussian]:
    default = expfam.Normal if strategy.full_covariance else expfam.MeanFieldNormal
    return default if strategy.family is None else strategy.family


def _centred(family: type[expfam.Gaussian], widths: np.ndarray) -> np.ndarray:
    """Optimiser variables at which q(ε) is the cavity with its widths changed by [E]."""
    q = family.from_mean_scale(np.zeros(len(widths)), np.diag(widths))
    return np.ravel(q.unconstrained().numpy())


# ---- which updates learn ----


@dataclass(frozen=True)
class Arrival:
    """A batch that has come, as schedules see it.

    :param num_updates: The number of batches before it.
    :param shift: How far the newest update that learned moved ε, as a root mean square over its
        entries, each in standard deviations of q(ε) (in e-folds where ε is a point); infinite
        before there was one.
    :param growth: The number of data, with those of the batch, over that at the newest update that
        learned; infinite before there was one.
    :param num_data: The number of data, with those of the batch.
    :param median_error: Gives what ``surprise`` is; called where a schedule asks for it.
    """

    num_updates: int
    shift: float = math.inf
    growth: float = math.inf
    num_data: int = 0
    median_error: Callable[[], float] = lambda: 1.0

    @cached_property
    def surprise(self) -> float:
        """The median of ``(y - E y)² / var y`` over the batch, as predicted before it is learned,
        over that of a normal distribution: about one where the model is right. One where the model
        has no point at every input.
        """
        return self.median_error()


@runtime_checkable
class LearningSchedule(Protocol):
    """Says of every update of a stream whether it learns: a frozen dataclass of plain fields."""

    def wants(self, arrival: Arrival) -> bool:
        """Whether the update with this batch learns."""
        ...


@storable
@dataclass(frozen=True)
class EveryUpdate:
    """Learn at every update.

    :param every: Learn at every update whose number is a multiple of this, the first one among
        them.
    :raises InvalidDataError: if it is not a positive integer.

    >>> [sgp.EveryUpdate(5).wants(sgp.gp.Arrival(number)) for number in (0, 4, 5)]
    [True, False, True]
    """

    every: int = 1

    def __post_init__(self) -> None:
        if not is_positive_integer(self.every):
            raise InvalidDataError(f"every must be a positive integer, got {self.every!r}")

    def wants(self, arrival: Arrival) -> bool:
        return arrival.num_updates % self.every == 0


@storable
@typed
@dataclass(frozen=True)
class WhenGrown:
    """Learn when the stream has grown by so much since it learned last, or comes nearer to that
    than with another batch of the mean size.

    A short stream learns when it has grown by a fifth, as its data say much of ε each, and their
    evidence costs little; and so does one whose batch is not as predicted, as what was learned may
    have been learned too early.

    :param by: The number of data over that of then.
    :param short: A stream of at most so many data is short.
    :raises InvalidDataError: if ``by`` is not above 1.

    >>> [sgp.WhenGrown().wants(sgp.gp.Arrival(9, growth=by, num_data=900)) for by in (1.5, 2.0)]
    [False, True]
    """

    by: float = 2.0
    short: int = 300

    def __post_init__(self) -> None:
        if not self.by > 1.0:
            raise InvalidDataError(f"by must be above 1, got {self.by!r}")

    def wants(self, arrival: Arrival) -> bool:
        half_a_batch = math.sqrt(1.0 + 1.0 / (arrival.num_updates + 1))
        if arrival.num_updates == 0 or arrival.growth * half_a_batch >= self.by:
            return True
        if arrival.growth < GROWTH_OF_SHORT:
            return False
        return arrival.num_data <= self.short or arrival.surprise > SURPRISE


@storable
@typed
@dataclass(frozen=True)
class UntilSettled:
    """Learn until an update hardly moves ε any more, and then now and again.

    One small step is not the end of learning: small batches move ε little each, and a long way
    together. So every update learns that makes the stream longer by a certain share, too.

    :param shift: ε has settled when an update moved it by less, in standard deviations of q(ε).
    :param every: Learn at every update whose number is a multiple of this all the same, so that a
        stream that changes is noticed; None for never.
    :param growth: Learn all the same when the stream has grown by this share of its updates; None
        for never.
    :raises InvalidDataError: if a number is not positive.

    >>> [sgp.UntilSettled().wants(sgp.gp.Arrival(9, shift=by)) for by in (0.1, 0.6)]
    [False, True]
    """

    shift: float = 0.5
    every: int | None = 20
    growth: float | None = 0.5

    def __post_init__(self) -> None:
        for name in ("shift", "growth"):
            value = getattr(self, name)
            if value is not None and not value > 0.0:
                raise InvalidDataError(f"{name} must be positive, got {value!r}")
        if self.every is not None and not is_positive_integer(self.every):
            raise InvalidDataError(f"every must be a positive integer or None, got {self.every!r}")

    def wants(self, arrival: Arrival) -> bool:
        again = self.every is not None and arrival.num_updates % self.every == 0
        return again or arrival.shift >= self.shift or self._has_grown(arrival.num_updates)

    def _has_grown(self, num_updates: int) -> bool:
        """Whether the next update is the first beyond another power of ``1 + growth``."""
        if self.growth is None or num_updates == 0:
            return False
        if num_updates * self.growth < 1.0:  # powers lie closer than numbers
            return True
        before, after = (math.log(n, 1.0 + self.growth) for n in (num_updates, num_updates + 1))
        return math.floor(before) < math.floor(after)


@storable
@dataclass(frozen=True)
class NeverLearn:
    """Absorb every batch at the q(ε) that is there.

    >>> sgp.NeverLearn().wants(sgp.gp.Arrival(0))
    False
    """

    def wants(self, arrival: Arrival) -> bool:
        return False
