"""The state of a model, and the one way to change it: as a whole, or not at all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import tensorflow as tf

from streaming_gp.errors import InvalidDataError, NumericalError
from streaming_gp.gp import structure
from streaming_gp.gp.compilation import CompiledGP, Functions, default_output_dim
from streaming_gp.gp.journal import Journal
from streaming_gp.gp.prediction import Posterior, prediction_draws
from streaming_gp.gp.state import State
from streaming_gp.gp.structure import Modules
from streaming_gp.inputs import make_read_only
from streaming_gp.numerics.threads import refuse_after_fork

P = ParamSpec("P")
R = TypeVar("R")


class Turn:
    """One change after another: other threads wait, and a change within a change is refused.

    A copy has a turn of its own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: int | None = None

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Within the block nobody else changes anything.

        :param name: The change that is made.
        :raises InvalidDataError: within another change of the same thread, which would wait for
            itself; or where TensorFlow only builds a graph.
        :raises ForkedError: in a process that was forked after TensorFlow ran.
        """
        refuse_after_fork()
        if self._lock.locked() and self._owner == threading.get_ident():
            raise InvalidDataError(
                "the model is being changed already, by the call that this one is made from, such "
                "as that of a callback: wanted one change after another"
            )
        refuse_in_graphs(name)
        with self._lock:
            try:
                self._owner = threading.get_ident()
                yield
            finally:
                self._owner = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Turn, ()


def refuse_in_graphs(name: str) -> None:
    """Refuse a call while TensorFlow builds a graph, in which nothing has a value.

    :param name: The function that was called.
    :raises InvalidDataError: if it does.
    """
    if not tf.executing_eagerly():
        raise InvalidDataError(
            f"{name} wants values: call it outside of tf.function, tf.data and tf.Graph"
        )


class Store:
    """The present state of one model, its compiled functions and its journal.

    Kernel, mean function and likelihood are the model's own, which holds them as GPflow's models
    do: they are an argument of each call. The values of their parameters belong to the state, and
    change with it.

    :param state: The first state.

    :ivar state: The present state; its parameters are those of the newest change, which somebody
        may have given other values since.
    :ivar compiled: Compiled functions, if there are some.
    :ivar journal: Where changes are written down before they are made, if they are.
    :ivar turn: Held for the time of a whole change.
    :ivar lock: Held while a new state takes the place of the old one, and while that is read: for
        microseconds.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self.compiled: CompiledGP | None = None
        self.journal: Journal | None = None
        self.turn = Turn()
        self.lock = threading.RLock()

    def current(self, modules: Modules) -> State:
        """The present state with the values that parameters hold now.

        :raises InvalidDataError: if the modules are others than those that the model learned with.
        """
        with self.lock:
            return self.state.with_ledger(
                self.state.ledger,
                structure=Functions(modules, self.compiled).unchanged_structure(),
                parameters=structure.values(modules),
            )

    def posterior(
        self, modules: Modules, input_dim: int, output_dim: int | None = None
    ) -> Posterior:
        """The present posterior, which predictions ask.

        :param modules: Kernel, mean function and likelihood.
        :param input_dim: D.
        :param output_dim: P, where that is known; guessed before any data.
        :raises ForkedError: in a process that was forked after TensorFlow ran.
        """
        refuse_after_fork()
        with tf.init_scope():  # conditioning happens now, even while a caller is being traced
            refuse_in_graphs("a prediction")
            with self.lock:
                state, functions = self.state, Functions(modules, self.compiled)
                output_dim = state.dims[1] or output_dim or default_output_dim(modules, state)
                self.compiled = compiled = functions.of(state, (input_dim, output_dim))
                process, settings = state.ledger.posterior, state.settings
                draws = prediction_draws(
                    process, compiled.parameters, settings.num_prediction_samples, settings.seed
                )
                token = compiled.posteriors.token(process)
            return compiled.posteriors.at(process, draws, token, state.conditioning)

    def change(
        self,
        modules: Modules,
        make: Callable[Concatenate[State, Functions, P], tuple[State, R]],
        *arguments: P.args,
        **options: P.kwargs,
    ) -> R:
        """Make a change: if anything raises, all is as it was.

        :param modules: Kernel, mean function and likelihood.
        :param make: Makes a new state of the present one, and what is to be returned. It gets the
            compiled functions and the arguments as well.
        :raises InvalidDataError: as :meth:`Turn.of`, or as :meth:`current`.
        """
        with self.turn.of(make.__name__):
            return self.change_within_turn(modules, make, *arguments, **options)

    def change_within_turn(
        self,
        modules: Modules,
        make: Callable[Concatenate[State, Functions, P], tuple[State, R]],
        *arguments: P.args,
        **options: P.kwargs,
    ) -> R:
        """As :meth:`change`, for those who hold the turn already."""
        functions, before = Functions(modules, self.compiled), self.current(modules)
        try:
            after, result = make(before, functions, *arguments, **options)
        except np.linalg.LinAlgError as error:
            raise NumericalError(
                f"{make.__name__}: {error}: wanted standardised data, or parameters that start at "
                "the size of the data"
            ) from error
        if after is not before:
            self._commit(modules, before, after, functions.compiled)
        return result

    def ask(
        self,
        modules: Modules,
        answer: Callable[Concatenate[State, Functions, P], R],
        *arguments: P.args,
        **options: P.kwargs,
    ) -> R:
        """A question that changes nothing, in its turn; its compiled functions are kept.

        :raises InvalidDataError: as :meth:`Turn.of`.
        """
        with self.turn.of(answer.__name__):
            functions = Functions(modules, self.compiled)
            result = answer(self.state, functions, *arguments, **options)
            self.compiled = functions.compiled
            return result

    def restore(self, modules: Modules, state: State) -> None:
        """Hold a state that another model came to, and give its values to the parameters.

        :raises InvalidDataError: if it is of other modules; names the first difference.
        :raises FileFormatError: if they cannot take its values.
        """
        structure.refuse_difference(state.structure, structure.structure(modules))
        structure.refuse_values(modules, state.parameters)
        compiled = None
        if None not in state.dims:
            compiled = Functions(modules, None).of(state)
        self.compiled, self.state = compiled, state
        structure.assign(modules, state.parameters)  # last, as the caller owns them

    def _commit(
        self, modules: Modules, before: State, after: State, compiled: CompiledGP | None
    ) -> None:
        """The new state takes the place of the old one, in the journal and here.

        Whatever interrupts it, wherever it is, both hold the same afterwards.
        """
        journal, compiled_before, old = self.journal, self.compiled, before.factors
        make_read_only({k: f for k, f in after.factors.items() if old.get(k) is not f})
        position = None if journal is None else journal.position
        try:
            if journal is not None:  # on disk first: if this fails, nothing has changed
                journal.append(after)
            self._swap(modules, after, compiled, before)
        except BaseException:
            self._swap(modules, before, compiled_before, after)
            if journal is not None and position is not None:
                journal.withdraw(position)
            raise

    def _swap(
        self, modules: Modules, state: State, compiled: CompiledGP | None, other: State
    ) -> None:
        """Hold this from now on; those who read meanwhile see all of it or nothing.

        :param other: The state that it takes the place of.
        """
        paths = [k for k, v in state.parameters.items() if other.parameters[k] is not v]
        with self.lock:
            structure.assign(modules, state.parameters, paths)
            self.compiled = compiled
            self.state = state

    def __deepcopy__(self, memo: dict[int, Any]) -> Store:
        """A store that goes on on its own, without a journal; states never change."""
        return Store(self.state)

    def __reduce__(self) -> tuple[Any, ...]:
        """Compiled functions and the journal, which has one writer, stay behind."""
        return Store, (self.state,)
