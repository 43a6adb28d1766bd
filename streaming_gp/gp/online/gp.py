"""One point at a time: the object that a control loop asks and tells."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from streaming_gp.errors import ChangeWarning, InvalidDataError
from streaming_gp.gp.fit.local_model import LocalModel
from streaming_gp.gp.online.change import Alarm, Watch
from streaming_gp.gp.online.state import (
    OnlinePrior,
    OnlineState,
    Projection,
    forget,
    log_densities_of,
    observe,
    own_observations,
    project,
    settle,
)
from streaming_gp.gp.process.dense import DenseProcess
from streaming_gp.gp.process.observations import PseudoObservations
from streaming_gp.gp.process.prior import PriorAt
from streaming_gp.gp.process.process import Process, PseudoPointFactor, observations_of
from streaming_gp.gp.strategies import MERGED
from streaming_gp.inputs import (
    as_float64,
    as_real_array,
    require_positive,
    require_positive_integer,
    require_probability,
)
from streaming_gp.numerics.threads import one_blas_thread

if TYPE_CHECKING:
    from streaming_gp.gp.model import StreamingGP

FEW = 2
"""Observations that came in while a state was prepared, and may be learned while others wait."""
FALSE_ALARMS = 1e-6
"""The probability of a false alarm at each observation."""

Part: TypeAlias = tuple[OnlinePrior, OnlineState]
"""Outputs that share a kernel."""
_Event: TypeAlias = tuple[np.ndarray, np.ndarray] | Alarm
"""What happened while states were prepared: an observation (x, y), or a change."""


class OnlineGP:
    """A streaming Gaussian process at one value of ε, which learns one point at a time.

    Cost and memory of a step depend on the budget alone, and every step costs the same. Any number
    of threads may use one object. It is made by :meth:`streaming_gp.StreamingGP.online`.

    Where observations say that the world has changed, it forgets as much as they say, and gives an
    :attr:`alarm`.

    :param model: The model that it starts from, and that can take back what it learns.
    :param budget: The largest number of points that it holds.
    :param memory: The number of observations in which the relevance of a point falls e-fold; by
        default the budget.
    :param false_alarms: The probability of a false alarm at each observation, as far as the
        kernel is right; zero for no alarms.
    :param on_alarm: Called with each alarm; by default the first one is a warning.
    """

    def __init__(
        self,
        model: StreamingGP,
        budget: int = 300,
        memory: float | None = None,
        false_alarms: float = FALSE_ALARMS,
        on_alarm: Callable[[Alarm], object] | None = None,
    ) -> None:
        require_positive_integer("budget", budget)
        memory = budget if memory is None else memory
        require_positive("memory", memory)
        require_probability("false_alarms", false_alarms)
        # It alone owns the states, whose arrays an update writes over while it holds the lock. The
        # projections are of the newest input that was asked for: a loop asks there, then tells.
        self._lock = threading.Condition()
        self._model: StreamingGP | None = model
        self._rate, self._on_alarm = float(false_alarms), on_alarm
        self._missed: list[_Event] | None = None  # by coming states
        self._alarm: Alarm | None = None
        self._count = 0
        self._take(model.online_parts(int(budget), float(memory)))

    def _take(self, parts: tuple[Part, ...], watches: list[Watch] | None = None) -> None:
        self._parts = parts
        self._at: list[Projection] | None = None
        self._watches = watches or [Watch(prior, state, self._rate) for prior, state in parts]
        self._num_outputs = sum(len(prior.columns) for prior, _ in parts)

    @property
    def model(self) -> StreamingGP | None:
        """The model that it started from last; None where it has left that behind."""
        return self._model

    @property
    def budget(self) -> int:
        """The largest number of points that it holds."""
        return self._parts[0][0].budget

    @property
    def num_points(self) -> int:
        """The number of points that it holds now; where outputs have kernels of their own the most
        that one has.
        """
        return max(int(np.count_nonzero(state.is_used)) for _, state in self._parts)

    @property
    def log_evidence(self) -> float:
        """Sum of ``log p(y | past)`` over what no model has taken over yet, in nats."""
        return sum(state.log_evidence for _, state in self._parts)

    @property
    def alarm(self) -> Alarm | None:
        """The newest change that was noticed, None if there was none."""
        return self._alarm

    def predict(self, x: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance [P] of f(x), in units of f and their squares.

        :param x: The input [D].
        :raises InvalidDataError: if it is not a finite vector of D numbers.
        :raises NumericalError: if they are so large that covariances overflow, or lose their digits
            as the kernel does not depend on differences alone.
        """
        with self._lock, one_blas_thread():
            projections = self._project(x)
            if len(projections) == 1:
                return projections[0].mean.copy(), self._watches[0].variance(projections[0])
            mean, variance = np.empty(self._num_outputs), np.empty(self._num_outputs)
            parts = zip(self._parts, self._watches, projections, strict=True)
            for (prior, _), watch, at in parts:
                mean[prior.columns], variance[prior.columns] = at.mean, watch.variance(at)
            return mean, variance

    def update(self, x: Any, y: Any) -> None:
        """Learn from one observation. If it is refused, nothing has changed.

        :param x: The input [D].
        :param y: The observation [P], or a number where P = 1.
        :raises InvalidDataError: if one is not a finite vector of the right length.
        :raises NumericalError: if they are so large that covariances or densities overflow.
        """
        with self._lock, one_blas_thread():
            y = _vector("y", _numbers("y", y).reshape(-1), self._num_outputs)
            projections, parts = self._project(x), self._parts
            densities = [
                log_densities_of(prior, at, y[prior.columns])
                for (prior, _), at in zip(parts, projections, strict=True)
            ]
            self._count += 1
            alarms = self._changes(projections, y)
            if alarms:
                self._at = None
                projections = self._project(x)
            for (prior, state), at, own in zip(parts, projections, densities, strict=True):
                observe(prior, state, at, y[prior.columns])
                state.log_evidence += float(own.sum())
            self._at = None
            if self._missed is not None:
                self._missed += [*alarms, (projections[0].x, y.copy())]
        for alarm in alarms:
            self._tell(alarm)

    def _project(self, x: Any) -> list[Projection]:
        x = _vector("x", x, self._parts[0][1].Z.shape[1])
        if self._at is None or self._at[0].x.tobytes() != x.tobytes():
            self._at = [project(prior, state, x) for prior, state in self._parts]
        return self._at

    def _changes(self, projections: list[Projection], y: np.ndarray) -> list[Alarm]:
        """What an observation says of changes; what has changed is forgotten."""
        alarms = []
        watched = zip(self._parts, self._watches, projections, strict=True)
        for (prior, state), watch, at in watched:
            found = watch.see(at, y[prior.columns])
            if found is not None:
                column, size = found
                forget(prior, state, int(prior.group[column]), size)
                alarms.append(Alarm(self._count, int(prior.columns[column]), size))
        return alarms

    def _tell(self, alarm: Alarm) -> None:
        is_first, self._alarm = self._alarm is None, alarm
        if self._on_alarm is not None:
            self._on_alarm(alarm)
        elif is_first:
            warnings.warn(
                f"output {alarm.output} has changed after {alarm.observation} observations, by "
                f"{alarm.size:.2g} of the prior's variance: so much of what was known of it is "
                "forgotten. Further changes are in online.alarm, without a warning",
                ChangeWarning,
                stacklevel=3,
            )

    # ---- with a model ----

    def adopt(self, model: StreamingGP | OnlineGP, keep: bool = True) -> None:
        """Go on from what a model knows now, at its present ε, without a pause in the loop.

        Observations that come meanwhile are learned by both; then one replaces the other.

        :param model: The model, or another that continues its stream; or an object that one made,
            also in another process, as objects can be pickled and leave their model behind.
        :param keep: Whether what was learned one point at a time, and not taken over by a model,
            stays, as the pseudo-observations that it is now. False where the model has learned from
            the same data, and always to go on from an object.
        :raises InvalidDataError: as :meth:`streaming_gp.StreamingGP.online`.
        """
        if keep and isinstance(model, OnlineGP):
            raise InvalidDataError(
                "an object holds all that it learned already: wanted keep=False to go on from it"
            )

        def build(parts: tuple[Part, ...]) -> tuple[Part, ...]:
            own = [own_observations(*part) for part in parts] if keep else None
            if isinstance(model, OnlineGP):
                new = model._copies()
            else:
                new = model.online_parts(self.budget, parts[0][0].memory, own)
            before, after = (
                (some[0][1].Z.shape[1], sum(len(prior.columns) for prior, _ in some))
                for some in (parts, new)
            )
            if before != after:
                raise InvalidDataError(
                    f"wanted a model of {before[0]} inputs and {before[1]} outputs, got {after[0]} "
                    f"and {after[1]}"
                )
            if keep:
                for (_, state), (_, old) in zip(new, parts, strict=True):
                    state.log_evidence = old.log_evidence
            return new

        self._exchange(build)
        self._model = model.model if isinstance(model, OnlineGP) else model

    def hand_over(self, commit: Callable[[tuple[PseudoObservations, ...], float], None]) -> bool:
        """Give away what was learned since the last time, which counts as known from then on.

        :param commit: Takes it, and its log evidence in nats. If it raises, nothing has changed.
        :returns: whether anything was learned.
        """
        observations: tuple[PseudoObservations, ...] = ()

        def build(parts: tuple[Part, ...]) -> tuple[Part, ...]:
            nonlocal observations
            own = [own_observations(*part) for part in parts]
            observations = _of_all_groups([prior.columns for prior, _ in parts], own)
            if observations:
                if any((state.kept < 1.0).any() for _, state in parts):
                    warnings.warn(
                        "since this object left its model the function has changed, and what the "
                        "model's factors say of it is not forgotten: fade or remove them, or begin "
                        "a new model",
                        ChangeWarning,
                        stacklevel=5,
                    )
                commit(observations, sum(state.log_evidence for _, state in parts))
                for _, state in parts:
                    settle(state)
            return parts

        self._exchange(build, is_same=True)
        return bool(observations)

    def _copies(self) -> tuple[Part, ...]:
        with self._lock:
            return tuple((prior, state.copy()) for prior, state in self._parts)

    def __getstate__(self) -> dict[str, Any]:
        """Without the model, and who listens to alarms."""
        nobody = dict.fromkeys(("_model", "_on_alarm", "_at", "_missed"))
        with self._lock:
            values = {**vars(self), "_parts": self._copies(), **nobody}
        return {name: value for name, value in values.items() if name != "_lock"}

    def __setstate__(self, values: dict[str, Any]) -> None:
        vars(self).update(values, _lock=threading.Condition())

    def _exchange(
        self, build: Callable[[tuple[Part, ...]], tuple[Part, ...]], is_same: bool = False
    ) -> None:
        """Replace the states by others that are built from copies of them, while others go on.

        One exchange waits for another. If ``build`` raises, nothing has changed.

        :param is_same: Whether the predictions are the same.
        """
        with self._lock:
            self._lock.wait_for(lambda: self._missed is None)
            parts, self._missed = self._copies(), []
        try:
            parts = build(parts)
            is_done = False
            while not is_done:
                with self._lock:
                    missed, self._missed = self._missed, []
                    is_done = len(missed) <= FEW
                    if is_done:
                        _replay(parts, missed)
                        self._take(parts, self._watches if is_same else None)
                if not is_done:
                    _replay(parts, missed)
        finally:
            with self._lock:
                self._missed = None
                self._lock.notify_all()


