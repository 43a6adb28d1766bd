"""One point at a time: the object that a control loop asks and tells."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.fit.local_model import LocalModel
from streaming_gp.gp.online.state import (
    OnlinePrior,
    OnlineState,
    Projection,
    copied,
    moments,
    observe,
    own_observations,
    project,
    settled,
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
)
from streaming_gp.numerics.threads import one_blas_thread

if TYPE_CHECKING:
    from streaming_gp.gp.model import StreamingGP

FEW = 8
"""Observations that came in while a state was prepared, and may be learned while others wait."""


class OnlineGP:
    """A streaming Gaussian process at one value of ε, which learns one point at a time.

    Cost and memory of a step depend on the budget alone. Any number of threads may use one object.
    It is made by :meth:`streaming_gp.StreamingGP.online`.

    :param model: The model that it starts from, and that can take back what it learns.
    :param budget: The largest number of points that it holds.
    :param memory: The number of observations in which the relevance of a point falls e-fold; by
        default the budget.
    """

    def __init__(self, model: StreamingGP, budget: int = 300, memory: float | None = None) -> None:
        require_positive_integer("budget", budget)
        memory = budget if memory is None else memory
        require_positive("memory", memory)
        # It alone owns the state, whose arrays an update writes over while it holds the lock. The
        # projection is of the newest input that was asked for: a loop asks there, then tells.
        self._lock = threading.Condition()
        self._model = model
        self._prior, self._state = model.online_state(int(budget), float(memory))
        self._projection: Projection | None = None
        self._missed: list[tuple[np.ndarray, np.ndarray]] | None = None  # by a coming state

    @property
    def model(self) -> StreamingGP:
        """The model that it started from last."""
        return self._model

    @property
    def budget(self) -> int:
        """The largest number of points that it holds."""
        return self._prior.budget

    @property
    def num_points(self) -> int:
        """The number of points that it holds now."""
        return int(np.count_nonzero(self._state.is_used))

    @property
    def log_evidence(self) -> float:
        """Sum of ``log p(y | past)`` over what no model has taken over yet, in nats."""
        return self._state.log_evidence

    def predict(self, x: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance [P] of f(x), in units of f and their squares.

        :param x: The input [D].
        :raises InvalidDataError: if it is not a finite vector of D numbers.
        :raises NumericalError: if they are so large that covariances overflow.
        """
        with self._lock, one_blas_thread():
            return moments(self._prior, self._project(x))

    def update(self, x: Any, y: Any) -> None:
        """Learn from one observation. If it is refused, nothing has changed.

        :param x: The input [D].
        :param y: The observation [P], or a number where P = 1.
        :raises InvalidDataError: if one is not a finite vector of the right length.
        :raises NumericalError: if they are so large that covariances or densities overflow.
        """
        with self._lock, one_blas_thread():
            y = _vector("y", np.ravel(_numbers("y", y)), self._prior.columns)
            at = self._project(x)
            self._state, _ = observe(self._prior, at, y)
            self._projection = None
            if self._missed is not None:
                self._missed.append((at.x, y.copy()))

    def _project(self, x: Any) -> Projection:
        x, at = _vector("x", x, self._state.Z.shape[1]), self._projection
        if at is None or at.x.tobytes() != x.tobytes():
            at = self._projection = project(self._prior, self._state, x)
            self._state = at.state
        return at

    # ---- with a model ----

    def adopt(self, model: StreamingGP, keep: bool = True) -> None:
        """Go on from what a model knows now, at its present ε, without a pause in the loop.

        Observations that come meanwhile are learned by both; then one replaces the other.

        :param model: The model, or another that continues its stream.
        :param keep: Whether what was learned one point at a time, and not taken over by a model,
            stays, as the pseudo-observations that it is now. False where the model has learned from
            the same data.
        :raises InvalidDataError: as :meth:`streaming_gp.StreamingGP.online`.
        """

        def build(prior: OnlinePrior, state: OnlineState) -> tuple[OnlinePrior, OnlineState]:
            own = own_observations(prior, state) if keep else None
            new_prior, new = model.online_state(prior.budget, prior.memory, own)
            before, after = (
                (one.Z.shape[1], of.columns) for of, one in ((prior, state), (new_prior, new))
            )
            if before != after:
                raise InvalidDataError(
                    f"wanted a model of {before[0]} inputs and {before[1]} outputs, got {after[0]} "
                    f"and {after[1]}"
                )
            return new_prior, new._replace(log_evidence=state.log_evidence if keep else 0.0)

        self._exchange(build)
        self._model = model

    def hand_over(self, commit: Callable[[PseudoObservations, float], None]) -> bool:
        """Give away what was learned since the last time, which counts as known from then on.

        :param commit: Takes it, and its log evidence in nats. If it raises, nothing has changed.
        :returns: whether anything was learned.
        """
        observations = None

        def build(prior: OnlinePrior, state: OnlineState) -> tuple[OnlinePrior, OnlineState]:
            nonlocal observations
            observations = own_observations(prior, state)
            if observations is None:
                return prior, state
            commit(observations, state.log_evidence)
            return prior, settled(state)

        self._exchange(build)
        return observations is not None

    def _exchange(
        self, build: Callable[[OnlinePrior, OnlineState], tuple[OnlinePrior, OnlineState]]
    ) -> None:
        """Replace the state by one that is built from a copy of it, while others go on.

        One exchange waits for another. If ``build`` raises, nothing has changed.
        """
        with self._lock:
            self._lock.wait_for(lambda: self._missed is None)
            prior, state, self._missed = self._prior, copied(self._state), []
        try:
            prior, state = build(prior, state)
            is_done = False
            while not is_done:
                with self._lock:
                    missed, self._missed = self._missed, []
                    is_done = len(missed) <= FEW
                    if is_done:
                        self._prior, self._state = prior, _learned(prior, state, missed)
                        self._projection = None
                if not is_done:
                    state = _learned(prior, state, missed)
        finally:
            with self._lock:
                self._missed = None
                self._lock.notify_all()


