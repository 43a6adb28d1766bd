"""One change of a model at a time, while others go on reading."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import tensorflow as tf

from streaming_gp.errors import InvalidDataError

P = ParamSpec("P")
R = TypeVar("R")


class Turns:
    """The locks of one model; a copy of the model has its own.

    :ivar changing: Held for the time of a whole change.
    :ivar swapping: Held while what a change has led to takes the place of what was, and while that
        is read: for microseconds.
    """

    def __init__(self) -> None:
        self.changing = threading.Lock()
        self.swapping = threading.RLock()
        self._owner: int | None = None

    def begin(self) -> None:
        """The calling thread holds ``changing`` now."""
        self._owner = threading.get_ident()

    def end(self) -> None:
        """It is about to give it back."""
        self._owner = None

    def refuse_within_own(self) -> None:
        """Refuse a change within another one of the same thread, which would wait for itself.

        :raises InvalidDataError: if the calling thread is within one.
        """
        if self.changing.locked() and self._owner == threading.get_ident():
            raise InvalidDataError(
                "the model is being changed already, by the call that this one is made from, such "
                "as that of a callback: wanted one change after another"
            )

    def __deepcopy__(self, memo: Any) -> Turns:
        return Turns()

    def __reduce__(self) -> tuple[Any, ...]:
        return Turns, ()


class TakesTurns(Protocol):
    """What :func:`one_at_a_time` decorates methods of."""

    _turns: Turns


M = TypeVar("M", bound=TakesTurns)


def one_at_a_time(method: Callable[Concatenate[M, P], R]) -> Callable[Concatenate[M, P], R]:
    """Decorator of methods that change a model: other threads wait for their turn.

    :raises InvalidDataError: within another change of the same thread, or where TensorFlow only
        builds a graph.
    """

    @wraps(method)
    def alone(self: M, /, *arguments: P.args, **options: P.kwargs) -> R:
        turns = self._turns
        turns.refuse_within_own()
        refuse_in_graphs(method.__name__)
        with turns.changing:
            try:
                turns.begin()
                return method(self, *arguments, **options)
            finally:
                turns.end()

    return alone


def refuse_in_graphs(name: str) -> None:
    """Refuse a call while TensorFlow builds a graph, in which nothing has a value.

    :param name: What was called.
    :raises InvalidDataError: if it does.
    """
    if not tf.executing_eagerly():
        raise InvalidDataError(
            f"{name} wants values: call it outside of tf.function, tf.data and tf.Graph"
        )
