"""How a streaming model hands over to one point at a time, and takes back."""

from __future__ import annotations

from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.learning import LearningGP
from streaming_gp.gp.online.online import OnlineGP, factor_of, refuse_foreign
from streaming_gp.gp.online.start import online_state
from streaming_gp.gp.online.state import OnlineState
from streaming_gp.gp.process.observations import PseudoObservations
from streaming_gp.gp.turns import one_at_a_time
from streaming_gp.inputs import as_name


class OnlineLearningGP(LearningGP):
    """A ledger of Gaussian-process factors that learns in batches and one point at a time."""

    def online(self, budget: int = 300, memory: float | None = None) -> OnlineGP:
        """What the model knows, as an object that predicts and learns one point at a time.

        It is at one ε, the mean of q(ε), and holds at most ``budget`` points; the model itself
        learns nothing until it is told to :meth:`absorb` the object.

        :param budget: The largest number of points. Beyond it the point goes that matters least.
        :param memory: The number of observations in which a point matters e-fold less, unless new
            inputs come near it; by default the budget. Infinite where inputs keep coming from
            everywhere.
        :raises InvalidDataError: if the budget is not a positive integer or the memory not
            positive, the model has seen no data, its noise is not Gaussian of one variance, its
            functions do not share one kernel, or its factors do not stand alone.
        """
        return OnlineGP(self, budget, memory)

    @one_at_a_time
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
        name = as_name("name", f"online-{self.num_updates}" if name is None else name)
        refuse_foreign(online, self, name, self.factors)

        def commit(observations: PseudoObservations, log_evidence: float) -> None:
            compiled, ledger = self._compile_for_dims(), self._now.ledger
            epsilon = self._point_estimate(ledger, compiled)
            factor = factor_of(
                compiled.local, epsilon, ledger.posterior, observations, log_evidence
            )
            self._commit(compiled, ledger.replaced(name, factor), epsilon, 1)

        return name if online.hand_over(commit) else None

    def online_state(
        self, budget: int, memory: float, own: PseudoObservations | None = None
    ) -> OnlineState:
        """What the model knows, on at most ``budget`` points, times ``own``.

        :raises InvalidDataError: as :meth:`online`.
        """
        if None in self._now.dims:
            raise InvalidDataError("one point at a time wants a model that has learned a batch")
        compiled, ledger = self._compile_for_dims(), self._now.ledger
        epsilon = self._point_estimate(ledger, compiled)
        return online_state(compiled.local, epsilon, ledger.posterior, budget, memory, own)