def _learned(
    prior: OnlinePrior, state: OnlineState, observations: Iterable[tuple[np.ndarray, np.ndarray]]
) -> OnlineState:
    for x, y in observations:
        state, _ = observe(prior, project(prior, state, x), y)
    return state


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
    observations: PseudoObservations,
    log_evidence: float,
) -> PseudoPointFactor:
    """Observations as a factor that says nothing of ε, whose constant makes the log normaliser of a
    process grow by their log evidence.

    :param epsilon: ε [E].
    :param process: Prior times the factors before.
    :param log_evidence: ``log p(y | past)`` of what was observed, in nats.
    """
    before = process.compact
    after = Process((*process.pseudo_observations, observations)).compact
    prior = PriorAt(local.prior, epsilon[None])
    dense = DenseProcess(prior).conditioned_on(observations_of(before))
    gained = dense.conditioned_on(observations_of(after)).log_normaliser - dense.log_normaliser
    constant = log_evidence - gained - (after.log_scale - before.log_scale + process.log_scale)
    return PseudoPointFactor((observations,), process.unit_of_epsilon, constant)


def _vector(name: str, value: Any, length: int) -> np.ndarray:
    """A finite vector of this length, checked in microseconds."""
    array = _numbers(name, value)
    if array.shape != (length,) or not np.isfinite(array).all():
        raise InvalidDataError(
            f"{name} must be a finite vector of length {length}, got shape {list(array.shape)} "
            f"with {int(np.sum(~np.isfinite(array)))} entries that are not finite"
        )
    return array


def _numbers(name: str, value: Any) -> np.ndarray:
    is_plain = type(value) is np.ndarray and value.dtype == np.float64
    return value if is_plain else as_float64(name, as_real_array(name, value))
