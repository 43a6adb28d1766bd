"""What a server and its clients ask of a Gaussian process whose point ε they share."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import tensorflow as tf

from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.compilation import CompiledGP
from streaming_gp.gp.ledger_operations import LedgerOperationsGP
from streaming_gp.gp.predictive_gp import default_output_dim
from streaming_gp.gp.process.process import Process
from streaming_gp.gp.turns import one_at_a_time
from streaming_gp.pvi.model import SecondOrder
from streaming_gp.validation import as_data


class FederatedGP(LedgerOperationsGP):
    """A ledger of Gaussian-process factors whose free energy has derivatives by ε."""

    @property
    def trainable_variables(self) -> Sequence[tf.Variable]:
        """Those of kernel, mean function and likelihood, in the order of ε."""
        parameters = self.parameter_vector.parameters.values()
        return tuple(one.unconstrained_variable for one in parameters)

    @one_at_a_time
    def data_term_by_hyperparameters(self, q: Process, data: tuple[Any, Any]) -> SecondOrder:
        """What the free energy owes to some data, by the ε that the parameters hold.

        :param q: Prior times all factors.
        :param data: X [N, D] and Y [N, P].
        :raises InvalidDataError: if factors speak of ε.
        """
        _refuse_variational(q)
        checked = as_data(data, self.likelihood, *self._now.dims)
        compiled = self._compiled_to_fit(checked[0].shape[1], checked[1].shape[1])
        return compiled.terms.of_data(q, compiled.outputs.data(checked))

    @one_at_a_time
    def prior_term_by_hyperparameters(self, q: Process) -> SecondOrder:
        """What the free energy owes to the prior, by the ε that the parameters hold.

        :param q: Prior times all factors.
        :raises InvalidDataError: if factors speak of ε.
        """
        _refuse_variational(q)
        return self._compiled_to_fit(*self._dims_of(q)).terms.of_prior(q)

    def _compiled_to_fit(self, input_dim: int, output_dim: int) -> CompiledGP:
        """Compiled functions, which a model without data of its own keeps for the next question."""
        compiled = self._compile(input_dim, output_dim)
        if None in self._now.dims:
            self._compiled = compiled
        return compiled

    def _dims_of(self, process: Process) -> tuple[int, int]:
        """D and P of the data that a process speaks of."""
        input_dim, output_dim = self._now.dims
        extra = self._outputs.index_columns
        columns = chain((one.Z.shape[1] for one in process.pseudo_observations), [1 + extra])
        return input_dim or next(columns) - extra, output_dim or default_output_dim(self)


def _refuse_variational(q: Process) -> None:
    if q.hyperparameters is not None:
        raise InvalidDataError(
            "q(ε) is learned by the factors of clients; a point that all share wants a model with "
            "FixedHyperparameters()"
        )
