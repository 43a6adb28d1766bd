"""How proposed factors enter the ledger: damping by powers of factors, and rules around it that
bound what one client can do.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import scipy.linalg
import scipy.optimize
import scipy.stats

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import ExponentialFamily, Factor, Gaussian
from streaming_gp.inputs import Positive, require_fraction, require_positive_finite, typed
from streaming_gp.pvi.ledger import Ledger

State = Any
"""A rule's memory of the steps before; None for a rule that needs none."""
Proposals = Mapping[str, Any]
"""New factors by client."""
Factors = dict[str, Any]
"""Factors by client."""
Natural = tuple[np.ndarray, ...]
"""Natural parameters."""
Measure = Callable[[Natural], float]
"""Of a factor's natural parameters."""

LEAST_LOG_POWER = -80.0
"""The smallest power is e to so much."""
TINY = 1e-9
"""Of a cavity's precision along a direction: who says less than so much of it says nothing."""


@runtime_checkable
class DampingRule(Protocol):
    """How proposals enter the ledger: a frozen dataclass, whose state goes in and comes out."""

    def init(self, ledger: Ledger[Any]) -> State:
        """The state before the first step; None if the rule has none."""

    def update(
        self, ledger: Ledger[Any], proposals: Proposals, state: State, share: float, progress: float
    ) -> tuple[Factors, State]:
        """The factors that these clients own after a step; the ledger itself never changes.

        :param ledger: The ledger before the step.
        :param proposals: New factors by client, as the clients' fits gave them.
        :param state: The state after the step before.
        :param share: The share of the full step, in (0, 1]: below one where a policy backtracks, or
            where proposals are stale.
        :param progress: The fraction of all rounds that is over, in [0, 1).
        :returns: one factor for each proposal, and the state after the step.
        :raises InvalidDataError: if the ledger is of a family that the rule is not for, or the
            state is another rule's.
        """


Rho = float | Mapping[str, float] | DampingRule | None
"""A damping ρ in (0, 1], for all or by client; a rule; or None for 1/K with K clients."""


def damped(old: Any, new: Any, rho: float) -> Any:
    """``old^(1−ρ) · new^ρ`` (PVI 2018, section 5).

    :param old: The factor so far; None for the unit factor.
    :param new: The proposed factor.
    :param rho: The damping ρ in (0, 1].
    """
    if rho == 1.0:
        return new
    return new**rho if old is None else old ** (1.0 - rho) * new**rho


@typed
@dataclass(frozen=True)
class Damping:
    """``t ← t_old^(1−ρ) t_new^ρ`` (PVI 2018, section 5).

    :param rho: The damping ρ in (0, 1], for all clients or by name; 1/K for K clients if None.
    :param num_clients: The number of clients K.
    :raises InvalidDataError: if a damping is not in (0, 1].
    """

    rho: float | Mapping[str, float] | None
    num_clients: int

    def __post_init__(self) -> None:
        for rho in self.rho.values() if isinstance(self.rho, Mapping) else [self.rho]:
            if rho is not None:
                require_fraction("damping", rho)

    def init(self, ledger: Ledger[Any]) -> State:
        return None

    def update(
        self, ledger: Ledger[Any], proposals: Proposals, state: State, share: float, progress: float
    ) -> tuple[Factors, State]:
        factors = {}
        for name, new in proposals.items():
            rho = self.rho.get(name) if isinstance(self.rho, Mapping) else self.rho
            rho = 1.0 / self.num_clients if rho is None else rho
            factors[name] = damped(ledger.factors.get(name), new, share * rho)
        return factors, state


