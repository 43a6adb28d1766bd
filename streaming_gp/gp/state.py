"""The state of a streaming model as one value, which knows no model, and that value in a file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streaming_gp import pvi, serialization
from streaming_gp.gp import structure as st
from streaming_gp.gp.bounds.protocol import LocalBound
from streaming_gp.gp.fitting.optimiser import LocalOptimiser
from streaming_gp.gp.fitting.projection import GPLedger
from streaming_gp.gp.forgetting import ForgetNothing, Forgetting
from streaming_gp.gp.hyperparameters import HyperparameterStrategy
from streaming_gp.gp.learning_schedule import EveryUpdate, LearningSchedule
from streaming_gp.gp.process.process import Process, PseudoPointFactor
from streaming_gp.gp.strategies.protocol import PseudoPointStrategy
from streaming_gp.inputs import typed
from streaming_gp.pvi.step import PropernessPolicy
from streaming_gp.serialization import registered_classes, storable

KIND = "streaming GP"


@storable
@typed
@dataclass(frozen=True)
class Settings:
    """The arguments of :class:`~streaming_gp.StreamingGP` that are plain values.

    :param pseudo_points: How a batch enters the ledger.
    :param hyperparameters: What is learned about ε.
    :param num_latent_gps: The number of latent functions that was asked for, if one was.
    :param optimiser: How the local free energy is maximised.
    :param num_prediction_samples: The number of values of ε that predictions are averaged over.
    :param seed: The seed of all random numbers.
    :param bound: The local bound.
    :param policy: What is done about improper cavities and posteriors.
    :param learning: Which updates learn hyperparameters.
    :param forgetting: What earlier batches still say of f when a new one comes.
    """

    pseudo_points: PseudoPointStrategy
    hyperparameters: HyperparameterStrategy
    num_latent_gps: int | None
    optimiser: LocalOptimiser
    num_prediction_samples: int
    seed: int
    bound: LocalBound
    policy: PropernessPolicy
    learning: LearningSchedule = field(default_factory=EveryUpdate)
    forgetting: Forgetting = field(default_factory=ForgetNothing)


@storable
@typed
@dataclass(frozen=True, eq=False)
class ModelState:
    """All that a stream has come to, as plain arrays; no data among them.

    :param settings: How the stream goes on.
    :param structure: Kernel, mean function and likelihood in words, by path.
    :param parameters: The unconstrained values of all their parameters and variables, by path.
    :param prior: The prior over (f, ε).
    :param factors: The factor of every batch, in order of arrival.
    :param num_updates: The number of batches that have been learned from.
    :param dims: D and P of the data; None where that is not known before the first batch.
    :param shift: How far the newest update that learned moved ε; see
        :meth:`LearningSchedule.wants`.
    :param time: The time of the newest batch; None before the first one.
    :param only_class: The class of all labels so far, while there is but one.
    """

    settings: Settings
    structure: Mapping[str, str]
    parameters: Mapping[str, np.ndarray]
    prior: Process
    factors: Mapping[str, PseudoPointFactor]
    num_updates: int
    dims: tuple[int | None, int | None]
    shift: float = math.inf
    time: float | None = None
    only_class: float | None = None

    @property
    def ledger(self) -> GPLedger:
        """Prior and factors."""
        return pvi.Ledger(self.prior).with_factors(self.factors)


def parameters_of(
    modules: st.Modules, changes: Iterable[tuple[Any, Any]] = ()
) -> dict[str, np.ndarray]:
    """The unconstrained values of all parameters and variables, by path.

    :param modules: Kernel, mean function and likelihood.
    :param changes: Parameters with the values that they are about to take, instead of their own.
    """
    new = {id(parameter): np.asarray(value) for parameter, value in changes}
    return {
        path: new.get(id(leaf), np.array(st.variable(leaf)))
        for path, leaf in st.leaves(modules).items()
    }


def assign_parameters(modules: st.Modules, values: Mapping[str, np.ndarray]) -> None:
    """Give all parameters and variables their values."""
    for path, leaf in st.leaves(modules).items():
        st.variable(leaf).assign(values[path])


def write(path: serialization.PathLike, state: ModelState) -> None:
    """Write a state to a file, atomically.

    :raises InvalidDataError: if a strategy is not :func:`~streaming_gp.serialization.storable`.
    :raises OSError: if the file cannot be written; what was there stays.
    """
    serialization.write(path, KIND, state, registered_classes())


def read(path: serialization.PathLike) -> ModelState:
    """The state in a file.

    :raises FileFormatError: if there is none; see :func:`streaming_gp.serialization.read`.
    """
    state: ModelState = serialization.read(path, KIND, registered_classes(), ModelState)
    return state
