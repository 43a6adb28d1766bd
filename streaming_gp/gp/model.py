"""The user's object: a GPflow model that takes its data in batches."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import gpflow
import numpy as np

from streaming_gp import pvi
from streaming_gp.errors import InvalidDataError
from streaming_gp.gp import state as st
from streaming_gp.gp import structure
from streaming_gp.gp.bounds import PowerEP, Variational
from streaming_gp.gp.bounds.protocol import LocalBound
from streaming_gp.gp.fitting.optimiser import LocalOptimiser
from streaming_gp.gp.forgetting import ForgetNothing, Forgetting
from streaming_gp.gp.hyperparameters import HyperparameterStrategy, VariationalHyperparameters
from streaming_gp.gp.journal import Journal
from streaming_gp.gp.learning_schedule import EveryUpdate, LearningSchedule
from streaming_gp.gp.modules import refuse_other_kinds
from streaming_gp.gp.online.learning import OnlineLearningGP
from streaming_gp.gp.present import Present
from streaming_gp.gp.process.process import Process
from streaming_gp.gp.soundness import refuse_unsound, refuse_values
from streaming_gp.gp.strategies import PrivatePseudoPoints, PseudoPointStrategy
from streaming_gp.inputs import (
    require_integer,
    require_number,
    require_positive_integer,
    require_strategy,
)
from streaming_gp.pvi.step import PropernessPolicy
from streaming_gp.serialization import PathLike
from streaming_gp.validation import as_data

STRATEGIES: dict[str, tuple[type, str]] = {
    "pseudo_points": (PseudoPointStrategy, "PrivatePseudoPoints(10)"),
    "hyperparameters": (HyperparameterStrategy, "VariationalHyperparameters()"),
    "optimiser": (LocalOptimiser, "LocalOptimiser()"),
    "bound": (LocalBound, "Variational()"),
    "policy": (PropernessPolicy, "RaiseImproper()"),
    "learning": (LearningSchedule, "EveryUpdate()"),
    "forgetting": (Forgetting, "ForgetNothing()"),
}
"""What each of them is, with an example in words, for errors."""


class StreamingGP(OnlineLearningGP):
    """A sparse Gaussian process that learns from a stream of batches.

    Each :meth:`update` is one client pass of Partitioned Variational Inference: the batch gets a
    factor of private pseudo-points, fitted under the cavity that all earlier batches left, and no
    earlier data are needed (PVI 2018, section 6.2).

    :param kernel: Any GPflow kernel of one output, or ``SharedIndependent``,
        ``SeparateIndependent`` or ``LinearCoregionalization``.
    :param likelihood: Any GPflow likelihood.
    :param mean_function: Any GPflow mean function; zero by default.
    :param pseudo_points: How many points a batch gets and where, and what becomes of earlier ones.
        By default one at every input, within a budget of 1,000; ten for each batch where ``alpha``
        or ``bound`` say how few points are fitted.
    :param hyperparameters: What is learned about kernel, mean function and likelihood parameters.
    :param num_latent_gps: The number of latent functions; by default what kernel, likelihood and
        first batch say.
    :param optimiser: How the local free energy is maximised.
    :param num_prediction_samples: The number of values of ε over which predictions are averaged;
        even.
    :param seed: The seed of all random numbers.
    :param alpha: The power α of power EP, in [0, 1], for Gaussian noise; 0, the default, is the
        variational bound (Bui, Yan & Turner 2017).
    :param bound: The local bound, if it is another one than ``alpha`` says.
    :param policy: What to do about improper cavities and posteriors; by default they raise.
    :param learning: Which updates learn hyperparameters (and where points move to); by default
        every one. The others absorb their batch at the present q(ε), and so do all updates while
        labels of classes are all alike.
    :param forgetting: What earlier batches still say of f when a new one comes; by default all that
        they have said.
    :param journal: An empty or missing folder in which every completed change of the model is
        recorded before it is made; :meth:`resume` continues from there.
    :raises InvalidDataError: if an argument is out of its range, or strategies do not go together.
    """

    def __init__(
        self,
        kernel: gpflow.kernels.Kernel,
        likelihood: gpflow.likelihoods.Likelihood,
        mean_function: gpflow.functions.Function | None = None,
        pseudo_points: PseudoPointStrategy | None = None,
        hyperparameters: HyperparameterStrategy | None = None,
        num_latent_gps: int | None = None,
        optimiser: LocalOptimiser | None = None,
        num_prediction_samples: int = 16,
        seed: int = 0,
        alpha: float = 0.0,
        journal: PathLike | None = None,
        bound: LocalBound | None = None,
        policy: PropernessPolicy | None = None,
        learning: LearningSchedule | None = None,
        forgetting: Forgetting | None = None,
    ) -> None:
        refuse_other_kinds(kernel, likelihood, mean_function)
        require_integer("num_prediction_samples", num_prediction_samples)
        if num_latent_gps is not None:
            require_positive_integer("num_latent_gps", num_latent_gps)
        if num_prediction_samples < 2 or num_prediction_samples % 2:
            raise InvalidDataError(
                f"num_prediction_samples must be even and positive, got {num_prediction_samples}"
            )
        settings = st.Settings(
            pseudo_points or _points(exact=alpha == 0.0 and bound is None),
            hyperparameters or VariationalHyperparameters(),
            num_latent_gps,
            optimiser or LocalOptimiser(),
            num_prediction_samples,
            seed,
            _bound(alpha, bound),
            policy or pvi.RaiseImproper(),
            learning or EveryUpdate(),
            forgetting or ForgetNothing(),
        )
        _refuse_other_strategies(settings)
        settings.pseudo_points.local_bound(settings.bound, settings.hyperparameters)
        settings.bound.check(likelihood)
        settings.forgetting.check(settings.pseudo_points)
        super().__init__(kernel, likelihood, mean_function, settings)
        if journal is not None:
            self._journal = Journal.begun(journal, self.state)

    # ---- as a model of clients ----

    def prior(self) -> Process:
        """The prior over (f, ε), which a server starts from."""
        return self._now.ledger.prior

    def initial(self, seed: int) -> Process:
        """Where a client's fit starts while the posterior is still the prior: the prior itself."""
        return self.prior()

    def as_data(self, X: Any, Y: Any) -> tuple[np.ndarray, np.ndarray]:
        """X [N, D] and Y [N, P] as this model takes them.

        :raises InvalidDataError: naming what came and what was wanted.
        """
        return as_data((X, Y), self.likelihood, *self._now.dims)

    # ---- files ----

    @classmethod
    def from_state(
        cls, state: st.ModelState, kernel: Any, likelihood: Any, mean_function: Any = None
    ) -> StreamingGP:
        """A model in this state, which continues as the one would that the state was taken from.

        :param state: The :attr:`state` of a model.
        :param kernel: A kernel of the same classes, settings and parameters as that model's. Its
            parameters become the model's own and get their values from the state; so for
            likelihood and mean function.
        :param likelihood: The likelihood.
        :param mean_function: The mean function.
        :raises InvalidDataError: if one of them differs; names the difference, and all are as they
            were.
        """
        if not isinstance(state, st.ModelState):
            raise InvalidDataError(f"state must be a model's, got a {type(state).__name__}")
        settings = state.settings
        model = cls(
            kernel, likelihood, mean_function, settings.pseudo_points, settings.hyperparameters,
            settings.num_latent_gps, settings.optimiser, settings.num_prediction_samples,
            settings.seed, bound=settings.bound, policy=settings.policy, learning=settings.learning,
            forgetting=settings.forgetting,
        )  # fmt: skip
        structure.refuse_difference(state.structure, structure.structure(model.modules))
        refuse_values(model.modules, state.parameters)
        model._now = Present(
            state.ledger,
            model.num_latent_gps,
            state.dims,
            state.num_updates,
            state.shift,
            state.time,
            state.only_class,
        )
        if None not in state.dims:
            model._compiled = model._compile_for_dims()
            model.num_latent_gps = model._compiled.num_latent_gps
            model._now = replace(model._now, num_latent_gps=model.num_latent_gps)
        st.assign_parameters(model.modules, state.parameters)  # last, as the caller owns them
        return model

    def save(self, path: PathLike) -> None:
        """Write the whole state of the stream to a file, atomically; no data are in it.

        :param path: The file.
        :raises OSError: if the file cannot be written; a file that was there stays as it was.
        """
        st.write(path, self.state)

    @classmethod
    def load(
        cls,
        path: PathLike,
        kernel: gpflow.kernels.Kernel,
        likelihood: gpflow.likelihoods.Likelihood,
        mean_function: gpflow.functions.Function | None = None,
    ) -> StreamingGP:
        """The model that a file holds; it continues bit for bit as the saved one would.

        :param path: A file that :meth:`save` wrote.
        :param kernel: A kernel of the same structure as the saved model's; its parameters get their
            values from the file. So for likelihood and mean function.
        :param likelihood: The likelihood.
        :param mean_function: The mean function.
        :raises FileFormatError: if the file is missing, damaged, foreign, or of another version.
        :raises InvalidDataError: if the structure differs; names where.
        """
        state = st.read(path)
        refuse_unsound(path, state)
        return cls.from_state(state, kernel, likelihood, mean_function)

    @classmethod
    def resume(
        cls,
        journal: PathLike,
        kernel: gpflow.kernels.Kernel,
        likelihood: gpflow.likelihoods.Likelihood,
        mean_function: gpflow.functions.Function | None = None,
    ) -> StreamingGP:
        """The model at the last completed change in its journal, which it continues to write.

        :param journal: The folder that was given to the model as ``journal``.
        :param kernel: A kernel as in :meth:`load`; so for likelihood and mean function.
        :param likelihood: The likelihood.
        :param mean_function: The mean function.
        :raises FileFormatError: if there is no journal, or an entry is missing or damaged.
        :raises InvalidDataError: if the structure differs; names where.
        """
        written, state = Journal.resumed(journal)
        refuse_unsound(journal, state)
        model = cls.from_state(state, kernel, likelihood, mean_function)
        model._journal = written
        return model

    def print_summary(self) -> None:
        """Print GPflow's table of parameters, and a table of the ledger."""
        gpflow.utilities.print_summary(self)
        points = self.posterior_process.num_pseudo_points
        print(f"prior × {len(self.factors)} factors, {points} points")
        for batch_id, factor in self.factors.items():
            print(f"  {batch_id:<12} {len(factor.Z):>5} pseudo-points")

    # ---- copies ----

    def __deepcopy__(self, memo: dict[int, Any]) -> StreamingGP:
        """A model that continues the stream on its own, without a journal.

        The ledger never changes, so both have it.
        """
        clone = type(self).__new__(type(self))
        memo[id(self)] = clone
        with self._turns.swapping:
            shared = {"_now": self._now, "_compiled": None, "_journal": None}
            for name, value in vars(self).items():
                is_shared = name in shared
                clone.__dict__[name] = shared[name] if is_shared else copy.deepcopy(value, memo)
        return clone

    def __getstate__(self) -> dict[str, Any]:
        """Compiled functions and the journal, which has one writer, stay behind."""
        return {**vars(self), "_compiled": None, "_journal": None}


def _refuse_other_strategies(settings: st.Settings) -> None:
    for name, (protocol, example) in STRATEGIES.items():
        require_strategy(name, getattr(settings, name), protocol, example)


def _points(exact: bool) -> PseudoPointStrategy:
    """What is best on most streams, or what a bound for few points is for."""
    return PrivatePseudoPoints("all", budget=1000) if exact else PrivatePseudoPoints(10)


def _bound(alpha: float, bound: LocalBound | None) -> LocalBound:
    require_number("alpha", alpha)
    if not 0.0 <= alpha <= 1.0 or (alpha > 0.0 and bound is not None):
        raise InvalidDataError(
            f"alpha must lie in [0, 1], and be 0 where a bound is given; got {alpha} and {bound}"
        )
    if bound is not None:
        return bound
    return PowerEP(alpha) if alpha > 0.0 else Variational()