@dataclass(frozen=True)
class OpinionPool:
    """Damping whose weights sum to one over the clients that answered together.

    Under one posterior ``Π_k q_k^ρ_k`` is then the new one: the logarithmic opinion pool of the
    clients' own fits, which is externally Bayesian (Genest 1984; PGVI, section 3.2.4).

    :param weights: The weight of each client, positive, in any unit; equal weights if None.
    :raises InvalidDataError: if a weight is not positive, or a client has none.
    """

    weights: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        if self.weights is None:
            return
        if not isinstance(self.weights, Mapping):
            raise InvalidDataError(f"wanted a weight for each client, got {self.weights!r:.100}")
        for name, weight in self.weights.items():
            require_positive_finite(f"the weight of {name!r}", weight)

    def init(self, ledger: Ledger[Any]) -> State:
        return None

    def update(
        self, ledger: Ledger[Any], proposals: Proposals, state: State, share: float, progress: float
    ) -> tuple[Factors, State]:
        weights = dict.fromkeys(proposals, 1.0) if self.weights is None else self.weights
        missing = next((name for name in proposals if name not in weights), None)
        if missing is not None:
            raise InvalidDataError(f"no weight for client {missing!r}: there are {list(weights)}")
        total = sum(weights[name] for name in proposals)
        rho = {name: weights[name] / total for name in proposals}
        return Damping(rho, len(proposals)).update(ledger, proposals, state, share, progress)


@dataclass(frozen=True)
class AroundRule:
    """A rule around another one, whose state is the other's.

    :param damping: The other rule, or a damping ρ in (0, 1]; if None, what a schedule takes where
        it is given none.
    """

    damping: Rho = None

    def inner(self, ledger: Ledger[Any], proposals: Proposals) -> DampingRule:
        """The other rule."""
        if isinstance(self.damping, DampingRule):
            return self.damping
        return Damping(self.damping, len(ledger.factors.keys() | proposals))

    def init(self, ledger: Ledger[Any]) -> State:
        return self.inner(ledger, {"": None}).init(ledger)


@dataclass(frozen=True)
class Annealed(AroundRule):
    """Another rule whose steps fall to zero by a cosine over the rounds of a run.

    At a fraction p of all rounds a step is ``(1 + cos πp) / 2`` of what it would be (Loshchilov &
    Hutter 2017, eq. 5). Where clients differ and fit by minibatches, the posterior else keeps
    following whoever answered last; small steps in the end average over all of them. Fixed points
    are those of the rule itself.

    :param damping: The rule, or a damping ρ in (0, 1]; if None, what a schedule takes where it is
        given none.
    """

    def update(
        self, ledger: Ledger[Any], proposals: Proposals, state: State, share: float, progress: float
    ) -> tuple[Factors, State]:
        share *= float(0.5 * (1.0 + np.cos(np.pi * progress)))
        return self.inner(ledger, proposals).update(ledger, proposals, state, share, progress)


def product_with(ledger: Ledger[Any], factors: Proposals, dtype: Any = None) -> Natural:
    """The natural parameters of prior times factors with these among them, proper or not.

    :param dtype: Of the sums; the arrays' own if None.
    """
    parts = [ledger.prior, *{**ledger.factors, **factors}.values()]
    columns = zip(*(part.natural for part in parts), strict=True)
    return tuple(np.sum(column, axis=0, dtype=dtype) for column in columns)


def require_family(rule: DampingRule, ledger: Ledger[Any]) -> None:
    """Check that factors have coordinates in common."""
    if not isinstance(ledger.prior, ExponentialFamily):
        name, family = type(rule).__name__, type(ledger.prior).__name__
        raise InvalidDataError(f"{name} is for exponential families, not for {family}")


def require_state(rule: DampingRule, state: State, kind: type) -> None:
    """Check that a state is one that the rule can go on from."""
    if not isinstance(state, kind):
        raise InvalidDataError(
            f"{type(rule).__name__} goes on from a {kind.__name__}, got a {type(state).__name__} "
            "of another rule: begin with what its init gives"
        )


# ---- robust means ----


