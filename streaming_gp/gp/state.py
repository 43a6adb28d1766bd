"""The state of a stream as one frozen value, and that value in a file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import gpflow
import numpy as np

from streaming_gp import expfam, pvi, serialization
from streaming_gp.errors import FileFormatError, ImproperError, InvalidDataError
from streaming_gp.gp.fit.bounds import LocalBound
from streaming_gp.gp.fit.optimiser import LocalOptimiser
from streaming_gp.gp.fit.projection import GPLedger
from streaming_gp.gp.forgetting import Forgetting
from streaming_gp.gp.hyperparameters import HyperparameterStrategy, LearningSchedule
from streaming_gp.gp.process.nearest import Conditioning, Dense
from streaming_gp.gp.process.process import Process, PseudoPointFactor
from streaming_gp.gp.strategies.protocol import PseudoPointStrategy
from streaming_gp.gp.structure import Modules, structure, values
from streaming_gp.inputs import is_positive_integer, require_strategy, typed
from streaming_gp.pvi.step import PropernessPolicy
from streaming_gp.serialization import PathLike, registered_classes, storable

KIND = "streaming GP"
_STRATEGIES: dict[str, tuple[type, str]] = {
    "pseudo_points": (PseudoPointStrategy, "PrivatePseudoPoints(10)"),
    "hyperparameters": (HyperparameterStrategy, "VariationalHyperparameters()"),
    "optimiser": (LocalOptimiser, "LocalOptimiser()"),
    "bound": (LocalBound, "Variational()"),
    "policy": (PropernessPolicy, "RaiseImproper()"),
    "learning": (LearningSchedule, "EveryUpdate()"),
    "forgetting": (Forgetting, "ForgetNothing()"),
    "conditioning": (Conditioning, "NearestNeighbors()"),
}
"""The protocol of each, with an example in words, for errors."""


def drops_missing(value: str) -> bool:
    """Whether entries of Y that are NaN are left out.

    :raises InvalidDataError: if that is neither ``"refuse"`` nor ``"drop"``.
    """
    if value not in ("refuse", "drop"):
        raise InvalidDataError(f'missing must be "refuse" or "drop", got {value!r:.100}')
    return value == "drop"


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
    :param conditioning: How predictions condition on the points.
    :param missing: ``"refuse"`` or ``"drop"`` entries of Y that are NaN, unless told otherwise.
    """

    pseudo_points: PseudoPointStrategy
    hyperparameters: HyperparameterStrategy
    num_latent_gps: int | None
    optimiser: LocalOptimiser
    num_prediction_samples: int
    seed: int
    bound: LocalBound
    policy: PropernessPolicy
    learning: LearningSchedule
    forgetting: Forgetting
    conditioning: Conditioning
    missing: str = "refuse"

    def check(self, likelihood: gpflow.likelihoods.Likelihood) -> None:
        """Refuse strategies that are none, or do not go together or with a likelihood.

        :raises InvalidDataError: naming the first.
        """
        for name, (protocol, example) in _STRATEGIES.items():
            require_strategy(name, getattr(self, name), protocol, example)
        drops_missing(self.missing)
        self.pseudo_points.local_bound(self.bound, self.hyperparameters)
        self.bound.check(likelihood)
        self.forgetting.check(self.pseudo_points)
        if not (self.pseudo_points.allowed.near or isinstance(self.conditioning, Dense)):
            raise InvalidDataError(
                "conditioning on what is near wants points that are observed one by one, as "
                f'PrivatePseudoPoints("all") has them, got {self.pseudo_points}'
            )