def _replay(parts: tuple[Part, ...], events: Iterable[_Event]) -> None:
    """Learn and forget what happened meanwhile."""
    for event in events:
        for prior, state in parts:
            if not isinstance(event, Alarm):
                x, y = event
                at = project(prior, state, x)
                density = log_densities_of(prior, at, y[prior.columns])
                observe(prior, state, at, y[prior.columns])
                state.log_evidence += float(density.sum())
            elif event.output in prior.columns:
                place = int(np.flatnonzero(prior.columns == event.output)[0])
                forget(prior, state, int(prior.group[place]), event.size)


def _of_all_groups(
    columns: Sequence[np.ndarray], own: Sequence[PseudoObservations | None]
) -> tuple[PseudoObservations, ...]:
    """Observations of the parts as observations of all groups of the model, of which those of other
    parts say nothing.

    :param columns: Those of each part.
    """
    if len(own) == 1:
        return () if own[0] is None else (own[0],)
    found, number = [], sum(len(some) for some in columns)
    for mine, one in zip(columns, own, strict=True):
        if one is not None:
            R = np.zeros((number, *one.precision_factor.shape[1:]))
            targets = np.zeros((number, *one.pseudo_targets.shape[1:]))
            R[mine], targets[mine] = one.precision_factor, one.pseudo_targets
            found.append(replace(one, precision_factor=R, pseudo_targets=targets))
    return tuple(found)