@dataclass(frozen=True)
class RobustMean(AroundRule):
    """A rule that combines the changes of all who answered, for synchronous rounds.

    Client k proposes to change its factor by ``Δ_k = t_k' / t_k``. The product ``Π Δ_k`` is a sum
    of natural parameters, and one client can make it anything. Its n-fold median or trimmed mean,
    coordinate by coordinate, is the same where all say the same, and a few clients cannot take it
    out of the range of the others (Yin et al. 2018). Every client's factor takes an equal part of
    it, so that the posterior is prior times factors at all times. Gaussians are taken about the
    posterior's mean, so that it does not matter where the origin is.

    It assumes that clients have similar data, and as many. Where they have not, honest clients
    differ as hostile ones do, and it leaves out what only some of them know.
    """

    @abc.abstractmethod
    def centre(self, changes: np.ndarray) -> np.ndarray:
        """Where most of them are.

        :param changes: One natural parameter of the changes of all clients [n, ...].
        :returns: a value for each coordinate [...].
        """

    def update(
        self, ledger: Ledger[Any], proposals: Proposals, state: State, share: float, progress: float
    ) -> tuple[Factors, State]:
        require_family(self, ledger)
        old, q = ledger.factors, ledger.posterior
        mean = np.asarray(q.mean, float) if isinstance(q, Gaussian) else None
        changes = [new / old[name] if name in old else new for name, new in proposals.items()]
        apart = [_about(change, mean, -1.0) for change in changes]
        columns = zip(*(change.natural for change in apart), strict=True)
        middle = tuple(self.centre(np.stack(column)) for column in columns)
        scale = self.centre(np.array([change.log_scale for change in apart]))
        centre = _about(Factor(changes[0].family, middle, scale), mean, 1.0)
        dtypes = [np.asarray(eta).dtype for eta in changes[0].natural]
        natural = (eta.astype(dtype) for eta, dtype in zip(centre.natural, dtypes, strict=True))
        part = replace(centre, natural=tuple(natural))
        equal = {name: old[name] * part if name in old else part for name in proposals}
        return self.inner(ledger, proposals).update(ledger, equal, state, share, progress)


@dataclass(frozen=True)
class Median(RobustMean):
    """The median over clients in each coordinate: less than half of them may lie.

    :param damping: The rule that what is left goes through, or a damping ρ in (0, 1].

    >>> careful = sgp.pvi.Synchronous(damping=sgp.pvi.Median(0.5))
    >>> server = sgp.pvi.run(line, shards, rounds=1, schedule=careful)
    """

    def centre(self, changes: np.ndarray) -> np.ndarray:
        return np.asarray(np.median(changes, axis=0))


@typed
@dataclass(frozen=True)
class TrimmedMean(RobustMean):
    """The mean in each coordinate without the largest and the smallest values.

    :param damping: The rule that what is left goes through, or a damping ρ in (0, 1].
    :param fraction: The fraction of the clients that is left out at either end, rounded down, in
        [0, 0.5): so many may lie. With 0 it is the mean, and the posterior that of the sum.
    :raises InvalidDataError: if it is not in that range.
    """

    fraction: float = 0.2

    def __post_init__(self) -> None:
        if not 0.0 <= self.fraction < 0.5:
            raise InvalidDataError(f"fraction must lie in [0, 0.5), got {self.fraction}")

    def centre(self, changes: np.ndarray) -> np.ndarray:
        return np.asarray(scipy.stats.trim_mean(changes, self.fraction, axis=0))


def _about(factor: Factor, mean: np.ndarray | None, sign: float) -> Factor:
    """``(h ± Λ m, Λ)``, with its constant: to a Gaussian factor of x − m with −, and back with +;
    those of other families as they are.
    """
    natural = tuple(np.asarray(eta, float) for eta in factor.natural)
    scale = float(factor.log_scale)
    if mean is None:
        return Factor(factor.family, natural, scale)
    h, precision = natural
    pull = precision @ mean if precision.ndim == 2 else precision * mean
    scale -= float(sign * h @ mean + 0.5 * pull @ mean)
    return Factor(factor.family, (h + sign * pull, precision), scale)


# ---- tempering ----


@dataclass(frozen=True)
class Tempering(AroundRule):
    """A rule that limits what each factor may say beside the others, on any schedule.

    Each factor is compared with its cavity, the product of prior and all others. Where it exceeds
    the limit, the largest power s in (0, 1] is taken at which ``t^s`` keeps it. The worst is
    tempered first, and the others are then compared with what is left of it, so that a lie does not
    make liars of them.
    """

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

    max_shift: Positive = 1.0

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

    max_disagreement: Positive = 3.0

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
