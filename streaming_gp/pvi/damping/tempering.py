"""Factors that say too much for what all others say are taken to a power below one.

Each factor is compared with its cavity, the product of prior and all others, which its client has
had no part in: these are the statistics that are held back from it. Where it exceeds a limit, the
largest power s in (0, 1] is taken at which ``t^s`` keeps it. Nothing is refused, and a factor
within the limit enters as it is. The worst is tempered first, and the others are then compared with
what is left of it, so that a lie does not make liars of them.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
import scipy.optimize

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import ExponentialFamily, Gaussian
from streaming_gp.inputs import require_positive, typed
from streaming_gp.pvi.damping.rule import (
    AroundRule,
    Factors,
    Natural,
    Proposals,
    State,
    product_with,
    require_family,
)
from streaming_gp.pvi.ledger import Ledger

Measure = Callable[[Natural], float]
"""Of a factor's natural parameters."""

LEAST_LOG_POWER = -80.0
"""The smallest power is e to so much."""
TINY = 1e-9
"""Of a cavity's precision along a direction: who says less than so much of it says nothing."""


@dataclass(frozen=True)
class Tempering(AroundRule):
    """A rule that limits what each factor may say beside the others, on any schedule."""

    @property
    @abc.abstractmethod
    def limit(self) -> float:
        """The largest measure that is let through."""

    @abc.abstractmethod
    def beside(self, cavity: ExponentialFamily) -> Measure:
        """A measure of how much a factor says for what this cavity says.

        :param cavity: The product of prior and all other factors.
        :returns: a function of the factor's natural parameters, which grows with its power.
        """

    def update(
        self, ledger: Ledger[Any], proposals: Proposals, state: State, share: float, progress: float
    ) -> tuple[Factors, State]:
        """As ``DampingRule`` says: another rule first, and then the limit on its factors, the worst
        of them first and each of them once.

        :raises InvalidDataError: if the ledger is of a family that the rule is not for.
        """
        require_family(self, ledger)
        rule = self.inner(ledger, proposals)
        factors, state = rule.update(ledger, proposals, state, share, progress)
        factors, left = dict(factors), set(factors)
        while left:
            product = product_with(ledger, factors, float)
            measures = {
                name: self._measure(type(ledger.prior), product, factors[name].natural)
                for name in sorted(left)
            }
            excess = {name: measure(factors[name].natural) for name, measure in measures.items()}
            worst = max(excess, key=lambda name: excess[name])
            if excess[worst] <= self.limit:
                break
            power = self._largest_power(measures[worst], factors[worst].natural)
            factors[worst] = factors[worst] ** power
            left.remove(worst)
        return factors, state

    def _measure(
        self, family: type[ExponentialFamily], product: Natural, factor: Natural
    ) -> Measure:
        """Nothing can be said beside a cavity that is no distribution; it is the policy's."""
        rest = tuple(total - own for total, own in zip(product, factor, strict=True))
        if not family.is_proper_natural(*rest):
            return lambda _: 0.0
        beside = self.beside(family(*rest))

        def measure(factor: Natural) -> float:
            size = beside(tuple(np.asarray(eta, float) for eta in factor))
            return size if np.isfinite(size) else np.inf

        return measure

    def _largest_power(self, measure: Measure, factor: Natural) -> float:
        """The largest power of a factor that the limit lets through."""

        def excess(log_power: float) -> float:
            tempered = tuple(np.exp(log_power) * np.asarray(eta, float) for eta in factor)
            return float(np.log(np.clip(measure(tempered) / self.limit, 1e-300, 1e300)))

        if excess(LEAST_LOG_POWER) >= 0.0:
            return 0.0
        log_power = scipy.optimize.brentq(excess, LEAST_LOG_POWER, 0.0, xtol=1e-6)
        return float(np.exp(log_power))


@typed
@dataclass(frozen=True)
class BoundedInfluence(Tempering):
    """No client moves the posterior by more than so many standard deviations.

    The divergence ``KL(cavity ‖ posterior)`` of D coordinates is at most ``½ D max_shift²``: that
    of moving the mean by ``max_shift`` standard deviations of the posterior in each of them. Being
    far surer than the others costs as much, so that nobody can make all others' words weightless.
    Among K clients with equal data each says about ``1 / √K``.

    :param damping: The rule that answers go through before, or a damping ρ in (0, 1].
    :param max_shift: The root mean square over coordinates that is let through.
    :raises InvalidDataError: if it is not positive.
    """

    max_shift: float = 1.0

    def __post_init__(self) -> None:
        require_positive("max_shift", self.max_shift)

    @property
    def limit(self) -> float:
        return self.max_shift

    def beside(self, cavity: ExponentialFamily) -> Measure:
        """``KL(cavity ‖ posterior) = A(η + t) − A(η) − t · E[T]`` for a factor t."""
        family, moments = type(cavity), cavity.mean_parameters()
        before, size = float(cavity.log_partition()), np.size(cavity.natural[0])

        def measure(factor: Natural) -> float:
            natural = tuple(a + b for a, b in zip(cavity.natural, factor, strict=True))
            if not family.is_proper_natural(*natural):
                return np.inf
            after = float(family(*natural).log_partition())
            nats = after - before - sum(np.vdot(t, m) for t, m in zip(factor, moments, strict=True))
            return float(np.sqrt(2.0 * max(nats, 0.0) / size))

        return measure


@typed
@dataclass(frozen=True)
class Agreement(Tempering):
    """A factor must say of the parameters what its cavity expects, for Gaussians.

    If both speak of the same parameters, the factor's own mean ``Λ_k⁻¹ h_k`` differs from the
    cavity's by a random vector of covariance ``Λ_k⁻¹ + Λ_cav⁻¹``. The size of the difference in
    units of it is about one, as root mean square over coordinates. It sees a factor that is wrong
    long before the posterior is: K clients together know √K times more exactly what one should say.

    It is for factors that stand for a likelihood, as conjugate updates and local fits give them;
    the noise of small minibatches looks like disagreement.

    :param damping: The rule that answers go through before, or a damping ρ in (0, 1].
    :param max_disagreement: The root mean square over coordinates that is let through.
    :raises InvalidDataError: if it is not positive.
    """

    max_disagreement: float = 3.0

    def __post_init__(self) -> None:
        require_positive("max_disagreement", self.max_disagreement)

    @property
    def limit(self) -> float:
        return self.max_disagreement

    def beside(self, cavity: ExponentialFamily) -> Measure:
        if not isinstance(cavity, Gaussian):
            raise InvalidDataError(f"Agreement is for Gaussians, not for {type(cavity).__name__}")
        mean, own = np.asarray(cavity.mean), np.asarray(cavity.precision)
        full = own.ndim == 2
        root = np.linalg.cholesky(own) if full else np.sqrt(own)

        def measure(factor: Natural) -> float:
            """By the factor's precision and gradient at the cavity's mean, in the cavity's units;
            of a full covariance along the eigenvectors of the precision in these units.
            """
            h, precision = factor
            if full:
                half = scipy.linalg.solve_triangular(root, precision, lower=True)
                inside = scipy.linalg.solve_triangular(root, half.T, lower=True)
                precision, vectors = np.linalg.eigh(inside)
                away = h - factor[1] @ mean
                pull = vectors.T @ scipy.linalg.solve_triangular(root, away, lower=True)
            else:
                precision, pull = precision / root**2, (h - precision * mean) / root
            size = np.abs(precision)
            return float(np.sqrt(np.mean(pull**2 / np.maximum(size * (1.0 + size), TINY))))

        return measure
