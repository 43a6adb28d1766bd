"""One point at a time: the object that a control loop asks and tells."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.bounds.problem import LocalModel
from streaming_gp.gp.online.state import OnlineState
from streaming_gp.gp.process.dense import DenseProcess
from streaming_gp.gp.process.observations import PseudoObservations
from streaming_gp.gp.process.prior import PriorAt
from streaming_gp.gp.process.process import Process, PseudoPointFactor, plain
from streaming_gp.gp.strategies import MERGED
from streaming_gp.inputs import (
    as_float64,
    as_real_array,
    require_positive,
    require_positive_integer,
)
from streaming_gp.numerics.threads import one_blas_thread

FEW = 8
"""Observations that came in while a state was prepared, and may be learned while others wait."""


class StartsOnline(Protocol):
    """A model that one point at a time can start from."""

    def online_state(
        self, budget: int, memory: float, own: PseudoObservations | None = None
    ) -> OnlineState:
        """What the model knows, on at most ``budget`` points, times ``own``."""
        ...


class OnlineGP:
    """A streaming Gaussian process at one value of ε, which learns one point at a time.

    Cost and memory of a step depend on the budget alone. Any number of threads may use one object.
    It is made by :meth:`streaming_gp.StreamingGP.online`.

    :param model: The model that it starts from, and that can take back what it learns.
    :param budget: The largest number of points that it holds.
    :param memory: The number of observations in which the relevance of a point falls e-fold; by
        default the budget.
    """

    def __init__(self, model: StartsOnline, budget: int = 300, memory: float | None = None) -> None:
        require_positive_integer("budget", budget)
        memory = float(budget if memory is None else memory)
        require_positive("memory", memory)
        self._lock = threading.Lock()
        self._exchanging = threading.Lock()
        self._since: list[tuple[np.ndarray, np.ndarray]] | None = None
        self._model, self._state = model, model.online_state(int(budget), memory)

    @property
    def model(self) -> StartsOnline:
        """The model that it started from last."""
        return self._model

    @property
    def budget(self) -> int:
        """The largest number of points that it holds."""
        return self._state.budget

    @property
    def num_points(self) -> int:
        """The number of points that it holds now."""
        return int(np.count_nonzero(self._state.rows.is_used))

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
            return self._state.predict(_vector("x", x, self._state.input_dim))

    def update(self, x: Any, y: Any) -> None:
        """Learn from one observation. If it is refused, nothing has changed.

        :param x: The input [D].
        :param y: The observation [P], or a number where P = 1.
        :raises InvalidDataError: if one is not a finite vector of the right length.
        :raises NumericalError: if they are so large that covariances or densities overflow.
        """
        with self._lock, one_blas_thread():
            x = _vector("x", x, self._state.input_dim)
            y = _vector("y", np.ravel(_numbers("y", y)), self._state.columns)
            self._state.learn(x, y)
            if self._since is not None:
                self._since.append((x.copy(), y.copy()))

    def adopt(self, model: StartsOnline, keep: bool = True) -> None:
        """Go on from what a model knows now, at its present ε, without a pause in the loop.

        Observations that come meanwhile are learned by both; then one replaces the other.

        :param model: The model, or another that continues its stream.
        :param keep: Whether what was learned one point at a time, and not taken over by a model,
            stays, as the pseudo-observations that it is now. False where the model has learned from
            the same data.
        :raises InvalidDataError: as :meth:`streaming_gp.StreamingGP.online`.
        """

        def build(present: OnlineState) -> OnlineState:
            own = present.own_observations() if keep else None
            state = model.online_state(present.budget, present.memory, own)
            if (state.input_dim, state.columns) != (present.input_dim, present.columns):
                raise InvalidDataError(
                    f"wanted a model of {present.input_dim} inputs and {present.columns} outputs, "
                    f"got {state.input_dim} and {state.columns}"
                )
            state.log_evidence = present.log_evidence if keep else 0.0
            return state

        self.exchange(build)
        self._model = model

    def hand_over(self, commit: Callable[[PseudoObservations, float], None]) -> bool:
        """Give away what was learned since the last time, as it is known from then on.

        :param commit: Takes it, and its log evidence in nats. If it raises, nothing has changed.
        :returns: whether anything was learned.
        """
        found = False

        def take(state: OnlineState) -> OnlineState:
            nonlocal found
            observations = state.own_observations()
            if observations is not None:
                commit(observations, state.log_evidence)
                state.settle()
                found = True
            return state

        self.exchange(take)
        return found

    def exchange(self, build: Callable[[OnlineState], OnlineState]) -> None:
        """Replace the state by one that is built from a copy of it, while others go on.

        If ``build`` raises, nothing has changed.
        """
        with self._exchanging:
            with self._lock:
                present, self._since = self._state.copy(), []
            try:
                state = build(present)
                while not self._replaced(state):
                    pass
            finally:
                self._since = None

    def _replaced(self, state: OnlineState) -> bool:
        """Learn what came in since; replace the present state once that is little."""
        with self._lock:
            assert self._since is not None
            missed, self._since = self._since, []
            done = len(missed) <= FEW
            if done:
                _learn(state, missed)
                self._state = state
        if not done:
            _learn(state, missed)
        return done


def refuse_foreign(online: object, model: StartsOnline, name: str, factors: Iterable[str]) -> None:
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
    at = DenseProcess(PriorAt(local.prior, epsilon[None]))
    before = process.compact
    after = Process((*process.pseudo_observations, observations)).compact
    at = at.conditioned_on(plain(before))
    gained = at.conditioned_on(plain(after)).log_normaliser - at.log_normaliser
    constant = log_evidence - gained - (after.log_scale - before.log_scale + process.log_scale)
    return PseudoPointFactor((observations,), process.unit_of_epsilon, constant)


def _learn(state: OnlineState, observations: list[tuple[np.ndarray, np.ndarray]]) -> None:
    for x, y in observations:
        state.learn(x, y)


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
