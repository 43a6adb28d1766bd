"""What can be done to factors that are there: to remove one, to let all fade, to merge them."""

from __future__ import annotations

from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.forgetting import faded
from streaming_gp.gp.predictive_gp import PredictiveGP
from streaming_gp.gp.strategies.budget import compressed
from streaming_gp.gp.strategies.protocol import MERGED, check_allowed, check_change
from streaming_gp.gp.turns import one_at_a_time
from streaming_gp.inputs import as_name, is_positive_integer, require_probability


class LedgerOperationsGP(PredictiveGP):
    """A ledger of Gaussian-process factors that need not stay as they are."""

    @one_at_a_time
    def remove(self, batch_id: str) -> None:
        """Forget a batch: divide its factor out.

        At fixed hyperparameters, and where no later batch was fitted under this factor, the model
        is exactly the one that never saw the batch. Later factors keep what they learned under it;
        :meth:`revisit` them to be rid of that too. Small batches that learned ε together each
        take the share of their data in what they say of it.

        :param batch_id: The name of its factor.
        :raises InvalidDataError: if there is no such factor.
        :raises ImproperError: if q(ε) without it is no distribution.
        """
        batch_id = self._factor_name(batch_id)
        compiled = self._compile_for_dims()
        ledger = self._now.ledger.without(batch_id)
        self._commit(compiled, ledger, self._point_estimate(ledger, compiled))

    @one_at_a_time
    def fade(self, power: float) -> None:
        """Raise what all factors say of f to a power; what they say of ε stays as it is.

        :param power: A number in [0, 1]: 1 changes nothing, and after 0 nothing is known of f.
        :raises InvalidDataError: if the power is out of its range, or the strategy's factors rest
            on one another.
        """
        require_probability("power", power)
        check_allowed(self.settings.pseudo_points, "fading")
        if self.factors:
            compiled = self._compile_for_dims()
            ledger = faded(self._now.ledger, power)
            self._commit(compiled, ledger, self._point_estimate(ledger, compiled))

    @one_at_a_time
    def compress(self, number: int) -> float:
        """Merge all factors into one on at most ``number`` points; q(ε) stays as it is.

        :param number: The number M of points, at least 1.
        :returns: the nats by which the log evidence estimate falls.
        :raises InvalidDataError: if ``number`` is not a positive integer, or the strategy's factors
            cannot be merged.
        """
        if not is_positive_integer(number):
            raise InvalidDataError(f"number of points must be a positive integer, got {number!r}")
        if self.posterior_process.num_pseudo_points <= number:
            return 0.0
        strategy = self.settings.pseudo_points
        check_allowed(strategy, "compression")
        compiled = self._compile_for_dims()
        epsilon = self._point_estimate(self._now.ledger, compiled)
        ledger, loss = compressed(
            compiled.fitter, self._now.ledger, number, epsilon, strategy.allowed.moves
        )
        self._commit(compiled, ledger, epsilon)
        return loss

    def _factor_name(self, value: object) -> str:
        """The name of a factor that is there, is one batch's, and that no other rests on."""
        name = batch_name(value)
        if name not in self.factors:
            raise InvalidDataError(
                f"no factor {name!r} in the ledger: it has {list(self.factors)} "
                f"(batches under {MERGED!r} are kept together, not one by one)"
            )
        check_change(self.settings.pseudo_points, self._now.ledger, name)
        return name


def batch_name(value: object) -> str:
    """The name of one batch's factor: a string, and not the name of the merged factor.

    :raises InvalidDataError: if it is none.
    """
    name = as_name("the name of a batch", value)
    if name == MERGED:
        raise InvalidDataError(f"{name!r} holds several batches, not one")
    return name
