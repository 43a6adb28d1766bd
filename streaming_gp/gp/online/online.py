"""One point at a time: the object that a control loop asks and tells."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.online.state import OnlineState
from streaming_gp.gp.process.pseudo_observations import PseudoObservations
from streaming_gp.inputs import as_float64, as_real_array
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
    :param memory: The number of observations in which the relevance of a point falls e-fold.
    """

    def __init__(self, model: StartsOnline, budget: int, memory: float) -> None:
        self._lock = threading.Lock()
        self._exchanging = threading.Lock()
        self._since: list[tuple[np.ndarray, np.ndarray]] | None = None
        self._model, self._state = model, model.online_state(budget, memory)

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
