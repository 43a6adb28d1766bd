"""Which ε suits a budget: the one of the finest structure, or a smoother one.

Exact evidence finds the finest structure of a function. A budget may hold that for a short stream
and not for a long one, and then an ε at which the function is smooth, and the rest noise, predicts
better. Which it is shows only as the stream goes on: in what projections lose. So each batch that
comes when the budget is full leaves two factors of ε: a *fine* one, by FITC, and a *coarse* one,
by the variational bound on few points, which takes for noise what these leave unexplained. The
posterior has the fine ones until projections are on the way to leave more unexplained than the
noise of the coarse ones is, and these predict a new batch better. From then on it has those. To
wait until so much has been lost would be late: what is lost is lost for good.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from streaming_gp import expfam
from streaming_gp.gp.fitting.projection import GPLedger
from streaming_gp.gp.fitting.watch import MOST_UNEXPLAINED
from streaming_gp.gp.process.factor import PseudoPointFactor, product_of_epsilon
from streaming_gp.gp.process.process import Process, plain
from streaming_gp.gp.process.single_observations import SingleObservations, joined, singles
from streaming_gp.gp.strategies.learning_sample import LONG_STREAM
from streaming_gp.gp.strategies.protocol import MERGED
from streaming_gp.numerics.linalg import LOG_TWO_PI
from streaming_gp.serialization import storable

STRETCH = 300
"""So many targets say how fast projections lose: as many as ε is learned from."""


@storable
@dataclass(frozen=True, eq=False)
class TwoScaleFactor(PseudoPointFactor):
    """A factor that also knows the coarse ε, and what projecting it has lost.

    :param coarse: The coarse factor of ε, which the posterior does not have; None for one.
    :param lost: The nats by which projections onto fewer points lowered the log evidence.
    :param num_projected: The number of targets that were projected.
    :param growth: By how much ``lost / num_projected`` grew for each target, when last looked at.
    :param num_marked: The number of targets that were projected by then.
    :param lost_marked: The nats lost for each of them.
    :param is_coarse: Whether its factor of ε is the coarse one already.
    :param remembered: A sample of the observations that were projected, as they were; None for
        none. It is no part of what the factor says: ε is learned under it.
    :param num_fitted: The number of data there were when it was last fitted anew at its scale.
    :param is_of_data: Whether all that was projected were observations of one input each, and not
        summaries of more data.
    :param widened: How many times the variance of their noise the projected observations are said
        to have, as projections left so much more than the noise.
    :param certain_log_scale: Its log constant if they had their own noise, where it is widened.
    """

    coarse: expfam.Factor | None = None
    lost: float = 0.0
    num_projected: int = 0
    growth: float = 0.0
    num_marked: int = 0
    lost_marked: float = 0.0
    is_coarse: bool = False
    remembered: SingleObservations | None = None
    num_fitted: int = 0
    is_of_data: bool = False
    widened: float = 1.0
    certain_log_scale: float = 0.0

    @property
    def num_bytes(self) -> int:
        kept = (self.coarse, self.remembered)
        return super().num_bytes + sum(one.num_bytes for one in kept if one is not None)

    @property
    def lost_per_target(self) -> float:
        """The nats lost for each target that was projected; 0 where none was."""
        return self.lost / max(1, self.num_projected)

    def as_arrays(self) -> TwoScaleFactor:
        coarse = None if self.coarse is None else self.coarse.as_arrays()
        fine = None if self.hyperparameters is None else self.hyperparameters.as_arrays()
        return replace(self, hyperparameters=fine, coarse=coarse)

    def __mul__(self, other: PseudoPointFactor) -> TwoScaleFactor:
        mine, yours = narrowed(self), narrowed(other)
        product = PseudoPointFactor.__mul__(mine, yours)
        return TwoScaleFactor(
            product.pseudo_observations,
            product.hyperparameters,
            product.log_scale,
            product_of_epsilon(mine.coarse, yours.coarse),
            mine.lost + yours.lost,
            mine.num_projected + yours.num_projected,
            mine.growth + yours.growth,
            mine.num_marked + yours.num_marked,
            mine.lost_marked + yours.lost_marked,
            mine.is_coarse or yours.is_coarse,
            _both(mine.remembered, yours.remembered),
            max(mine.num_fitted, yours.num_fitted),
            mine.is_of_data and yours.is_of_data,
        )

    def __rmul__(self, other: PseudoPointFactor) -> TwoScaleFactor:
        return of_two_scales(other) * self

    def __pow__(self, power: float) -> TwoScaleFactor:
        fine = super().__pow__(power)
        coarse = None if self.coarse is None else self.coarse**power
        return replace(
            self,
            pseudo_observations=fine.pseudo_observations,
            hyperparameters=fine.hyperparameters,
            log_scale=fine.log_scale,
            coarse=coarse,
            remembered=self.remembered and self.remembered**power,
            certain_log_scale=power * self.certain_log_scale,
        )

    def faded(self, power: float) -> TwoScaleFactor:
        said = of_two_scales(super().faded(power))
        return replace(said, coarse=self.coarse, is_coarse=self.is_coarse)


def _both(
    one: SingleObservations | None, other: SingleObservations | None
) -> SingleObservations | None:
    return joined([one, other]) if one and other else one or other


def of_two_scales(factor: PseudoPointFactor) -> TwoScaleFactor:
    """The same factor, which knows no coarse ε yet."""
    if isinstance(factor, TwoScaleFactor):
        return factor
    return TwoScaleFactor(factor.pseudo_observations, factor.hyperparameters, factor.log_scale)


def projected(
    product: PseudoPointFactor, fewer: PseudoPointFactor, factors: Sequence[PseudoPointFactor]
) -> TwoScaleFactor:
    """A product on fewer points that knows what this lost.

    :param product: What was projected.
    :param fewer: What it was projected to.
    :param factors: What it is the product of.
    """
    before = of_two_scales(product)
    return replace(
        before,
        pseudo_observations=fewer.pseudo_observations,
        log_scale=fewer.log_scale,
        lost=before.lost + product.log_scale - fewer.log_scale,
        num_projected=before.num_projected + sum(map(num_unprojected, factors)),
        is_of_data=all(map(_is_of_data, factors)),
    )


def marked(factor: TwoScaleFactor) -> TwoScaleFactor:
    """The merged factor, which looks once every :data:`STRETCH` targets at how fast it loses."""
    number = factor.num_projected - factor.num_marked
    if number < STRETCH:
        return factor
    lost = factor.lost_per_target
    growth = (lost - factor.lost_marked) / number if factor.num_marked > 0 else 0.0
    return replace(factor, growth=growth, num_marked=factor.num_projected, lost_marked=lost)


def is_coarse(ledger: GPLedger) -> bool:
    """Whether the ledger's factors of ε are the coarse ones."""
    return MERGED in ledger.factors and of_two_scales(ledger.factors[MERGED]).is_coarse


