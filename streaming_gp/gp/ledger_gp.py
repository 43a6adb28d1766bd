"""A GPflow model that holds prior × factors: what it is, and how it changes as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import gpflow
import numpy as np

from streaming_gp import expfam, pvi
from streaming_gp.errors import InvalidDataError
from streaming_gp.gp import state as st
from streaming_gp.gp import structure
from streaming_gp.gp.compilation import CompiledGP, HyperparameterModules, compile_gp, unchanged
from streaming_gp.gp.fitting.projection import GPLedger
from streaming_gp.gp.hyperparameters import ParameterVector
from streaming_gp.gp.journal import Journal
from streaming_gp.gp.outputs import outputs_of
from streaming_gp.gp.present import Present, ReadOnly
from streaming_gp.gp.process.process import Process, PseudoPointFactor
from streaming_gp.gp.turns import Turns
from streaming_gp.inputs import make_read_only


class LedgerGP(gpflow.models.GPModel):
    """A GPflow model that holds a ledger of Gaussian-process factors.

    A change is made as a whole or not at all, and is in the journal before it is made.

    :param kernel: Any GPflow kernel of one output, or ``SharedIndependent``,
        ``SeparateIndependent`` or ``LinearCoregionalization``.
    :param likelihood: Any GPflow likelihood.
    :param mean_function: Any GPflow mean function; zero if None.
    :param settings: The strategies of the model.

    :ivar settings: The strategies of the model.
    """

    def __init__(
        self, kernel: Any, likelihood: Any, mean_function: Any, settings: st.Settings
    ) -> None:
        outputs = outputs_of(kernel, likelihood, settings.num_latent_gps)
        num_latent = outputs.num_latent_gps or likelihood.latent_dim or 1
        super().__init__(kernel, likelihood, mean_function, num_latent)
        self._settings = settings
        self._outputs = outputs
        self._turns = Turns()
        self._compiled: CompiledGP | None = None
        self._journal: Journal | None = None
        prior = settings.hyperparameters.prior(self.parameter_vector)
        self._now = Present(pvi.Ledger(Process((), prior)), num_latent, (None, outputs.num_columns))

    # ---- what it holds ----

    settings = ReadOnly[st.Settings]("_settings")

    @property
    def ledger(self) -> GPLedger:
        """Prior and factors."""
        return self._now.ledger

    @property
    def factors(self) -> Mapping[str, PseudoPointFactor]:
        """The factor of every batch, in order of arrival (read-only)."""
        return self._now.ledger.factors

    @property
    def num_updates(self) -> int:
        """Batches learned from so far; a resumed stream goes on with the next one."""
        return self._now.num_updates

    @property
    def posterior_process(self) -> Process:
        """Prior times factors."""
        return self._now.ledger.posterior

    @property
    def hyperparameter_posterior(self) -> expfam.Gaussian | None:
        """q(ε) on the unconstrained vector, or None where ε is a point."""
        return self._now.ledger.posterior.hyperparameters

    @property
    def parameter_vector(self) -> ParameterVector:
        """The vector ε of the trainable parameters of kernel, mean function and likelihood."""
        modules = HyperparameterModules(self.kernel, self.mean_function, self.likelihood)
        return ParameterVector(modules)

    @property
    def modules(self) -> structure.Modules:
        """Kernel, mean function and likelihood by these names."""
        return {
            "kernel": self.kernel,
            "mean_function": self.mean_function,
            "likelihood": self.likelihood,
        }

    @property
    def state(self) -> st.ModelState:
        """All that the stream has come to, as a value that later updates do not change."""
        with self._turns.swapping:
            return self._state_of(self._now)

    def _state_of(self, present: Present, changes: Iterable[tuple[Any, Any]] = ()) -> st.ModelState:
        """What would be :attr:`state` then, with parameters that are about to take other values."""
        return st.ModelState(
            settings=self.settings,
            structure=unchanged(self.modules, self.parameter_vector, self._compiled),
            parameters=st.parameters_of(self.modules, changes),
            prior=present.ledger.prior,
            factors=dict(present.ledger.factors),
            num_updates=present.num_updates,
            dims=present.dims,
            shift=present.shift,
            time=present.time,
            only_class=present.only_class,
        )

    # ---- compiled functions ----

    def _compile(self, input_dim: int, output_dim: int) -> CompiledGP:
        """Compiled functions for these dimensions: the present ones if they fit."""
        parameters, dims, present = self.parameter_vector, (input_dim, output_dim), self._compiled
        if present is not None and present.fits(parameters, dims):
            return present
        q = self.hyperparameter_posterior
        if q is not None and np.size(q.mean) != parameters.size:
            raise InvalidDataError(
                f"q(ε) covers {np.size(q.mean)} parameter values but {parameters.size} "
                "are trainable now; set what is trainable before the model is made"
            )
        return compile_gp(self.modules, self.settings, dims)

    def _compile_for_dims(self) -> CompiledGP:
        """The compiled functions of a model that has seen data."""
        input_dim, output_dim = self._now.dims
        assert input_dim is not None
        assert output_dim is not None
        return self._compile(input_dim, output_dim)

    # ---- changes ----

    def _point_estimate(self, ledger: GPLedger, compiled: CompiledGP) -> np.ndarray:
        """Mean of q(ε), or the point that the parameters hold."""
        q = ledger.posterior.hyperparameters
        return compiled.parameters.value() if q is None else np.asarray(q.mean)

    def _commit(
        self,
        compiled: CompiledGP,
        ledger: GPLedger,
        epsilon: np.ndarray,
        num_new: int = 0,
        **changes: Any,
    ) -> None:
        """Take the place of what is there, in the journal and here: as a whole, or not at all.

        Whatever interrupts it, wherever it is, both hold the same afterwards.

        :param changes: Other fields of :class:`Present` that do not stay as they are.
        """
        before, journal = self._now, self._journal
        known = before.ledger.factors
        make_read_only({k: f for k, f in ledger.factors.items() if known.get(k) is not f})
        parameters = compiled.parameters
        was = before, self._compiled, parameters, parameters.value()
        after = replace(
            before,
            ledger=ledger,
            num_latent_gps=compiled.num_latent_gps,
            dims=compiled.dims,
            num_updates=before.num_updates + num_new,
            **changes,
        )
        place = None if journal is None else journal.place
        try:
            if journal is not None:  # on disk first: if this fails, nothing has changed
                pieces = parameters.pieces(epsilon)
                journal.append(self._state_of(after, pieces))
            self._swap(after, compiled, parameters, epsilon)
        except BaseException:
            self._swap(*was)
            if journal is not None and place is not None:
                journal.withdraw(place)
            raise

    def _swap(
        self,
        present: Present,
        compiled: CompiledGP | None,
        parameters: ParameterVector,
        epsilon: np.ndarray,
    ) -> None:
        """Hold this from now on; those who read meanwhile see all of it or nothing."""
        with self._turns.swapping:
            parameters.assign(epsilon)
            self._compiled = compiled
            self.num_latent_gps = present.num_latent_gps
            self._now = present
