"""Fits one batch under a cavity process: the local update of streaming Gaussian processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from streaming_gp import expfam
from streaming_gp.errors import NumericalError
from streaming_gp.gp.fit.bounds import LocalBound
from streaming_gp.gp.fit.data import DataFits
from streaming_gp.gp.fit.fitted import Batch, Data, Fitted
from streaming_gp.gp.fit.frozen import FrozenBound, FrozenObjective, FrozenPlaces
from streaming_gp.gp.fit.local_model import LocalModel
from streaming_gp.gp.fit.objective import NO_SITES, Objective, Problem
from streaming_gp.gp.fit.optimiser import LocalOptimiser, with_larger_nuggets
from streaming_gp.gp.fit.points import NUGGET, Candidates, Inputs, Place, Places, spread
from streaming_gp.gp.fit.projection import GPLedger, Projection, best_places, thinned
from streaming_gp.gp.fit.solve import OneEpsilon, Solution, Solver, Summary
from streaming_gp.gp.fit.warn import Warnings
from streaming_gp.gp.process.dense import DenseProcess
from streaming_gp.gp.process.nearest import Conditioning, data_of
from streaming_gp.gp.process.observations import DataObservations, Observations, PseudoObservations
from streaming_gp.gp.process.prior import PriorAt
from streaming_gp.gp.process.process import Process, PseudoPointFactor, observations_of, plain
from streaming_gp.numerics import triangular
from streaming_gp.numerics.threads import blas_threads_for, one_blas_thread

MOST_AT_ONCE = 1000
"""Of very many points a part is merged after another."""
MOST_MOVING = 300
"""So many points move when others are projected onto them; of more, each matters little."""
MOST_POINTS = 300
"""The free energy of the factor that is kept is computed as long as so few points are held."""


@dataclass(frozen=True, eq=False)
class Start:
    """A batch under its cavity at one ε, and where its points start.

    :param places: The cavity; of points that take over what it is conditioned on, the prior.
    :param data: The batch's inputs under it.
    :param Z: The points [M, D].
    :param nugget: The variance of their white noise.
    :param shared_nugget: The part of it that earlier points have as well.
    :param unit: The unit in which the points move [D].
    """

    places: Places | FrozenPlaces
    data: Inputs
    Z: np.ndarray
    nugget: float
    shared_nugget: float
    unit: np.ndarray


class Fitter:
    """Local fits of one model under one bound.

    :param conditioning: How the process is conditioned on points that are observed one by one.
    """

    def __init__(
        self,
        bound: LocalBound,
        local: LocalModel,
        optimiser: LocalOptimiser,
        conditioning: Conditioning,
    ) -> None:
        self.bound = bound
        self.local = local
        self.optimiser = optimiser
        self.frozen = FrozenObjective(bound, local) if isinstance(bound, FrozenBound) else None
        self.objective = self.frozen or Objective(bound, local)
        self.one_epsilon = OneEpsilon(bound, local, optimiser.site_steps)
        self.warnings = Warnings(local)
        self.data = DataFits(local, optimiser, conditioning)
        self._last: tuple[bytes, DenseProcess] | None = None

    # ---- processes at one ε ----

    def at(self, epsilon: np.ndarray, process: Process) -> DenseProcess:
        """A process at ε [E]; what it has in common with the one before is not computed again.

        :raises NumericalError: if the covariance of its pseudo-observations is not positive.
        """
        token = epsilon.tobytes() + self.local.fixed_values()
        if self._last is None or self._last[0] != token:
            self._last = token, DenseProcess(PriorAt(self.local.prior, epsilon[None]))
        with blas_threads_for(process.num_pseudo_points):
            self._last = token, self._last[1].conditioned_on(observations_of(process))
        return self._last[1]

    def log_normaliser(self, epsilon: np.ndarray, process: Process) -> float:
        """The log normaliser of a process at ε [E], and its own log scale, in nats.

        A process that rests on frozen points is normalised.

        :raises NumericalError: as :meth:`at`.
        """
        compact = process.compact
        if self.frozen is not None:
            return compact.log_scale
        return compact.log_scale + self.at(epsilon, compact).log_normaliser

    # ---- fits ----

    @one_blas_thread()
    def fit(
        self,
        cavity: Process,
        batch: Batch,
        place: Place,
        at: Observations | None = None,
        move: bool = True,
    ) -> Fitted:
        """Maximise the local free energy of a batch under ``cavity``, on points of its own.

        A batch that learns nothing has its factor at the present ε.

        :param cavity: Prior times all other factors.
        :param batch: The batch.
        :param place: Chooses where its points start.
        :param at: The points to start from instead, if the batch has had some before.
        :param move: Whether the points move from there.
        :raises NumericalError: if the bound stays non-finite however large the nugget.
        """
        start = self.start(cavity, batch, place, at)

        def attempt(start: Start) -> Fitted:
            solution = self._solution(cavity, batch, start, move)
            summary = self._summary(cavity, batch, start, solution)
            return self._fitted(cavity, cavity, batch, solution, summary)

        fitted = with_larger_nuggets(attempt, start)
        self._warn(batch, fitted)
        return fitted

    @one_blas_thread()
    def fit_onto_shared(
        self,
        ledger: GPLedger,
        cavity: Process,
        cavity_in: Callable[[GPLedger], Process],
        batch: Batch,
        place: Place,
        at: Observations | None,
        move: bool,
    ) -> Fitted:
        """Fit a batch and all other pseudo-observations on one set of points (PVI 2018, app. C.3).

        The others enter the bound as observations ``s ≈ Rᵀf(Z_a)``, and what they said under the
        prior is taken off again, so that the free energy is that of this batch.

        :param ledger: All factors.
        :param cavity: Prior times all other factors.
        :param cavity_in: Gives that product in a ledger whose factors are on the new points.
        :returns: also the ledger on the new points.
        """
        start, earlier = self.start(cavity, batch, place, at, takes_over=True), plain(cavity)

        def attempt(start: Start) -> Fitted:
            solution = self._solution(cavity, batch, start, move, takes_over=True)
            epsilon, prior = solution.epsilon, PriorAt(self.local.prior, solution.epsilon[None])
            onto = Projection(prior, solution.Z, start.nugget, start.shared_nugget)
            data = Places(DenseProcess(prior)).inputs(batch.data[0])
            seen = self.one_epsilon.on_shared_points(onto, data, earlier, epsilon)
            sites = solution.sites if batch.learn else None
            summary = self.one_epsilon.summary(seen, batch.data, epsilon, sites)
            if summary.bound is not None:
                past = self.at(epsilon, Process(earlier)).log_normaliser
                summary = summary._replace(bound=summary.bound - past)
            moved = onto.of_ledger(ledger)
            fitted = self._fitted(cavity_in(moved), cavity, batch, solution, summary)
            return replace(fitted, ledger=moved)

        fitted = with_larger_nuggets(attempt, start)
        self._warn(batch, fitted)
        return fitted

    # ---- fewer points ----

    @one_blas_thread()
    def merged(
        self, factor: PseudoPointFactor, epsilon: np.ndarray, number: int, move: bool
    ) -> PseudoPointFactor:
        """A factor on ``number`` of its points, projected under the prior at ε [E].

        :param move: Whether these then move to where still less is lost, if they are not many.
        """
        prior = PriorAt(self.local.prior, epsilon[None])
        if len(factor.Z) > max(4 * number, MOST_AT_ONCE):  # part by part, as it costs the cube
            first, *others = parts_of(factor, max(number, MOST_AT_ONCE // 4))
            for part in others:
                first = self.merged(first * part, epsilon, number, False)
            factor = first
        everything = observations_of(Process(factor.pseudo_observations))
        (observed,) = prior.observed(everything)
        least = NUGGET * float(np.mean(prior.variance(factor.Z[:MOST_POINTS])))
        observed = tuple(_no_surer(one, least**-0.5) for one in observed)
        process = Process(observed, None, factor.log_scale + prior.constant(everything)).compact
        members, of_epsilon = plain(process), factor.hyperparameters
        factor = PseudoPointFactor(members, of_epsilon, process.log_scale)
        said, constant = thinned(prior, members, number)
        fewer = PseudoPointFactor((said,), of_epsilon, factor.log_scale + constant)
        iterations = self.optimiser.projection_iterations
        if move and number <= MOST_MOVING and iterations > 0:
            with suppress(NumericalError):  # where rounding forbids it the points stay
                Z = best_places(prior, members, said, self.optimiser, iterations)
                fewer = Projection(prior, Z, said.nugget).of_factor(factor)
        self.warnings.merge(factor, fewer)
        return fewer

    # ---- warnings ----

    def warn_of_first(self, prior: Process, batches: Iterable[Data]) -> None:
        """Warn if the first data are far from what a distribution over ε expects."""
        if prior.hyperparameters is not None and self.local.parameters.size:
            for X, Y in batches:
                self.warnings.first_data(prior.hyperparameters, X, Y)

    def _warn(self, batch: Batch, fitted: Fitted) -> None:
        number = len(fitted.factor.Z)
        self.warnings.points(batch.name, number, fitted.shown_error, fitted.unexplained)
        if batch.learn and self.local.hyperparameters.limits(self.local.parameters):
            self.warnings.noise(batch.name, number, batch.data[0], fitted.epsilon)

    # ---- parts of a fit ----

    def start(
        self,
        cavity: Process,
        batch: Batch,
        place: Place,
        at: Observations | None = None,
        takes_over: bool = False,
    ) -> Start:
        """Where a batch's points start, under its cavity at the centre of q(ε).

        :raises NumericalError: if the cavity covariance is not finite.
        """
        epsilon, (X, Y) = self.local.location(cavity), batch.data
        prior = PriorAt(self.local.prior, epsilon[None])
        places: Places | FrozenPlaces
        members = cavity.compact.pseudo_observations
        takes_over = takes_over or self.bound.has_shared_points
        if takes_over:
            places = Places(DenseProcess(prior))
        elif self.frozen is not None:
            places = FrozenPlaces(prior, self.local.gp.stack(members, X.shape[1]))
        else:
            places = Places(self.at(epsilon, Process(plain(cavity))))
        data = places.inputs(X)
        if at is not None and at.nugget > 0.0:
            shared = at.nugget if takes_over else 0.0
            return Start(places, data, at.Z, at.nugget, shared, spread(X))
        inputs = data
        if takes_over:
            inputs = places.inputs(np.concatenate([*(one.Z for one in members), X]))
        variance = np.mean(inputs.variance, axis=0)
        if not np.isfinite(variance).all():
            raise NumericalError("the cavity covariance at the batch is not finite")

        def between(one: Inputs, other: Inputs) -> np.ndarray:  # groups have points in common
            return np.asarray(np.mean(places.covariance(one, other), axis=0))

        candidates = Candidates(
            inputs.X,
            variance,
            lambda some: between(inputs, inputs.rows(some)),
            lambda some: between(inputs.rows(some), inputs.rows(some)),
            partial(self.one_epsilon.site_weights, data, Y, epsilon),
            len(inputs.X) - len(X),
        )
        nugget = float(NUGGET * np.mean(variance))
        return Start(places, data, place(candidates), nugget, 0.0, spread(inputs.X))

    def _solution(
        self, cavity: Process, batch: Batch, start: Start, move: bool, takes_over: bool = False
    ) -> Solution:
        """The optimum; of a batch that learns nothing, the start."""
        problem = self.problem(cavity, batch, start, takes_over)
        solver = Solver(self.objective, self.local, self.optimiser, problem)
        if batch.learn:
            return solver.solve(batch.report, move)
        if self.frozen is None:
            hyperparameters = cavity.hyperparameters
            nothing, epsilon = np.zeros(start.Z.size), problem.location
            return Solution(problem, nothing, nothing, NO_SITES, hyperparameters, epsilon, np.nan)
        return replace(solver.at_rest(), q=cavity.hyperparameters)  # bit for bit

    def problem(
        self, cavity: Process, batch: Batch, start: Start, takes_over: bool = False
    ) -> Problem:
        """A batch under its cavity, and the values of ε at which it is asked for."""
        hyperparameters, parameters = self.local.hyperparameters, self.local.parameters
        location, scale = hyperparameters.location_scale(cavity.hyperparameters, parameters)
        noise = np.zeros((1, parameters.size))
        if batch.learn:
            full = self.optimiser.is_full_effort(cavity.num_pseudo_points)
            noise = hyperparameters.noise(parameters.size, batch.seed, full)
        earlier = cavity.compact.pseudo_observations
        return Problem(
            *batch.data, earlier, location, scale, noise, start.Z, start.unit, start.nugget,
            takes_over, start.shared_nugget,
        )  # fmt: skip

    def _summary(self, cavity: Process, batch: Batch, start: Start, solution: Solution) -> Summary:
        """A batch as observations of points of its own."""
        if self.frozen is not None:
            given = solution.offsets, solution.variables, solution.problem, solution.sites
            frozen, unexplained = self.frozen.pseudo_observations(*given)
            return Summary(frozen, None, solution.clipped_sites, unexplained)
        one, epsilon, places, data = self.one_epsilon, solution.epsilon, start.places, start.data
        if batch.learn:
            places = Places(self.at(epsilon, Process(plain(cavity))))
            data = places.inputs(batch.data[0])
        assert isinstance(places, Places)
        seen = one.on_own_points(places, data, solution.Z, start.nugget, epsilon)
        return one.summary(seen, batch.data, epsilon, solution.sites if batch.learn else None)

    def _fitted(
        self,
        cavity: Process,
        old_cavity: Process,
        batch: Batch,
        solution: Solution,
        summary: Summary,
    ) -> Fitted:
        """The factor, and what was done.

        :param cavity: Prior times all other factors, on the points that they are on now.
        :param old_cavity: That product before it was projected onto them.
        :raises NumericalError: as :meth:`at`.
        """
        epsilon, free_energy = solution.epsilon, solution.free_energy
        clipped = solution.clipped_sites
        if summary.bound is not None:
            free_energy = summary.bound - self.local.penalty(old_cavity, epsilon)
            clipped = summary.clipped_sites
        factor = PseudoPointFactor(
            (summary.observations,), _factor_of_epsilon(solution, old_cavity)
        )
        kept = self._kept(old_cavity, cavity.times([factor]), batch)
        free_energy = free_energy if kept is None else kept
        # a constant makes log normalisers add up to the free energy
        before = self.log_normaliser(epsilon, Process(old_cavity.pseudo_observations))
        members = *cavity.pseudo_observations, *factor.pseudo_observations
        gained = free_energy + before - self.log_normaliser(epsilon, Process(members))
        return Fitted(
            replace(factor, log_scale=old_cavity.log_scale + gained - cavity.log_scale),
            epsilon, free_energy, solution.iterations, summary.observations.nugget, clipped,
            summary.unexplained, summary.shown_error,
        )  # fmt: skip

    def _kept(self, cavity: Process, after: Process, batch: Batch) -> float | None:
        """The free energy of the factor that is kept, which is the same for all ε, in nats; None
        where it is not asked for.

        A fit's own is as large or larger: it knows a better factor for every ε. Where very many
        points are held it is reported all the same, as the other would cost more than the fit.
        """
        number = max(cavity.num_pseudo_points, after.num_pseudo_points)
        is_point = after.hyperparameters is None or cavity.hyperparameters is None
        if not (self.bound.is_evidence_bound and batch.learn) or number > MOST_POINTS or is_point:
            return None
        return kept_free_energy(self.local, cavity, after, batch.data, batch.seed)


def _no_surer(one: PseudoObservations, root: float) -> PseudoObservations:
    """Observations of points one by one, none with less noise than points have that are merged."""
    if not one.is_diagonal or one.precision_factor.max(initial=0.0) <= root:
        return one
    share = np.minimum(1.0, root / np.maximum(one.precision_factor, root))
    return replace(
        one,
        precision_factor=share * one.precision_factor,
        pseudo_targets=share[:, :, None] * one.pseudo_targets,
    )


def parts_of(factor: PseudoPointFactor, size: int) -> Iterator[PseudoPointFactor]:
    """A factor as a product of others that hold at most so many data each."""
    observations, of_epsilon = factor.pseudo_observations, factor.hyperparameters
    others = tuple(one for one in observations if not isinstance(one, DataObservations))
    yield replace(factor, pseudo_observations=others)
    nothing = None if of_epsilon is None else of_epsilon**0.0
    for one in data_of(observations):
        for start in range(0, len(one.Z), size):
            yield PseudoPointFactor((one.rows(slice(start, start + size)),), nothing)


def _factor_of_epsilon(solution: Solution, cavity: Process) -> expfam.Factor | None:
    """``q(ε)`` over that of the cavity; None where ε is a point."""
    q, q_cavity = solution.q, cavity.hyperparameters
    if q is None or q_cavity is None:
        return None
    return cavity.unit_of_epsilon if q is q_cavity else (q / q_cavity).as_arrays()


def kept_free_energy(
    local: LocalModel,
    before: Process,
    after: Process,
    data: tuple[np.ndarray, np.ndarray],
    seed: int,
) -> float:
    """The local free energy of the factor that is kept of a batch, in nats, the same for all ε.

    A fit may know a better q(f | ε) at every ε than one factor can hold. What is kept is
    ``q(f, ε) = q(ε) p(f | ε) Π t'(u') / Z'(ε)``, in the place of ``p(f | ε) Π t(u) / Z(ε)`` before;
    and with all inner expectations over q(f | ε) its free energy is

        ``F = E_q(ε)[E log p(y | f, ε) + E log Π t(u) − log Z(ε) − E log Π t'(u') + log Z'(ε)]
        − KL(q(ε) ‖ q_cav(ε))``.

    Pseudo-observations that stand on both sides leave it as it is.

    :param before: Prior times all other factors, on the points that they were on.
    :param after: Prior times all factors.
    :param data: X [N, D] and Y [N, P].
    :param seed: The seed of the values of ε.
    """
    q, q_before = after.hyperparameters, before.hyperparameters
    assert q is not None
    assert q_before is not None
    X, Y = data
    mean = np.asarray(q.mean)
    draws = mean + local.hyperparameters.noise(len(mean), seed) @ np.transpose(q.scale)
    known, all_known = plain(before), plain(after)
    old = DenseProcess(PriorAt(local.prior, draws)).conditioned_on(known)
    new = old.conditioned_on(all_known)
    total = np.sum(local.expected(draws, X, Y, *new.predict(X))[0])
    total += new.log_normaliser - old.log_normaliser
    both = {id(one) for one in known} & {id(one) for one in all_known}
    for sign, members in ((1.0, known), (-1.0, all_known)):
        apart = (one for one in members if id(one) not in both)
        total += sign * sum(_expected_log(one, new) for one in apart)
    return float(total) / len(draws) - float(q.kl_divergence(q_before))


def _expected_log(one: PseudoObservations, process: DenseProcess) -> float:
    """``E log t(u)`` of pseudo-observations under a process, over all groups and values of ε."""
    V = process.project(one.Z)
    K = process.prior.covariance(one.Z)
    last = process.rows[-1].observed[0] if process.rows else ()
    starts = np.cumsum([0, *(len(one.Z) for one in last)])[:-1]
    for start, other in zip(starts, last, strict=True):
        if one.variables == other.variables:  # the points' own white noise is known as well
            V = V + one.nugget * _projected_noise(process, start, other)
            break
    covariance = K - np.swapaxes(V, 1, 2) @ V
    mean = process.mean(one.Z, V)
    total = 0.0
    for group, m, S in zip(process.prior.groups, mean, covariance, strict=True):
        R, s = one.square[group], one.pseudo_targets[group]
        trace = np.sum(R * (S @ R)) + one.nugget * np.sum(R**2)
        total -= 0.5 * float(np.sum((s - R.T @ m) ** 2) + m.shape[1] * trace)
    return total


def _projected_noise(process: DenseProcess, start: int, one: PseudoObservations) -> np.ndarray:
    """A projection on a member of the last row: the part of its white noise [S G, R, M]."""
    row = process.rows[-1]
    added = np.zeros((len(process.prior.groups), process.size, len(one.Z)))
    for group, L, out in zip(process.prior.groups, row.chol, added, strict=True):
        right = np.zeros((row.size, len(one.Z)))
        right[start : start + len(one.Z)] = one.square[group].T
        out[process.size - row.size :] = triangular.solve(L, right)
    return added
