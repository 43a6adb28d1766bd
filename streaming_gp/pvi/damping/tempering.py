"""Factors that say too much for what all others say are taken to a power below one.

Each factor is compared with its cavity, the product of prior and all others, which its client has
had no part in: these are the statistics that are held back from it. Where it exceeds a limit, the
largest power s in (0, 1] is taken at which ``t^s`` keeps it. Nothing is refused, and a factor
within the limit enters as it is. The worst is tempered first, and the others are then compared with
what is left of it, so that a lie does not make liars of them.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
import scipy.optimize

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import ExponentialFamily, Gaussian
from streaming_gp.inputs import require_positive, typed
from streaming_gp.pvi.damping.around import AroundRule, Natural, product_with, require_coordinates
from streaming_gp.pvi.damping.rule import Factors, Memory
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
        """What measures how much a factor says for what this cavity says.

        :param cavity: The product of prior and all other factors.
        :returns: a function of the factor's natural parameters, which grows with its power.
        """

    def applied(
        self,
        ledger: Ledger[Any],
        proposals: Mapping[str, Any],
        share: float,
        progress: float,
        memory: Memory,
    ) -> tuple[Factors, Memory]:
        """As ``DampingRule`` says: another rule first, and then the limit on what it makes.

        :raises InvalidDataError: if the ledger is of a family that the rule is not for.
        """
        require_coordinates(self, ledger)
        rule = self.inner(ledger, proposals)
        factors, memory = rule.applied(ledger, proposals, share, progress, memory)
        return self._tempered(ledger, factors), memory

    def _tempered(self, ledger: Ledger[Any], factors: Factors) -> Factors:
        """The worst first, each of them once."""
        factors, left = dict(factors), set(factors)
        while left:
            product = product_with(ledger, factors)
            measures = {
                name: self._beside(_without(type(ledger.prior), product, factors[name].natural))
                for name in sorted(left)
            }
            excess = {name: beside(factors[name].natural) for name, beside in measures.items()}
            worst = max(excess, key=lambda name: excess[name])
            if excess[worst] <= self.limit:
                break
            power = self._largest_power(measures[worst], factors[worst].natural)
            factors[worst] = factors[worst] ** power
            left.remove(worst)
        return factors

    def _beside(self, cavity: ExponentialFamily | None) -> Measure:
        """Nothing can be said beside a cavity that is no distribution; it is the policy's."""
        if cavity is None:
            return lambda _: 0.0
        beside = self.beside(cavity)

        def measure(factor: Natural) -> float:
            found = beside(tuple(np.asarray(eta, float) for eta in factor))
            return found if np.isfinite(found) else np.inf

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
    """What a factor says of the parameters must be what its cavity expects, for Gaussians.

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
        whitened = _whitened_fully if own.ndim == 2 else _whitened_each
        root = np.linalg.cholesky(own) if own.ndim == 2 else np.sqrt(own)

        def measure(factor: Natural) -> float:
            precision, pull = whitened(root, mean, factor)
            size = np.abs(precision)
            return float(np.sqrt(np.mean(pull**2 / np.maximum(size * (1.0 + size), TINY))))

        return measure


def _whitened_each(root: np.ndarray, mean: np.ndarray, factor: Natural) -> Natural:
    """A factor's precision and gradient at the cavity's mean, in the cavity's units."""
    h, precision = factor
    return precision / root**2, (h - precision * mean) / root


def _whitened_fully(root: np.ndarray, mean: np.ndarray, factor: Natural) -> Natural:
    """The same along the eigenvectors of the precision in these units."""
    h, precision = factor
    half = scipy.linalg.solve_triangular(root, precision, lower=True)
    values, vectors = np.linalg.eigh(scipy.linalg.solve_triangular(root, half.T, lower=True))
    pull = scipy.linalg.solve_triangular(root, h - precision @ mean, lower=True)
    return values, vectors.T @ pull


def _without(
    family: type[ExponentialFamily], product: Natural, factor: Natural
) -> ExponentialFamily | None:
    """A cavity, if it is a distribution."""
    rest = tuple(all_of_it - own for all_of_it, own in zip(product, factor, strict=True))
    return family(*rest) if family.is_proper_natural(*rest) else None