@storable
@typed
@dataclass(frozen=True, eq=False)
class State:
    """All that a stream has come to, as plain arrays.

    Each factor holds the pseudo-inputs Z of its batch and Gaussian pseudo-observations there. With
    few pseudo-points these are summaries. With a pseudo-point at every input they are the batch:
    Z is X itself, and with Gaussian noise Y can be read off the pseudo-observations. Such a state,
    and a file or journal of it, holds private data.

    :param settings: How the stream goes on.
    :param structure: Kernel, mean function and likelihood in words, by path.
    :param parameters: The unconstrained values of all their parameters and variables, by path.
    :param prior: The prior over (f, ε).
    :param factors: The factor of every batch, in order of arrival.
    :param num_updates: The number of batches that have been learned from.
    :param dims: D and P of the data; None where that is not known before the first batch.
    :param conditioning: How predictions condition now: as the settings say, or on what is near
        alone where the newest update that learned has found that it says all.
    :param shift: How far the newest update that learned moved ε; see
        :meth:`LearningSchedule.wants`.
    :param time: The time of the newest batch; None before the first one.
    :param only_class: The class of all labels so far, while there is but one.
    :param num_data: The number of data of all updates.
    :param num_data_learned: The same at the newest update that learned.
    """

    settings: Settings
    structure: Mapping[str, str]
    parameters: Mapping[str, np.ndarray]
    prior: Process
    factors: Mapping[str, PseudoPointFactor]
    num_updates: int
    dims: tuple[int | None, int | None]
    conditioning: Conditioning
    shift: float = math.inf
    time: float | None = None
    only_class: float | None = None
    num_data: int = 0
    num_data_learned: int = 0

    @classmethod
    def first(
        cls, settings: Settings, modules: Modules, prior: Process, output_dim: int | None
    ) -> State:
        """The state of a model before any data.

        :param output_dim: P, where it is known already.
        """
        described, parameters = structure(modules), values(modules)
        dims = None, output_dim
        return cls(settings, described, parameters, prior, {}, 0, dims, settings.conditioning)

    @cached_property
    def ledger(self) -> GPLedger:
        """Prior and factors."""
        return pvi.Ledger(self.prior).with_factors(self.factors)

    @property
    def is_apart(self) -> bool:
        """Whether each latent function is observed where the others may not be."""
        observations = self.ledger.posterior.pseudo_observations
        return self.settings.missing == "drop" or any(one.sizes[1] > 1 for one in observations[:1])

    @property
    def apart(self) -> State:
        """The same, with factors in which each latent function is observed for itself.

        :raises InvalidDataError: if factors rest on one another.
        """
        if self.is_apart:
            return self
        prior = PseudoPointFactor(self.prior.pseudo_observations).apart.pseudo_observations
        factors = {name: factor.apart for name, factor in self.factors.items()}
        return replace(self, prior=replace(self.prior, pseudo_observations=prior), factors=factors)

    def with_ledger(self, ledger: GPLedger, **changes: Any) -> State:
        """The state with this ledger, and with other fields that have changed.

        What the ledger has computed already stays with it.
        """
        after = replace(self, prior=ledger.prior, factors=dict(ledger.factors), **changes)
        vars(after)["ledger"] = ledger
        return after


def write(path: PathLike, state: State) -> None:
    """Write a state to a file, atomically.

    :raises InvalidDataError: if a strategy is not :func:`~streaming_gp.serialization.storable`.
    :raises OSError: if the file cannot be written; what was there stays.
    """
    serialization.write(path, KIND, state, registered_classes())


def read(path: PathLike) -> State:
    """The state in a file.

    :raises FileFormatError: if there is none, see :func:`streaming_gp.serialization.read`; or if
        no model can have come to it.
    """
    state: State = serialization.read(path, KIND, registered_classes(), State)
    refuse_unsound(path, state)
    return state


def refuse_unsound(source: Any, state: State) -> None:
    """Refuse a state that no model can have come to.

    :param source: Where it comes from, for the error.
    :raises FileFormatError: naming what is wrong with it.
    """
    objection = _objection_to(state)
    if objection is not None:
        raise FileFormatError(f"{source} holds no sound model: {objection}")


def _objection_to(state: State) -> str | None:
    if len(state.dims) != 2 or not all(d is None or is_positive_integer(d) for d in state.dims):
        return f"dims are {state.dims!r:.100}, wanted two positive integers or None"
    q = state.prior.hyperparameters
    objection = None if q is None else _objection_to_posterior(q)
    if objection is not None:
        return f"its prior: {objection}"
    before = Process((), q)
    for name, factor in state.factors.items():
        objection = before.objection_to(factor)
        if objection is not None:
            return f"factor {name!r}: {objection}"
        before = Process((*before.pseudo_observations, *factor.pseudo_observations)[:1], q)
    try:
        _ = state.ledger.posterior
    except ImproperError as error:
        return str(error)
    return None


def _objection_to_posterior(q: Any) -> str | None:
    if not isinstance(q, expfam.Gaussian):
        return f"q(ε) is a {type(q).__name__}, wanted a Gaussian"
    if not all(isinstance(eta, (np.ndarray, np.generic)) for eta in q.natural):
        return "the natural parameters of q(ε) are no arrays"
    objection = q.objection_to(expfam.Factor(type(q), q.natural))
    if objection is not None:
        return objection
    if any(np.asarray(eta).dtype != np.float64 for eta in q.natural):
        return "q(ε) is not in float64"
    return None if type(q).is_proper_natural(*q.natural) else "q(ε) is no distribution"