def refuse_foreign(online: object, model: StreamingGP, name: str, factors: Iterable[str]) -> None:
    """Refuse an object of another model, and a name that a factor has already.

    :raises InvalidDataError: naming what came and what was wanted.
    """
    if not isinstance(online, OnlineGP):
        raise InvalidDataError(f"wanted an online object, got a {type(online).__name__}")
    if online.model is not model:
        raise InvalidDataError("wanted an online object of this model, got another model's")
    if name in (*factors, MERGED):
        raise InvalidDataError(f"the name {name!r} is taken: the ledger has {[*factors]}")


def factor_of(
    local: LocalModel,
    epsilon: np.ndarray,
    process: Process,
    observations: tuple[PseudoObservations, ...],
    log_evidence: float,
) -> PseudoPointFactor:
    """Observations as a factor that says nothing of ε, whose constant makes the log normaliser of a
    process grow by their log evidence.

    :param epsilon: ε [E].
    :param process: Prior times the factors before.
    :param log_evidence: ``log p(y | past)`` of what was observed, in nats.
    """
    before = process.compact
    after = Process((*process.pseudo_observations, *observations)).compact
    prior = PriorAt(local.prior, epsilon[None])
    dense = DenseProcess(prior).conditioned_on(observations_of(before))
    gained = dense.conditioned_on(observations_of(after)).log_normaliser - dense.log_normaliser
    constant = log_evidence - gained - (after.log_scale - before.log_scale + process.log_scale)
    return PseudoPointFactor(observations, process.unit_of_epsilon, constant)


def _vector(name: str, value: Any, length: int) -> np.ndarray:
    """A finite vector of this length, checked in microseconds."""
    array = _numbers(name, value)
    if array.shape != (length,) or not (isfinite(array @ array) or np.isfinite(array).all()):
        raise InvalidDataError(
            f"{name} must be a finite vector of length {length}, got shape {list(array.shape)} "
            f"with {int(np.sum(~np.isfinite(array)))} entries that are not finite"
        )
    return array


def _numbers(name: str, value: Any) -> np.ndarray:
    is_plain = type(value) is np.ndarray and value.dtype == np.float64
    return value if is_plain else as_float64(name, as_real_array(name, value))
