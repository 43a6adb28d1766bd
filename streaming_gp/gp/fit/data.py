"""Batches whose factor is their likelihood, each datum at its own input.

With Gaussian noise there is nothing to fit but ε. Other likelihoods stand as Gaussian sites, one
for each datum, found under the cavity that all others leave. ε is learned from the evidence of all
data whose factors may change, and what it says of ε is shared among their factors by how much data
they hold: so a batch that is removed takes its share with it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from streaming_gp import expfam
from streaming_gp.errors import ImproperError, NumericalError
from streaming_gp.gp.fit import sites as site_rules
from streaming_gp.gp.fit.bounds import LEAST_VARIANCE
from streaming_gp.gp.fit.evidence import (
    EXACT_ROWS,
    MOST_EXPECTED,
    Belief,
    Learned,
    Search,
    evidence_of,
)
from streaming_gp.gp.fit.fitted import Batch, Data, Fitted
from streaming_gp.gp.fit.local_model import LocalModel
from streaming_gp.gp.fit.optimiser import LocalOptimiser, Report
from streaming_gp.gp.fit.projection import GPLedger
from streaming_gp.gp.fit.sites import Look, Sites
from streaming_gp.gp.process.dense import DenseProcess, Member
from streaming_gp.gp.process.nearest import (
    Conditioning,
    NearestAt,
    NearestNeighbors,
    NearestProcess,
    Rows,
    data_of,
)
from streaming_gp.gp.process.observations import DataObservations, concatenated
from streaming_gp.gp.process.prior import PriorAt
from streaming_gp.gp.process.process import Process, PseudoPointFactor, observations_of
from streaming_gp.numerics import stacks
from streaming_gp.numerics.linalg import LOG_TWO_PI
from streaming_gp.numerics.threads import blas_threads_for, one_blas_thread

JOINT_SITES = 500
"""The sites of so many data are found together; of more, part by part."""
NEAR_ROWS = 2000
"""With more rows, sites are found under the cavity that near rows leave: of as many data together
as have so many near them."""
EVIDENCE_ROWS = 500
"""Under near rows the free energy of a longer batch with Gaussian noise is that of a sample of so
many of its rows."""
COMPARED, FARTHER, WORTHWHILE = 500, 4, 0.02
"""So many random rows are predicted from their neighbours, from so many times as many, and from
those by which ε is learned; other ones are better by a gain of so many nats for each row."""
SURPRISES, MEDIAN_OF_SQUARE = 100, 0.4549
"""So many rows of a batch are predicted before it is learned; and the median of the square of a
standard normal variable."""
TURNS = 2
"""Of learning ε and finding sites at it."""
SAYS_NOTHING = 1e8
"""The variance of the noise of a row whose site has not been found yet."""


class DataFits:
    """Fits of batches with a point at every input."""

    def __init__(
        self, local: LocalModel, optimiser: LocalOptimiser, conditioning: Conditioning
    ) -> None:
        self.local = local
        self.optimiser = optimiser
        self.conditioning = conditioning
        self._near_rows = (
            conditioning if isinstance(conditioning, NearestNeighbors) else NearestNeighbors()
        )
        self.is_gaussian = site_rules.is_conjugate(local.likelihood)
        self._last: tuple[bytes, DenseProcess | NearestProcess] | None = None

    # ---- processes at one ε ----

    def at(
        self, epsilon: np.ndarray, process: Process, conditioning: Conditioning
    ) -> DenseProcess | NearestProcess:
        """A process at ε [E]; what it has in common with the one before is not computed again.

        :raises NumericalError: if the covariance of its observations is not positive.
        """
        token = epsilon.tobytes() + self.local.fixed_values()
        observed = observations_of(process)
        number = sum(len(one.Z) for one in observed)
        start = conditioning.unconditioned(PriorAt(self.local.prior, epsilon[None]), number)
        last = self._last
        if last is not None and last[0] == token and type(last[1]) is type(start):
            start = last[1]
        with blas_threads_for(number):
            self._last = token, start.conditioned_on(observed)
        return self._last[1]

    # ---- a batch ----

    @one_blas_thread()
    def fit(self, ledger: GPLedger, cavity: Process, batch: Batch) -> Fitted:
        """The factor of a batch, and where it learns, ε and the sites of all others at it.

        :param ledger: All factors that may change; the data of others are in its prior.
        :param cavity: Prior times all other factors.
        :param batch: The batch.
        """
        local = self.local
        own = self._observations(batch.data)
        if not (batch.learn and local.hyperparameters.limits(local.parameters)):
            epsilon = self.local.location(cavity)
            factor = PseudoPointFactor((own,), cavity.unit_of_epsilon)
            return self._with_sites(cavity, factor, epsilon, batch.conditioning)
        changing, known = dict[str, PseudoPointFactor](), cavity
        if local.hyperparameters.remembers and not batch.hold:
            changing, known = _data_and_others(ledger.without(batch.name))
        factors = {**changing, batch.name: PseudoPointFactor((own,))}
        if not self.is_gaussian:
            others = [PseudoPointFactor(one.pseudo_observations) for one in changing.values()]
            base, epsilon = Process(known.pseudo_observations).times(others), local.location(known)
            first = self._with_sites(base, factors[batch.name], epsilon, batch.conditioning)
            factors[batch.name] = first.factor
        learned, shared = self._learned(
            known, factors, batch.seed, batch.conditioning, batch.report
        )
        new = shared.pop(batch.name)
        changed = ledger.with_factors({**ledger.factors, **shared}) if shared else None
        after = cavity if changed is None else changed.cavity(batch.name)
        epsilon = learned.epsilon
        if learned.q is not None:
            # To the last digit as the next batch finds it: nothing is conditioned on it twice.
            with suppress(ImproperError):  # where a part of a factor is out alone
                whole = (ledger if changed is None else changed).replaced(batch.name, new)
                epsilon = local.location(whole.posterior)
        conditioning = self._conditioning_at(after, new, epsilon, batch.seed)
        fitted = self._with_sites(after, new, epsilon, conditioning)
        fitted = replace(fitted, iterations=learned.iterations, conditioning=conditioning)
        energy = fitted.free_energy
        if learned.q is not None and known.hyperparameters is not None:
            earlier = _all_data(changing.values())
            rows = sum(len(one.Z) for one in [*earlier, own, *observations_of(known)])
            assert cavity.hyperparameters is not None
            energy -= float(learned.q.kl_divergence(cavity.hyperparameters))
            few = rows <= EXACT_ROWS and local.parameters.size <= MOST_EXPECTED
            if self.is_gaussian and few:
                with suppress(NumericalError):  # at some ε that q holds for possible
                    all_of_it = self._free_energy(known, learned.q, [*earlier, own])
                    past = self._free_energy(known, cavity.hyperparameters, earlier)
                    energy = all_of_it - past
        return replace(fitted, free_energy=energy, ledger=changed)

    def _free_energy(
        self, known: Process, q: expfam.Gaussian, data: Sequence[DataObservations]
    ) -> float:
        """``E_q[log p(data | ε)] − KL(q ‖ p)`` in nats, where p is what is known without them."""
        assert known.hyperparameters is not None
        energy = -float(q.kl_divergence(known.hyperparameters))
        if not data:
            return energy
        size = len(np.asarray(q.mean))
        offsets = np.sqrt(size) * np.concatenate([np.eye(size), -np.eye(size)])
        values = []
        for epsilon in np.asarray(q.mean) + offsets @ np.transpose(q.scale):
            process = DenseProcess(PriorAt(self.local.prior, epsilon[None]))
            before = process.conditioned_on(observations_of(known))
            after = before.conditioned_on([*before.members, *data])
            values.append(after.log_normaliser - before.log_normaliser)
        return energy + float(np.mean(values))

    def _learned(
        self,
        known: Process,
        factors: dict[str, PseudoPointFactor],
        seed: int,
        conditioning: Conditioning,
        report: Report = lambda *_: None,
    ) -> tuple[Learned, dict[str, PseudoPointFactor]]:
        """ε from the data of factors, and these with their share of it and their sites at it.

        Where sites are held while ε is learned both take turns.
        """
        members, start = observations_of(known), None
        belief = Belief(self.local, known.hyperparameters, is_own=not members)
        for _ in range(TURNS):
            data, number = _all_data(factors.values()), self._near_rows.num_neighbors
            near = data_of(members), number, seed
            evidence = evidence_of(self.local, data, *near, self._at_rest)
            search = Search(evidence, belief, self.optimiser.most_iterations, report)
            learned = search.learned(start)
            factors = self._shared(known, learned.q, factors)
            if not self.is_gaussian:
                factors = self._swept(known, factors, learned.epsilon, conditioning)
            if not evidence.holds_sites:
                break
            start = learned.epsilon
        return learned, factors

    def learned_again(
        self, ledger: GPLedger, seed: int, conditioning: Conditioning
    ) -> tuple[GPLedger, np.ndarray] | None:
        """A ledger whose data have said anew what they say of ε, and ε [E]; None where there is
        nothing to learn, or nothing to learn from.
        """
        hyperparameters = self.local.hyperparameters
        if not (hyperparameters.remembers and hyperparameters.limits(self.local.parameters)):
            return None
        changing, known = _data_and_others(ledger)
        if not sum(map(_weight, changing.values())) > 0.0:
            return None
        learned, shared = self._learned(known, changing, seed, conditioning)
        return ledger.with_factors({**ledger.factors, **shared}), learned.epsilon

    def within(self, ledger: GPLedger, budget: int, epsilon: np.ndarray) -> GPLedger | None:
        """The ledger with at most so many data, without those that the others predict best; None
        where factors hold something else.

        What a datum says beside those near it is ``½ log(1 + v/r)`` nats, for the variance v that
        they leave and that of its noise r.
        """
        if not all(_is_data(one) for one in ledger.factors.values()):
            return None
        data = _all_data(ledger.factors.values())
        spare = sum(len(one.Z) for one in data) - max(1, budget - budget // 10)
        together = data[0] if len(data) == 1 else concatenated(data)
        near = self._near([together], epsilon)
        assert near.joined is not None
        gain = np.empty(near.size)
        for start in range(0, near.size, 1000):
            some = np.arange(start, min(start + 1000, near.size))
            variance = self._cavities(replace(near, number=10), some)[1]
            noise = np.repeat(near.joined.noise[:, some].T, near.joined.targets.shape[2], axis=1)
            gain[some] = np.log1p(variance / noise).sum(axis=1)
        stays, blocked = np.ones(near.size, bool), np.zeros(near.size, bool)
        beside = near.neighbors(near.joined.Z, min(11, near.size)).reshape(-1, near.size, 11)
        for row in np.argsort(gain):  # those on which a dropped one rests stay
            if spare > 0 and not blocked[row]:
                stays[row], spare = False, spare - 1
                blocked[beside[:, row].ravel()] = True

        def staying(one: DataObservations, some: slice) -> DataObservations | None:
            return one.rows(stays[some]) if stays[some].any() else None

        fewer = ledger.with_factors(_each_in_turn(ledger.factors, staying))
        return self.within(fewer, budget, epsilon) if spare > 0 else fewer

    def _conditioning_at(
        self, cavity: Process, new: PseudoPointFactor, epsilon: np.ndarray, seed: int
    ) -> Conditioning:
        """How to condition at a new ε: as the settings say, but where they leave that open
        (``dense_up_to``) on so many neighbours as predict random rows best, few, some or all.

        As many neighbours as ε is learned by are the ones that it fits. Where data are as no kernel
        says, further ones make predictions surer than they are right.
        """
        settings, members = self.conditioning, observations_of(cavity.times([new]))
        number = sum(len(one.Z) for one in members)
        data = data_of(members)
        if not isinstance(settings, NearestNeighbors) or len(data) < len(members):
            return settings
        few, some = settings.num_neighbors, settings.num_neighbors_pred
        if settings.dense_up_to == 0 or number <= max(EXACT_ROWS, FARTHER * some):
            return settings
        prior = PriorAt(self.local.prior, epsilon[None])
        (observed,) = prior.observed(data)
        near = NearestAt(prior, some).extended(observed, join=False)
        compared = np.random.default_rng(seed).permutation(number)[:COMPARED]
        rows = concatenated(data).rows(compared)

        def logs_given(size: int) -> np.ndarray:
            found = np.empty(len(compared))
            for part in np.array_split(np.arange(len(compared)), 1 + len(compared) // 64):
                moments = self._cavities(replace(near, number=size), compared[part])
                one = rows.rows(part)
                if self.is_gaussian:
                    found[part], _ = self._gaussian_logs(epsilon, one.Z, one.Y, *moments)
                else:
                    found[part] = self.local.log_densities(epsilon, one.Z, one.Y, *moments)
            return found

        logs = logs_given(some)
        if few < some and _is_better(logs_given(few), logs, rows.weights):
            return replace(settings, num_neighbors_pred=few, dense_up_to=few)
        if number <= NEAR_ROWS:
            return settings
        may_be_dense = number <= settings.dense_up_to
        if may_be_dense and _is_better(logs_given(FARTHER * some), logs, rows.weights):
            return settings
        return replace(settings, dense_up_to=min(NEAR_ROWS, settings.dense_up_to))

    @one_blas_thread()
    def surprise(self, process: Process, data: Data, conditioning: Conditioning) -> float:
        """The median of ``(y - E y)² / var y`` over a batch, over that of a normal distribution."""
        X, Y = data
        some = np.random.default_rng(0).permutation(len(X))[:SURPRISES]
        epsilon = self.local.location(process)
        moments = _marginals(self.at(epsilon, process, conditioning), X[some])
        if self.is_gaussian:
            _, errors = self._gaussian_logs(epsilon, X[some], Y[some], *moments)
        else:
            errors = self.local.standardised_errors(epsilon, X[some], Y[some], *moments)
        return float(np.median(errors) / MEDIAN_OF_SQUARE)

    def _observations(self, data: Data) -> DataObservations:
        X, Y = data
        L = 0 if self.is_gaussian else self.local.gp.num_latent
        precision = np.full((len(X), L), 1.0 / SAYS_NOTHING)
        zeros = np.zeros((len(X), L))
        return DataObservations(X, Y, np.ones(len(X)), zeros, precision, self.local.gp.num_groups)

    def _shared(
        self, known: Process, q: expfam.Gaussian | None, factors: dict[str, PseudoPointFactor]
    ) -> dict[str, PseudoPointFactor]:
        """The factors with what all of them say of ε, each a share by its data."""
        if q is None or known.hyperparameters is None:
            return dict(factors)
        together = (q / known.hyperparameters).as_arrays()
        weights = {name: _weight(one) for name, one in factors.items()}
        total = sum(weights.values())
        return {
            name: replace(one, hyperparameters=together ** (weights[name] / total))
            for name, one in factors.items()
        }

    # ---- Gaussian noise, and sites of other likelihoods ----

    def _with_sites(
        self,
        cavity: Process,
        factor: PseudoPointFactor,
        epsilon: np.ndarray,
        conditioning: Conditioning,
    ) -> Fitted:
        """The factor with its sites at ε, where it has some, and its free energy."""
        (own,) = factor.pseudo_observations
        assert isinstance(own, DataObservations)
        before = self.at(epsilon, cavity, conditioning)
        if self.is_gaussian:
            after = cavity.times([PseudoPointFactor((own,))])
            energy = self._gaussian_energy(before, epsilon, after, own, conditioning)
            return Fitted(factor, epsilon, energy - self.local.penalty(cavity, epsilon))
        if isinstance(before, NearestProcess) or before.size > NEAR_ROWS:
            near = self._near(observations_of(cavity), epsilon)
            own, energy, constant, clipped = self._joint_sites(near, own, epsilon)
        else:
            own, energy, constant, clipped = self._joint_sites(before, own, epsilon)
        factor = replace(factor, pseudo_observations=(own,), log_scale=constant)
        energy -= self.local.penalty(cavity, epsilon)
        return Fitted(factor, epsilon, energy, clipped_sites=clipped)

    def _gaussian_energy(
        self,
        before: DenseProcess | NearestProcess,
        epsilon: np.ndarray,
        after: Process,
        own: DataObservations,
        conditioning: Conditioning,
    ) -> float:
        """``log p(batch | earlier)`` at ε in nats; under near rows from a sample of the batch."""
        if isinstance(before, DenseProcess):
            old = before.log_normaliser
            process = self.at(epsilon, after, conditioning)
            if isinstance(process, DenseProcess):
                return process.log_normaliser - old
        some = np.random.default_rng(0).permutation(len(own.Z))[:EVIDENCE_ROWS]
        moments = _marginals(before, own.Z[some])
        logs, _ = self._gaussian_logs(epsilon, own.Z[some], own.Y[some], *moments)
        return float(np.sum(logs) * len(own.Z) / len(some))

    def _gaussian_logs(
        self,
        epsilon: np.ndarray,
        X: np.ndarray,
        Y: np.ndarray,
        mean: np.ndarray,
        variance: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """``log p(y_n)`` [N] in nats for moments [N, L] of f, and ``(y - E y)² / var y`` [N], a
        mean over the outputs that were observed.
        """
        v = variance + 1.0 / self.local.noise_precision(epsilon, X)
        squares = (Y - mean) ** 2 / v
        logs = -0.5 * (LOG_TWO_PI + np.log(v) + squares)
        return np.nansum(logs, axis=1), np.nanmean(squares, axis=1)

    def _joint_sites(
        self, before: DenseProcess | NearestAt, own: DataObservations, epsilon: np.ndarray
    ) -> tuple[DataObservations, float, float, int]:
        """The sites of data found together, part by part, each given all before it or what of that
        is near: the data, the bound in nats, the log constant, and the number of sites that were
        cut off.
        """
        parts, energy, constant, clipped, start = [], 0.0, 0.0, 0, 0
        while start < len(own.Z):
            part = own.rows(slice(start, start + _together(before, own.Z[start:])))
            given = before.around(part.Z) if isinstance(before, NearestAt) else before
            part, bound, cut = self._fixed_point(given, part, epsilon)
            after = given.extended(part)
            energy, clipped = energy + bound, clipped + cut
            constant += bound - (after.log_normaliser - given.log_normaliser)
            if isinstance(before, NearestAt):
                before = before.extended(before.prior.observed([part])[0], join=False)
            else:
                before = after
            parts.append(part)
            start += len(part.Z)
        joined = parts[0] if len(parts) == 1 else concatenated(parts)
        return joined, energy, constant, clipped

    def _fixed_point(
        self, before: DenseProcess, own: DataObservations, epsilon: np.ndarray
    ) -> tuple[DataObservations, float, int]:
        look, bound = self._look_and_bound(before, own, epsilon)
        start = None
        if own.precision.max() > 10.0 / SAYS_NOTHING:
            start = Sites(own.precision_mean, own.precision)
        size = len(own.Z), self.local.gp.num_latent
        rest, value = site_rules.best_rest(look, bound, start, size, self.optimiser.site_steps)
        return _with(own, rest.sites), value, rest.clipped

    def _look_and_bound(
        self, before: DenseProcess, own: DataObservations, epsilon: np.ndarray
    ) -> tuple[Callable[[Sites], Look], Callable[[Sites], float]]:
        """What data say of their sites under a dense cavity, and the bound by these."""
        local, X = self.local, own.Z
        V = before.project(X)
        K, prior_mean = before.covariance(X, V), before.mean(X, V)[:, :, 0]

        def look(sites: Sites) -> Look:
            moments = (part[None] for part in _posterior(K, prior_mean, sites)[:2])
            return _raised(local.look(epsilon[None], X, own.Y, *moments), own.weights)

        def bound(sites: Sites) -> float:
            mean, variance, kl = _posterior(K, prior_mean, sites)
            return float(own.weights @ local.expected_each(epsilon, X, own.Y, mean, variance)) - kl

        return look, bound

    def _at_rest(self, data: DataObservations, epsilon: np.ndarray) -> DataObservations:
        """Data alone whose sites, near those at another ε, go on to where they are at rest at ε."""
        prior = DenseProcess(PriorAt(self.local.prior, epsilon[None]))
        look, _ = self._look_and_bound(prior, data, epsilon)
        sites = Sites(data.precision_mean, data.precision)
        return _with(data, site_rules.rest(look, sites, self.optimiser.site_steps).sites)

    def _near(self, members: Sequence[Member], epsilon: np.ndarray) -> NearestAt:
        """Rows at one ε, none of them joined, whose observations may be changed."""
        prior = PriorAt(self.local.prior, epsilon[None])
        (observed,) = prior.observed(members)
        near = NearestAt(prior, self._near_rows.num_neighbors)
        return near.extended(observed, join=False)

    def _cavities(self, near: NearestAt, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance [B, L] of f at some rows, given the rows near each but for itself."""
        assert near.joined is not None
        X = near.joined.Z[rows]
        number = min(near.number, near.size - 1)
        if number == 0:
            return _marginals(near.far or DenseProcess(near.prior), X)

        def moments_of(some: slice) -> tuple[np.ndarray, np.ndarray]:
            found = near.neighbors(X[some], number + 1)
            is_self = found == rows[None, some, None]
            is_self[..., -1] |= ~is_self.any(axis=-1)
            others = found[~is_self].reshape(*found.shape[:2], number)
            return near.given(X[some], others)

        return near.by_pieces(moments_of, len(X))

    # ---- all sites again ----

    def _swept(
        self,
        known: Process,
        factors: dict[str, PseudoPointFactor],
        epsilon: np.ndarray,
        conditioning: Conditioning,
    ) -> dict[str, PseudoPointFactor]:
        """The factors with all of their sites at ε."""
        data = _all_data(factors.values())
        together = data[0] if len(data) == 1 else concatenated(data)
        base = self.at(epsilon, Process(known.pseudo_observations), conditioning)
        number = len(together.Z) + base.size
        if number <= JOINT_SITES and isinstance(base, DenseProcess):
            together, _, _ = self._fixed_point(base, together, epsilon)
        else:
            near = self._near([*observations_of(known), together], epsilon)
            together = self._sweep(near, together, epsilon)
        return _each_in_turn(factors, lambda _, some: together.rows(some))

    def _sweep(
        self, near: NearestAt, own: DataObservations, epsilon: np.ndarray
    ) -> DataObservations:
        """One sweep over the latest rows, block by block, each given the others near it: sites of
        rows that say the same correct the same error, and one by one would do so twice.
        """
        parts, first, start = [], near.size - len(own.Z), 0
        while start < len(own.Z):
            part = own.rows(slice(start, start + _together(near, own.Z[start:])))
            rows = first + start + np.arange(len(part.Z))
            part, _, _ = self._fixed_point(near.around(part.Z, rows), part, epsilon)
            near.replace_rows(rows, Rows.of(near.prior.observed([part])[0]))
            parts.append(part)
            start += len(part.Z)
        return parts[0] if len(parts) == 1 else concatenated(parts)


