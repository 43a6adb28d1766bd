"""The user's object: a GPflow model that takes its data in batches."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.models.training_mixins import InternalDataTrainingLossMixin

from streaming_gp import expfam, pvi
from streaming_gp.errors import InvalidDataError
from streaming_gp.gp import federated, prediction, stream
from streaming_gp.gp import state as st
from streaming_gp.gp.compilation import (
    Functions,
    num_latent_gps,
    parameters_of,
)
from streaming_gp.gp.export import Exported, export
from streaming_gp.gp.fit import PowerEP, Variational
from streaming_gp.gp.fit.bounds import LocalBound
from streaming_gp.gp.fit.fitted import Fitted
from streaming_gp.gp.fit.optimiser import Callback, LocalOptimiser
from streaming_gp.gp.fit.projection import GPLedger
from streaming_gp.gp.forgetting import ForgetNothing, Forgetting
from streaming_gp.gp.hyperparameters import (
    EveryUpdate,
    HyperparameterStrategy,
    LearningSchedule,
    ParameterVector,
    VariationalHyperparameters,
    WhenGrown,
)
from streaming_gp.gp.journal import Journal
from streaming_gp.gp.online.change import Alarm
from streaming_gp.gp.online.gp import FALSE_ALARMS, OnlineGP, Part, refuse_foreign
from streaming_gp.gp.outputs import outputs_of
from streaming_gp.gp.prediction import Inputs, Posterior, PosteriorSnapshot
from streaming_gp.gp.process.nearest import Conditioning, Dense, NearestNeighbors
from streaming_gp.gp.process.observations import PseudoObservations
from streaming_gp.gp.process.process import Process, PseudoPointFactor
from streaming_gp.gp.state import Settings, State
from streaming_gp.gp.store import Store
from streaming_gp.gp.strategies import PrivatePseudoPoints, PseudoPointStrategy
from streaming_gp.gp.stream import Data, UpdateInfo
from streaming_gp.gp.structure import (
    Modules,
    lower_noise_bound,
    noise_bound_as_it_was,
    refuse_other_kinds,
)
from streaming_gp.inputs import (
    as_name,
    require_count,
    require_flag,
    require_integer,
    require_not_negative,
    require_number,
    require_positive_integer,
)
from streaming_gp.pvi.model import SecondOrder
from streaming_gp.pvi.step import PropernessPolicy
from streaming_gp.serialization import PathLike
from streaming_gp.validation import as_data

DENSE_UP_TO = 8000
"""By default all points are conditioned on up to so many of them."""

P = ParamSpec("P")
R = TypeVar("R")


class StreamingGP(gpflow.models.GPModel, InternalDataTrainingLossMixin):
    """A Gaussian process that learns from a stream of batches.

    Each :meth:`update` is one client pass of Partitioned Variational Inference: the batch gets a
    factor, fitted under the cavity that all earlier batches left (PVI 2018, section 6.2). By
    default the factor is the batch's likelihood, and holds its data.

    :param kernel: Any GPflow kernel of one output, or ``SharedIndependent``,
        ``SeparateIndependent`` or ``LinearCoregionalization``.
    :param likelihood: Any GPflow likelihood.
    :param mean_function: Any GPflow mean function; zero by default.
    :param pseudo_points: How many points a batch gets and where, and what becomes of earlier ones.
        By default one at every input, so that nothing is lost; ten for each batch where ``alpha``
        or ``bound`` say how few points are fitted.
    :param hyperparameters: What is learned about kernel, mean function and likelihood parameters.
        By default a distribution; with a point at every input, one with correlations.
    :param num_latent_gps: The number of latent functions; by default what kernel, likelihood and
        first batch say.
    :param optimiser: How the local free energy is maximised.
    :param num_prediction_samples: The number of values of ε over which predictions are averaged;
        even.
    :param seed: The seed of all random numbers.
    :param alpha: The power α of power EP, in [0, 1], for a likelihood of one latent function for
        each observation; 0, the default, is the variational bound (Bui, Yan & Turner 2017).
    :param bound: The local bound, if it is another one than ``alpha`` says.
    :param policy: What to do about improper cavities and posteriors; by default they raise.
    :param learning: Which updates learn hyperparameters (and where points move to); by default,
        with a point at every input, those that :class:`.WhenGrown` says, about as often as the
        stream doubles, and else every one. The others absorb their batch at the present q(ε), and
        so do all updates while labels of classes are all alike.
    :param forgetting: What earlier batches still say of f when a new one comes; by default all that
        they have said.
    :param conditioning: How predictions condition on the points: on all of them
        (:class:`.Dense`), or on the near ones (:class:`.NearestNeighbors`). By default, with a
        point at every input, on all up to 2,000 points, or 8,000 where points further away have
        been found to say more, and on the near ones beyond.
    :param missing: ``"refuse"``, or ``"drop"`` entries of Y that are NaN: outputs that were not
        observed at an input are left out, one by one. That wants Gaussian noise with a point at
        every input, or a kernel that mixes functions.
    :param journal: An empty or missing folder in which every completed change of the model is
        recorded before it is made; :meth:`resume` continues from there.
    :raises InvalidDataError: if an argument is out of its range, or strategies do not go together.

    >>> model = sgp.StreamingGP(gpflow.kernels.Matern52(), gpflow.likelihoods.Gaussian(0.1))
    >>> for rows in np.split(np.arange(20), 2):
    ...     info = model.update((X[rows], Y[rows]))
    >>> info.batch_id, [*model.factors]
    ('batch-1', ['batch-0', 'batch-1'])
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
        conditioning: Conditioning | None = None,
        missing: str = "refuse",
    ) -> None:
        refuse_other_kinds(kernel, likelihood, mean_function)
        require_integer("num_prediction_samples", num_prediction_samples)
        if num_latent_gps is not None:
            require_positive_integer("num_latent_gps", num_latent_gps)
        if num_prediction_samples < 2 or num_prediction_samples % 2:
            raise InvalidDataError(
                f"num_prediction_samples must be even and positive, got {num_prediction_samples}"
            )
        if pseudo_points is None:  # ten where a bound for few points is asked for
            is_exact = alpha == 0.0 and bound is None
            pseudo_points = PrivatePseudoPoints("all") if is_exact else PrivatePseudoPoints(10)
        is_strategy = not isinstance(pseudo_points, type)
        is_strategy &= isinstance(pseudo_points, PseudoPointStrategy)
        near = is_strategy and pseudo_points.allowed.near
        if not (near and getattr(pseudo_points, "budget", None)):
            lower_noise_bound(likelihood)  # points that are merged have white noise of their own
        if conditioning is None:
            conditioning = NearestNeighbors(dense_up_to=DENSE_UP_TO) if near else Dense()
        hyperparameters = hyperparameters or VariationalHyperparameters(full_covariance=near)
        settings = Settings(
            pseudo_points,
            hyperparameters,
            num_latent_gps,
            optimiser or LocalOptimiser(),
            num_prediction_samples,
            seed,
            _bound(alpha, bound),
            policy or pvi.RaiseImproper(),
            learning or _schedule(near, hyperparameters),
            forgetting or ForgetNothing(),
            conditioning,
            missing,
        )
        settings.check(likelihood)
        outputs = outputs_of(kernel, likelihood, num_latent_gps)
        super().__init__(kernel, likelihood, mean_function, outputs.num_latent_gps or 1)
        prior = Process((), settings.hyperparameters.prior(self.parameter_vector))
        state = State.first(settings, self.modules, prior, outputs.num_columns)
        self._store = Store(state)
        if journal is not None:
            self._store.journal = Journal.begun(journal, state)

    # ---- what it holds ----

    @property
    def settings(self) -> Settings:
        """The strategies and other arguments of the model."""
        return self._store.state.settings

    @settings.setter
    def settings(self, value: object) -> None:
        raise InvalidDataError(
            "settings cannot be changed, as what was learned so far rests on them: make "
            "a model with others by StreamingGP(...) or StreamingGP.from_state(...)"
        )

    @property
    def num_latent_gps(self) -> int:
        """The number L of latent functions, which kernel, likelihood and the first batch say."""
        return num_latent_gps(self.modules, self._store.state)

    @num_latent_gps.setter
    def num_latent_gps(self, value: int) -> None:
        """GPflow's own initialiser sets it."""

    @property
    def ledger(self) -> GPLedger:
        """Prior and factors."""
        return self._store.state.ledger

    @property
    def factors(self) -> Mapping[str, PseudoPointFactor]:
        """The factor of every batch, in order of arrival (read-only)."""
        return self.ledger.factors

    @property
    def num_updates(self) -> int:
        """Batches learned from so far; a resumed stream goes on with the next one."""
        return self._store.state.num_updates

    @property
    def posterior_process(self) -> Process:
        """Prior times factors."""
        return self.ledger.posterior

    @property
    def hyperparameter_posterior(self) -> expfam.Gaussian | None:
        """q(ε) on the unconstrained vector, or None where ε is a point."""
        return self.posterior_process.hyperparameters

    @property
    def parameter_vector(self) -> ParameterVector:
        """The vector ε of the trainable parameters of kernel, mean function and likelihood."""
        return parameters_of(self.modules)

    @property
    def modules(self) -> Modules:
        """Kernel, mean function and likelihood by these names."""
        return {
            "kernel": self.kernel,
            "mean_function": self.mean_function,
            "likelihood": self.likelihood,
        }

    @property
    def state(self) -> State:
        """All that the stream has come to, as a value that later updates do not change."""
        return self._store.current(self.modules)

    def _change(
        self,
        make: Callable[Concatenate[State, Functions, P], tuple[State, R]],
        *arguments: P.args,
        **options: P.kwargs,
    ) -> R:
        return self._store.change(self.modules, make, *arguments, **options)

    # ---- learning ----

    def update(
        self,
        data: Data,
        callback: Callback | None = None,
        batch_id: str | None = None,
        learn: bool | None = None,
        time: float | None = None,
        missing: str | None = None,
    ) -> UpdateInfo:
        """Take in one batch. If anything raises, the model is exactly as it was.

        :param data: X [N, D] and Y [N, P], NumPy arrays or tensors of any real dtype.
        :param callback: Called with a :class:`Progress` after every optimiser iteration.
        :param batch_id: The name of the batch's factor; by default ``"batch-0"`` and so on.
        :param learn: Whether hyperparameters and places of points are learned. If not, the batch
            is absorbed at the present q(ε), which stays as it is, by linear algebra alone. By
            default the model's learning schedule decides, and nothing is learned while all labels
            are of one class: they say that f is far from zero, and nothing of how it varies.
        :param time: The time of the batch, in any unit and from any origin, where factors fade with
            time; by default one later than the batch before.
        :param missing: ``"refuse"`` or ``"drop"`` entries of Y that are NaN; by default as the
            model was told.
        :returns: what was done.
        :raises InvalidDataError: if the batch is not finite, empty, of the wrong shape or dtype, or
            outside the likelihood's support, or its name is taken, or time runs backwards.
        :raises NumericalError: if a covariance stays indefinite.

        >>> model.update((X + 5.0, np.sin(X + 5.0)), batch_id="tuesday").batch_id
        'tuesday'
        """
        return self._change(stream.update, data, callback, batch_id, learn, time, missing)

    def revisit(
        self,
        batch_id: str,
        data: Data,
        callback: Callback | None = None,
        damping: float = 1.0,
        missing: str | None = None,
    ) -> UpdateInfo:
        """A further pass over a kept batch: its factor is fitted anew under its present cavity.

        Its pseudo-points start where they are; with ``damping`` below 1 they stay there.

        :param batch_id: The name of its factor.
        :param data: The same data again, X [N, D] and Y [N, P].
        :param callback: Called with a :class:`Progress` after every optimiser iteration.
        :param damping: ρ in (0, 1]: the new factor is ``t_old^(1−ρ) t_new^ρ``.
        :param missing: As of :meth:`update`.
        :returns: what was done.
        :raises InvalidDataError: as :meth:`update`, or if there is no such factor.
        :raises ImproperError: if q(ε) without this batch is no distribution, and the policy refuses
            that.
        """
        return self._change(stream.revisit, batch_id, data, callback, damping, missing)

    def synchronous_round(
        self, shards: Mapping[str, Data], damping: float | None = None
    ) -> dict[str, UpdateInfo]:
        """Every shard refines its factor under the present ledger; then all are replaced at once.

        Shards that are new to the ledger get a factor. Pseudo-points stay where the first round put
        them, and hyperparameters must not be a point, as shards would differ in it.

        :param shards: ``{batch_id: (X, Y)}``.
        :param damping: ρ in (0, 1], by default one over the number of shards.
        :returns: what was done, by shard.
        :raises InvalidDataError: as :meth:`update`, or if the strategies allow no rounds.
        :raises ImproperError: as :meth:`revisit`.
        """
        return self._change(stream.synchronous_round, shards, damping)

    def remove(self, batch_id: str) -> None:
        """Forget a batch: divide its factor out.

        At fixed hyperparameters, and where no later batch was fitted under this factor, the model
        is exactly the one that never saw the batch. Later factors keep what they learned under it;
        :meth:`revisit` them to be rid of that too. With a point at every input, where factors hold
        their data, hyperparameters are learned again from those that are left, unless the batch had
        no part in them.

        :param batch_id: The name of its factor.
        :raises InvalidDataError: if there is no such factor.
        :raises ImproperError: if q(ε) without it is no distribution, and is not learned again.

        >>> model.remove("batch-0")
        >>> bool(np.all(model.predict_f(X)[0] == 0.0))  # the prior again
        True
        """
        self._change(stream.remove, batch_id)

    def fade(self, power: float) -> None:
        """Raise what all factors say of f to a power; what they say of ε stays as it is.

        :param power: A number in [0, 1]: 1 changes nothing, and after 0 nothing is known of f.
        :raises InvalidDataError: if the power is out of its range, or the strategy's factors rest
            on one another.
        """
        self._change(stream.fade, power)

    def compress(self, number: int) -> float:
        """Merge all factors into one on at most ``number`` points; q(ε) stays as it is.

        :param number: The number M of points, at least 1.
        :returns: the nats by which the log evidence estimate falls.
        :raises InvalidDataError: if ``number`` is not a positive integer, or the strategy's factors
            cannot be merged.
        """
        return self._change(stream.compress, number)

    # ---- one point at a time ----

    def online(
        self,
        budget: int = 300,
        memory: float | None = None,
        false_alarms: float = FALSE_ALARMS,
        on_alarm: Callable[[Alarm], object] | None = None,
    ) -> OnlineGP:
        """The model as an object that predicts and learns one point at a time.

        It is at one ε, the mean of q(ε), and holds at most ``budget`` points; the model itself
        learns nothing until it is told to :meth:`absorb` the object. Where observations say that
        the function has changed, the object forgets as much as they say, and tells.

        :param budget: The largest number of points. Beyond it the point goes that matters least.
        :param memory: The number of observations in which a point matters e-fold less, unless new
            inputs come near it; by default the budget. Infinite where inputs keep coming from
            everywhere.
        :param false_alarms: The probability of a false alarm at each observation, as far as the
            kernel is right; zero for a function that never changes.
        :param on_alarm: Called with each alarm; by default the first one is a warning.
        :raises InvalidDataError: if the budget is not a positive integer, the memory not positive
            or the probability none, the model has seen no data, its noise is not Gaussian of one
            variance for each output, its functions are mixed, or its factors do not stand alone.
        """
        return OnlineGP(self, budget, memory, false_alarms, on_alarm)

    def absorb(self, online: OnlineGP, name: str | None = None) -> str | None:
        """Take what was learned one point at a time into the ledger, as one factor.

        Its log constant makes the model's log evidence grow by that of the points. Under q(ε) the
        factor says nothing of ε. The object goes on, and what it learned counts as known from now
        on, so that nothing is taken twice.

        :param online: An object that :meth:`online` of this model made, or that adopted it.
        :param name: The name of the factor; by default ``"online-0"`` and so on.
        :returns: the name, or None if nothing was learned since the last time.
        :raises InvalidDataError: if the object is another model's, or the name is taken.
        """
        with self._store.turn.of("absorb"):
            name = as_name("name", f"online-{self.num_updates}" if name is None else name)
            refuse_foreign(online, self, name, self.factors)

            def commit(learned: tuple[PseudoObservations, ...], log_evidence: float) -> None:
                make = stream.absorb
                self._store.change_within_turn(self.modules, make, name, learned, log_evidence)

            return name if online.hand_over(commit) else None

    def online_parts(
        self, budget: int, memory: float, own: Sequence[PseudoObservations | None] | None = None
    ) -> tuple[Part, ...]:
        """The posterior on at most ``budget`` points for each kernel, times ``own``.

        :raises InvalidDataError: as :meth:`online`.
        """
        return stream.online_parts(self.state, self._functions(), budget, memory, own)

    # ---- as a model of clients ----

    def prior(self) -> Process:
        """The prior over (f, ε), which a server starts from."""
        return self.ledger.prior

    def initial(self, seed: int) -> Process:
        """Where a client's fit starts while the posterior is still the prior: the prior itself."""
        return self.prior()

    def as_data(self, X: Any, Y: Any) -> tuple[np.ndarray, np.ndarray]:
        """X [N, D] and Y [N, P] as this model takes them.

        :raises InvalidDataError: naming what came and what was wanted.
        """
        return as_data((X, Y), self.likelihood, *self._store.state.dims)

    def fit_factor(
        self, data: Data, cavity: Process, own: PseudoPointFactor | None, hold: bool = True
    ) -> Fitted:
        """Fit data under a cavity that someone else holds; the model itself learns nothing.

        :param data: X [N, D] and Y [N, P].
        :param cavity: Prior times all other factors.
        :param own: The factor that these data have now, if they have one.
        :param hold: Whether its points stay.
        :returns: their new factor and what was done.
        :raises InvalidDataError: if factors of the model's strategies rest on one another.
        """
        return self._store.ask(self.modules, stream.fit_factor, data, cavity, own, hold)

    def default_update(self) -> federated.GPUpdate:
        """For ``pvi.run``."""
        return federated.GPUpdate()

    def largest_factor(self, num_data: int) -> int:
        """The bytes of the largest factor that a client of so many rows can answer by."""
        number = getattr(self.settings.pseudo_points, "number", None)
        most = (
            num_data
            if number == "all"
            else getattr(self.settings.pseudo_points, "largest_batch", num_data)
        )
        return federated.largest_factor(
            self.prior(), min(num_data, most), self.num_latent_gps, self.state.dims[0]
        )

    def objection_to_answer(self, factor: PseudoPointFactor, num_data: int) -> str | None:
        """Why a client of so many rows cannot be as sure as this factor, or None."""
        return federated.objection_to_size(factor, self.kernel, num_data)

    def adopt(self, ledger: GPLedger) -> None:
        """Hold this ledger from now on, for instance that of a server whose clients learned it.

        Trainable parameters take the mean of its q(ε).

        :param ledger: Prior and factors, as :class:`~streaming_gp.pvi.Server` holds them.
        :raises InvalidDataError: if its factors are none of this model.
        :raises ImproperError: if its posterior is no distribution; nothing has changed then.
        """
        self._change(stream.adopt, ledger)

    def go_back(self, state: st.State) -> None:
        """Hold an earlier state again: several changes that failed together count as none.

        :param state: The :attr:`state` of this model before them.
        :raises InvalidDataError: if it is the state of another model.
        """
        self._change(stream.go_back, state)

    @property
    def trainable_variables(self) -> Sequence[tf.Variable]:
        """Those of kernel, mean function and likelihood, in the order of ε."""
        parameters = self.parameter_vector.parameters.values()
        return tuple(one.unconstrained_variable for one in parameters)

    def data_term_by_hyperparameters(self, q: Process, data: tuple[Any, Any]) -> SecondOrder:
        """The term of some data in the free energy, about the ε that the parameters hold.

        :param q: Prior times all factors.
        :param data: X [N, D] and Y [N, P].
        :raises InvalidDataError: if factors speak of ε.
        """
        return self._store.ask(self.modules, stream.data_term, q, data)

    def prior_term_by_hyperparameters(self, q: Process) -> SecondOrder:
        """The term of the prior in the free energy, about the ε that the parameters hold.

        :param q: Prior times all factors.
        :raises InvalidDataError: if factors speak of ε.
        """
        return self._store.ask(self.modules, stream.prior_term, q)

    # ---- predictions: nothing in them is for TensorFlow to read and rewrite ----

    @property
    def prediction_draws(self) -> np.ndarray:
        """The values of ε [S, E], unconstrained, over which predictions are averaged."""
        with self._store.lock:
            return prediction.prediction_draws(
                self.posterior_process,
                self.parameter_vector,
                self.settings.num_prediction_samples,
                self.settings.seed,
            )

    def posterior(self) -> PosteriorSnapshot:
        """The present posterior as an object, with all that predictions share computed.

        The model keeps the newest one itself, so that its own predictions are as fast; this one
        answers as it does now, whatever the model learns later.

        :raises InvalidDataError: before any data.

        >>> posterior = model.posterior()
        >>> before = posterior.predict_f(X)[0].numpy()
        >>> _ = model.update((X, np.cos(X)))
        >>> bool(np.all(posterior.predict_f(X)[0].numpy() == before))
        True
        """
        input_dim, output_dim = self._store.state.dims
        if input_dim is None or output_dim is None:
            raise InvalidDataError("nothing has been learned yet: wanted an update first")
        return PosteriorSnapshot(
            self._posterior(input_dim, output_dim),
            self.kernel,
            self.likelihood,
            (input_dim, output_dim),
            self.settings.seed,
        )

    @tf.autograph.experimental.do_not_convert
    def predict_f(
        self, Xnew: Any, full_cov: bool = False, full_output_cov: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean and (co)variance of f, integrated over q(ε); shapes as in GPflow.

        :param Xnew: The inputs [N, D].
        :param full_cov: Whether to give covariances over the inputs.
        :param full_output_cov: Whether to give covariances over the outputs.
        :returns: mean [N, P] and variance [N, P]; with ``full_cov`` [P, N, N], with
            ``full_output_cov`` [N, P, P], with both [N, P, N, P].
        :raises InvalidDataError: if Xnew is not a finite matrix of D columns.
        :raises NumericalError: if they are so large that covariances overflow.

        >>> mean, covariance = model.predict_f(X[:3], full_cov=True)
        >>> mean.shape.as_list(), covariance.shape.as_list()
        ([3, 1], [1, 3, 3])
        """
        X = self._inputs(Xnew)
        return self._posterior(X.shape[1]).predict_f(X, full_cov, full_output_cov)

    @tf.autograph.experimental.do_not_convert
    def predict_y(
        self, Xnew: Any, full_cov: bool = False, full_output_cov: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean and variance [N, P] of new observations, integrated over q(ε).

        :param Xnew: The inputs [N, D].
        :raises NotImplementedError: with ``full_cov`` or ``full_output_cov``, as in GPflow.
        """
        X = self._inputs(Xnew)
        return self._posterior(X.shape[1]).predict_y(X, full_cov, full_output_cov)

    @tf.autograph.experimental.do_not_convert
    def predict_log_density(
        self, data: tuple[Any, Any], full_cov: bool = False, full_output_cov: bool = False
    ) -> tf.Tensor:
        """``log p(y_n | x_n)`` [N] of held-out data, in nats, integrated over q(ε).

        Given ε, outputs count one by one, as in GPflow, even where the kernel mixes functions.

        :param data: The inputs X [N, D] and the observations Y [N, P].
        :raises InvalidDataError: as :meth:`StreamingGP.update`.
        """
        gpflow.utilities.assert_params_false(
            self.predict_log_density, full_cov=full_cov, full_output_cov=full_output_cov
        )
        X, Y = self.as_data(*data)
        return self._posterior(X.shape[1], Y.shape[1]).predict_log_density(X, Y)

    @tf.autograph.experimental.do_not_convert
    def predict_f_samples(
        self,
        Xnew: Any,
        num_samples: int | None = None,
        full_cov: bool = True,
        full_output_cov: bool = False,
        seed: int | None = None,
    ) -> tf.Tensor:
        """Draws of f, each with its own ε from q(ε): [N, P], or [S, N, P] for S samples.

        :param Xnew: The inputs [N, D].
        :param num_samples: The number S of draws; one without the leading axis if None.
        :param full_cov: Whether draws are correlated over the inputs.
        :param full_output_cov: Whether draws are correlated over the outputs, as they are given ε
            where the kernel mixes latent functions; not supported with ``full_cov``.
        :param seed: The seed of the draws: the model's own by default, so that a second call gives
            the same draws.
        """
        X, seed = self._inputs(Xnew), self.settings.seed if seed is None else seed
        posterior = self._posterior(X.shape[1])
        return posterior.predict_f_samples(X, num_samples, full_cov, full_output_cov, seed)

    def hyperparameter_samples(
        self, num_samples: int, seed: int | None = None
    ) -> dict[str, np.ndarray]:
        """Draws from q(ε) in constrained space: ``{parameter path: [S, ...]}``.

        Point and fixed hyperparameters repeat their value.

        :param num_samples: The number S of draws.
        :param seed: The seed of the draws; the model's own by default.
        """
        require_count("num_samples", num_samples)
        seed = self.settings.seed if seed is None else seed
        require_count("seed", seed)
        return prediction.hyperparameter_samples(
            self.hyperparameter_posterior, self.parameter_vector, num_samples, seed
        )

    def export(self, path: PathLike, nats: float = 0.0, single: bool = False) -> Exported:
        """Write all that predictions need to a file, for :func:`streaming_gp.runtime.load`.

        That makes the same predictions with NumPy alone, but learns no more.

        :param path: The file; one that was there is replaced.
        :param nats: How much log density an observation may lose for a smaller and faster file, of
            as few values of ε as that allows, such as .01; zero for all that the model predicts
            with.
        :param single: Whether observations are in single precision, in half of their bytes.
        :returns: how many values of ε it has, and what it loses.
        :raises InvalidDataError: before any data, for conditional pseudo-points, for a kernel or
            mean function that has no NumPy form, and for negative nats.
        :raises OSError: if the file cannot be written; a file that was there stays as it was.
        """
        require_not_negative("nats", nats)
        require_flag("single", single)
        if self._store.state.dims[0] is None:
            raise InvalidDataError("a model can be exported once it has seen data")
        return export(path, self._posterior(self._store.state.dims[0]), nats, single)

    def maximum_log_likelihood_objective(self) -> tf.Tensor:
        """Log normaliser of prior × factors at the parameters' present values: a scalar, in nats.

        With a pseudo-point at every input and Gaussian noise this is the exact log evidence as a
        function of kernel and mean function; elsewhere the sum of local free energies, carried by
        the pseudo-observations to other values of ε.
        """
        if None in self._store.state.dims:
            return tf.zeros([], tf.float64)
        with tf.init_scope():
            local = self._functions().of(self._store.state).local
        return prediction.log_evidence(local, self.posterior_process)

    def _inputs(self, X: Any) -> Inputs:
        return prediction.as_inputs(X, self.kernel, self._store.state.dims[0])

    def _posterior(self, input_dim: int, output_dim: int | None = None) -> Posterior:
        return self._store.posterior(self.modules, input_dim, output_dim)

    def _functions(self) -> Functions:
        return Functions(self.modules, self._store.compiled)

    # ---- files and copies ----

    @classmethod
    def from_state(
        cls, state: State, kernel: Any, likelihood: Any, mean_function: Any = None
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
        if not isinstance(state, State):
            raise InvalidDataError(f"state must be a model's, got a {type(state).__name__}")
        with noise_bound_as_it_was(likelihood):
            model = cls(kernel, likelihood, mean_function, **vars(state.settings))
            model._store.restore(model.modules, state)
        return model

    def save(self, path: PathLike) -> None:
        """Write the whole state of the stream to a file, atomically.

        With few pseudo-points the data themselves are not in it. With a pseudo-point at every
        input, the default, they are: its inputs are those of the batches, and with Gaussian noise
        the targets can be read off it. Such a file holds private data; see :class:`.State`.

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

        >>> model.save("stream.npz")
        >>> parts = gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian()
        >>> again = sgp.StreamingGP.load("stream.npz", *parts)
        >>> bool(np.all(again.predict_f(X)[0] == model.predict_f(X)[0]))
        True
        """
        return cls.from_state(st.read(path), kernel, likelihood, mean_function)

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
        entries, state = Journal.resumed(journal)
        model = cls.from_state(state, kernel, likelihood, mean_function)
        model._store.journal = entries
        return model

    def print_summary(self) -> None:
        """Print GPflow's table of parameters, and a table of the ledger."""
        gpflow.utilities.print_summary(self)
        points = self.posterior_process.num_pseudo_points
        print(f"prior × {len(self.factors)} factors, {points} points")
        for batch_id, factor in self.factors.items():
            print(f"  {batch_id:<12} {len(factor.Z):>5} pseudo-points")

    def __getstate__(self) -> dict[str, Any]:
        """For pickles and shallow copies.

        :raises InvalidDataError: as :attr:`state`, if what the model rests on was changed by hand.
        """
        self._store.current(self.modules)
        return self.__dict__

    def __deepcopy__(self, memo: dict[int, Any]) -> StreamingGP:
        """A model that continues the stream on its own, without a journal.

        :raises InvalidDataError: as :attr:`state`.
        """
        self._store.current(self.modules)
        clone = type(self).__new__(type(self))
        memo[id(self)] = clone
        with self._store.lock:
            for name, value in vars(self).items():
                clone.__dict__[name] = copy.deepcopy(value, memo)
        return clone


def _schedule(near: bool, hyperparameters: HyperparameterStrategy) -> LearningSchedule:
    """A stream that forgets what it knew of ε must hear of it from every batch."""
    remembers = getattr(hyperparameters, "remembers", True)  # what is no strategy is refused later
    return WhenGrown() if near and remembers else EveryUpdate()


def _bound(alpha: float, bound: LocalBound | None) -> LocalBound:
    require_number("alpha", alpha)
    if not 0.0 <= alpha <= 1.0 or (alpha > 0.0 and bound is not None):
        raise InvalidDataError(
            f"alpha must lie in [0, 1], and be 0 where a bound is given; got {alpha} and {bound}"
        )
    if bound is not None:
        return bound
    return PowerEP(alpha) if alpha > 0.0 else Variational()