def coarse_epsilon(ledger: GPLedger, batch: str) -> expfam.Gaussian:
    """``p(ε) Π_b coarse_b(ε)`` over all batches but one."""
    others = [of_two_scales(f).coarse for name, f in ledger.factors.items() if name != batch]
    q = ledger.prior.hyperparameters
    assert q is not None
    return q.times([one for one in others if one is not None]).as_arrays()


def noisier(
    ledger: GPLedger, batch: str, epsilon: expfam.Gaussian, fine: float, coarse: float
) -> Process:
    """What all batches but one say at the coarse ε, if their data had the noise of that.

    :param epsilon: The coarse cavity of ε.
    :param fine: The variance of the noise until now.
    :param coarse: That of the noise at the coarse ε.
    """
    factors = at_noise(ledger, fine, coarse)
    others = (one for name, one in factors.items() if name != batch)
    return Process(tuple(said for one in others for said in one.pseudo_observations), epsilon)


def unexplained(ledger: GPLedger, noise: float, num_data: int = LONG_STREAM) -> float:
    """The mean square that projections will leave unexplained, in squared units of Y.

    A projection loses ``Σ_n r_n² / (2σ²)`` nats; the noise at which the bound would be largest is
    the mean of r². It is looked at where it will be if it goes on to grow as it did with the newest
    :data:`STRETCH` targets, if it grew. It is 0 in between, as few targets say
    little, and while there is nothing coarse to compare it with.

    :param noise: σ², the variance of the noise at which factors were projected.
    :param num_data: The number of data that the budget is to last for.
    """
    if MERGED not in ledger.factors:
        return 0.0
    merged = of_two_scales(ledger.factors[MERGED])
    if merged.coarse is None or merged.num_projected > merged.num_marked:
        return 0.0
    to_come = max(0, num_data - merged.num_projected)
    return 2.0 * noise * (merged.lost_per_target + to_come * max(0.0, merged.growth))