def _marginals(
    process: DenseProcess | NearestProcess, X: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance [N, L] of f(X) at the one ε of a process."""
    mean, variance = process.predict(X)
    return mean[0], variance[0]


def _together(process: DenseProcess | NearestAt, Z: np.ndarray) -> int:
    """Of how many data in front the sites are found together: of fewer where much is near them."""
    size = min(JOINT_SITES, len(Z))
    if isinstance(process, NearestAt):
        most = max(NEAR_ROWS, 2 * process.number)
        while size > 1 and len(process.near_any(Z[:size])) > most:
            size = (size + 1) // 2
    return size


def _posterior(
    K: np.ndarray, prior_mean: np.ndarray, sites: Sites
) -> tuple[np.ndarray, np.ndarray, float]:
    """q(f) at inputs that have a site each: mean and variance [N, L], and ``KL(q(f) ‖ p(f))`` in
    nats.

    With ``Q = (K + W⁻¹)⁻¹`` and ``a = Q (λ/w − m)`` q(f) has the mean ``m + K a`` and the
    covariance ``W⁻¹ Q K`` (Rasmussen & Williams 2006, eqs. 3.23 to 3.27). As sites may say next to
    nothing, only ``H = B⁻¹`` for ``B = I + W^½ K W^½`` is made, of which ``Q = W^½ H W^½``.

    :param K: Covariances [L, N, N] under the cavity.
    :param prior_mean: [L, N].
    :raises numpy.linalg.LinAlgError: if a covariance is not positive.
    """
    precision_mean, w = (part.T for part in sites)
    root = np.sqrt(w)
    L = stacks.cholesky(root[:, :, None] * K * root[:, None], 1.0, overwrite=True)
    H = stacks.inverse(L)
    a = root * stacks.times(H, (precision_mean - w * prior_mean) / root)
    shift = stacks.times(K, a)
    M = H * (root[:, None] / root[:, :, None])
    least = LEAST_VARIANCE * np.abs(np.einsum("lnn->ln", K))
    variance = np.maximum(np.einsum("lnm,lnm->ln", M, K), least)
    trace = np.einsum("lnn->", H) - a.size
    kl = 0.5 * (trace + np.sum(a * shift)) + stacks.half_logdet(L)
    return (prior_mean + shift).T, variance.T, float(kl)


def _is_better(logs: np.ndarray, others: np.ndarray, weights: np.ndarray) -> bool:
    """Whether log densities [N] of rows are larger in the mean, by so much that it is worthwhile
    and by two standard errors.
    """
    gain = weights * (logs - others) / weights.mean()
    error = gain.std() / np.sqrt(len(gain))
    return bool(gain.mean() > max(WORTHWHILE, 2.0 * error))


def _raised(look: Look, weights: np.ndarray) -> Look:
    """Sites of a likelihood that is raised to weights [N]."""
    if (weights == 1.0).all():
        return look
    column = weights[:, None]
    wanted, stationary = (
        Sites(column * one.precision_mean, column * one.precision)
        for one in (look.wanted, look.stationary)
    )
    return look._replace(wanted=wanted, stationary=stationary)


def _with(own: DataObservations, sites: Sites) -> DataObservations:
    return replace(own, precision_mean=sites.precision_mean, precision=sites.precision)


def _is_data(factor: PseudoPointFactor) -> bool:
    observations = factor.pseudo_observations
    return bool(observations) and all(isinstance(one, DataObservations) for one in observations)


def _data_and_others(ledger: GPLedger) -> tuple[dict[str, PseudoPointFactor], Process]:
    """The factors that hold data, and prior times all others."""
    data = {name: one for name, one in ledger.factors.items() if _is_data(one)}
    return data, ledger.prior.times(one for n, one in ledger.factors.items() if n not in data)


def _each_in_turn(
    factors: Mapping[str, PseudoPointFactor],
    change: Callable[[DataObservations, slice], DataObservations | None],
) -> dict[str, PseudoPointFactor]:
    """The factors with changed data, or without them.

    :param change: Is given data, and where they stand among those of all factors.
    """
    changed, start = {}, 0
    for name, factor in factors.items():
        parts = []
        for one in data_of(factor.pseudo_observations):
            parts.append(change(one, slice(start, start + len(one.Z))))
            start += len(one.Z)
        some = tuple(one for one in parts if one is not None)
        changed[name] = replace(factor, pseudo_observations=some)
    return changed


def _all_data(factors: Collection[PseudoPointFactor]) -> list[DataObservations]:
    return [one for factor in factors for one in data_of(factor.pseudo_observations)]


def _weight(factor: PseudoPointFactor) -> float:
    return float(sum(one.weights.sum() for one in data_of(factor.pseudo_observations)))
