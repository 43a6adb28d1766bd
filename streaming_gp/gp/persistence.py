"""The state of a streaming model as one value, and that value in a file."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from streaming_gp import expfam, pvi, serialization
from streaming_gp.gp import structure as st
from streaming_gp.gp.factor import ConditionalRow, PseudoObservations, PseudoPointFactor
from streaming_gp.gp.hyperparameters import (
    FixedHyperparameters,
    HyperparameterStrategy,
    PointHyperparameters,
    VariationalHyperparameters,
)
from streaming_gp.gp.optimiser import LocalOptimiser
from streaming_gp.gp.parameters import ParameterVector
from streaming_gp.gp.process import Process
from streaming_gp.gp.pseudo_points import (
    ConditionalPseudoPoints,
    PrivatePseudoPoints,
    PseudoPointStrategy,
    SharedPseudoPoints,
)

if TYPE_CHECKING:
    from streaming_gp.gp.model import StreamingGP

KIND = "streaming GP"


@dataclass(frozen=True)
class Settings:
    """The arguments of :class:`~streaming_gp.StreamingGP` that are plain values."""

    pseudo_points: PseudoPointStrategy
    hyperparameters: HyperparameterStrategy
    num_latent_gps: int | None
    optimiser: LocalOptimiser
    num_prediction_samples: int
    seed: int
    alpha: float


@dataclass(frozen=True, eq=False)
class ModelState:
    """All that a stream has come to, as plain arrays; no data among them.

    :param settings: how the stream goes on.
    :param structure: kernel, mean function and likelihood in words, by path.
    :param parameters: unconstrained values of all their parameters and variables, by path.
    :param prior: the prior over (f, ε).
    :param factors: the factor of every batch, in order of arrival.
    :param num_updates: how many batches have been learned from.
    :param dims: D and P of the data; None before the first batch.
    """

    settings: Settings
    structure: dict[str, str]
    parameters: dict[str, np.ndarray]
    prior: Process
    factors: dict[str, PseudoPointFactor]
    num_updates: int
    dims: tuple[int | None, int | None]


VALUE_TYPES: dict[str, type] = {
    cls.__name__: cls
    for cls in (
        *expfam.FAMILIES,
        expfam.Factor,
        ConditionalPseudoPoints,
        ConditionalRow,
        FixedHyperparameters,
        LocalOptimiser,
        ModelState,
        PointHyperparameters,
        PrivatePseudoPoints,
        Process,
        PseudoObservations,
        PseudoPointFactor,
        Settings,
        SharedPseudoPoints,
        VariationalHyperparameters,
    )
}
"""Every class that a file of a streaming model may hold, by its name there. A strategy of your own,
a frozen dataclass of plain fields, needs an entry here before a model with it can be saved."""


def state_of(model: StreamingGP) -> ModelState:
    """The state of a model: a value, which later updates do not change."""
    modules = _modules(model)
    return ModelState(
        settings=Settings(
            pseudo_points=model.pseudo_points,
            hyperparameters=model.hyperparameters,
            num_latent_gps=model._wanted_latent_gps,
            optimiser=model.optimiser,
            num_prediction_samples=model.num_prediction_samples,
            seed=model.seed,
            alpha=model.alpha,
        ),
        structure=st.structure(modules),
        parameters={p: np.array(st.variable(leaf)) for p, leaf in st.leaves(modules).items()},
        prior=model.ledger.prior,
        factors=dict(model.ledger.factors),
        num_updates=model._num_updates,
        dims=model._dims,
    )


def state_after(
    model: StreamingGP,
    ledger: pvi.Ledger[Process],
    epsilon: ParameterVector,
    value: np.ndarray,
    num_updates: int,
    dims: tuple[int, int],
) -> ModelState:
    """The state that a model will have once an update is committed; the model stays as it is.

    :param epsilon: the parameters that the update sets.
    :param value: what it sets them to, [E].
    """
    state, leaves = state_of(model), st.leaves(_modules(model))
    new = {id(parameter): np.asarray(piece) for parameter, piece in epsilon._pieces(value)}
    parameters = {path: new.get(id(leaves[path]), old) for path, old in state.parameters.items()}
    return replace(
        state,
        parameters=parameters,
        prior=ledger.prior,
        factors=dict(ledger.factors),
        num_updates=num_updates,
        dims=dims,
    )


def model_from(
    state: ModelState, kernel: Any, likelihood: Any, mean_function: Any = None
) -> StreamingGP:
    """A model in this state, which continues as the one would that the state was taken from.

    :param state: from :func:`state_of`.
    :param kernel: of the same classes, settings and parameters as that model's. Its parameters
        become the model's own and get their values from the state; so for the next two.
    :param likelihood: likewise.
    :param mean_function: likewise.
    :raises InvalidDataError: if one of them differs; names the difference, and none has changed.
    """
    from streaming_gp.gp.model import StreamingGP  # it imports this module

    settings = {field.name: getattr(state.settings, field.name) for field in fields(Settings)}
    model = StreamingGP(kernel, likelihood, mean_function, **settings)
    modules = _modules(model)
    st.refuse_difference(state.structure, st.structure(modules))
    model._ledger = pvi.Ledger(state.prior, MappingProxyType(dict(state.factors)))
    model._num_updates, model._dims = state.num_updates, state.dims
    if None not in state.dims:
        model._machinery = model._prepared()
        model.num_latent_gps = model._machinery.gp.num_latent
    for path, leaf in st.leaves(modules).items():  # last, as the caller owns them
        st.variable(leaf).assign(state.parameters[path])
    return model


def save(model: StreamingGP, path: serialization.PathLike) -> None:
    """Write the state of a model to a file, atomically.

    :raises InvalidDataError: if a strategy of the model is not among ``VALUE_TYPES``.
    :raises OSError: if the file cannot be written; what was there stays.
    """
    serialization.write(path, KIND, state_of(model), VALUE_TYPES)


def load(path: serialization.PathLike) -> ModelState:
    """The state in a file.

    :raises FileFormatError: if there is none; see :func:`streaming_gp.serialization.read`.
    """
    return serialization.read(path, KIND, VALUE_TYPES)


def _modules(model: StreamingGP) -> st.Modules:
    return {
        "kernel": model.kernel,
        "mean_function": model.mean_function,
        "likelihood": model.likelihood,
    }