def made_coarse(ledger: GPLedger, fine: float, coarse: float) -> GPLedger:
    """The ledger with the coarse factors of ε, and what it says of f at the noise of these.

    :param fine: The variance of the noise until now.
    :param coarse: That of the noise from now on.
    """
    unit = ledger.prior.unit_of_epsilon
    factors = at_noise(ledger, fine, coarse)
    return ledger.with_factors(
        {
            name: replace(
                one, hyperparameters=one.coarse or unit, coarse=None, is_coarse=True, num_fitted=0
            )
            for name, one in factors.items()
        }
    )


def at_noise(ledger: GPLedger, before: float, after: float) -> dict[str, TwoScaleFactor]:
    """All factors, with what they say of f as if their data had the noise ``after``."""
    factors = {name: narrowed(one) for name, one in ledger.factors.items()}
    return {name: _at_noise(one, before, after) for name, one in factors.items()}


def narrowed(factor: PseudoPointFactor) -> TwoScaleFactor:
    """What a factor says if its data have their own noise."""
    known = of_two_scales(factor)
    if known.widened == 1.0:
        return known
    said = tuple(one**known.widened for one in known.pseudo_observations)
    scale = known.certain_log_scale
    return replace(known, pseudo_observations=said, log_scale=scale, widened=1.0)


def widened(factor: TwoScaleFactor, noise: float) -> TwoScaleFactor:
    """The merged factor as if its data had as much more noise as projections left unexplained.

    Where that is many times the noise, what points stand for differs from them by many of their
    widths, and predictions at these points would be certain of what is wrong. The coarse ε has
    noise enough.

    :param noise: σ², the variance of the noise.
    """
    unexplained = 2.0 * factor.lost_per_target
    if factor.is_coarse or unexplained <= MOST_UNEXPLAINED:
        return factor
    total = 1.0 + unexplained
    weaker = _at_noise(factor, noise, total * noise)
    return replace(weaker, widened=total, certain_log_scale=factor.log_scale)


def _at_noise(factor: TwoScaleFactor, before: float, after: float) -> TwoScaleFactor:
    weaker = tuple(said ** (before / after) for said in factor.pseudo_observations)
    scale = _log_scale(factor, before, after)
    return replace(factor, pseudo_observations=weaker, log_scale=scale)


def _log_scale(factor: PseudoPointFactor, fine: float, coarse: float) -> float:
    """Its log constant ``−½ N log 2πσ² − ½ Σ r²/σ²`` at another σ²."""
    number = of_two_scales(factor).num_projected + num_unprojected(factor)
    misfit = factor.log_scale + 0.5 * number * (LOG_TWO_PI + np.log(fine))
    return float(misfit * fine / coarse - 0.5 * number * (LOG_TWO_PI + np.log(coarse)))


def num_data(ledger: GPLedger) -> int:
    """The number of targets that the factors of a ledger have seen."""
    factors = map(of_two_scales, ledger.factors.values())
    return sum(one.num_projected + num_unprojected(one) for one in factors)


def _is_of_data(factor: PseudoPointFactor) -> bool:
    known = of_two_scales(factor)
    return known.is_of_data or singles(Process(factor.pseudo_observations)) is not None


def num_unprojected(factor: PseudoPointFactor) -> int:
    """The number of targets of a factor that still has a pseudo-observation for each."""
    if of_two_scales(factor).num_projected > 0:
        return 0
    return sum(one.pseudo_targets.size for one in plain(Process(factor.pseudo_observations)))
