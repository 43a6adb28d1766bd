"""What an update did, as a value."""

from __future__ import annotations

from dataclasses import dataclass

from streaming_gp import pvi
from streaming_gp.gp.fitting.fitted import Fitted
from streaming_gp.gp.process.process import Process


@dataclass(frozen=True)
class UpdateInfo:
    """What an update did.

    :param batch_id: The name of the batch's factor in ``model.factors``.
    :param free_energy: The local free energy of the batch, in nats, of the factor that is kept;
        these add up to an estimate of the log evidence of the stream. Where all inputs have a point
        and are more than some two thousand, a batch that learns nothing is seen under those near it
        alone, unless no batch has learned anything.
    :param num_pseudo_points: The number of points of this batch.
    :param iterations: The number of optimiser iterations.
    :param seconds: The wall time in seconds.
    :param nugget: The variance of the pseudo-points' white noise, in squared units of f.
    :param clipped_sites: The number of sites whose negative precision was cut off (likelihoods that
        are not log-concave), at the last step.
    :param unexplained: The variance of f at the data that the batch's points leave, over the
        variance of the noise (or what stands for it): a mean over the data. The
        prior's word for how over-confident the points may be; 0 with a point at every input.
    :param shown_error: The standard deviation of errors at the batch's points that its data show,
        over the predicted one: far above one the points are too few for the noise. None where the
        bound has a point at every input, or does not know.
    :param damping: The damping ρ with which the factor entered the ledger: the one that was asked
        for, times the share of it that the policy allowed; 0 if the old factor stayed.
    :param removed_fraction: The share of the batch's old factor that its cavity left out; 1 for a
        batch without one.
    """

    batch_id: str
    free_energy: float
    num_pseudo_points: int
    iterations: int
    seconds: float
    nugget: float
    clipped_sites: int
    unexplained: float = 0.0
    shown_error: float | None = None
    damping: float = 1.0
    removed_fraction: float = 1.0

    @classmethod
    def of(
        cls, batch_id: str, done: pvi.StepResult[Process, Fitted], rho: float, seconds: float
    ) -> UpdateInfo:
        """What a step did for one of its batches.

        :param rho: The damping that was asked for.
        :param seconds: The wall time in seconds.
        """
        report = done.reports[batch_id]
        factor = done.ledger.factors.get(batch_id)
        return cls(
            batch_id=batch_id,
            free_energy=report.free_energy,
            num_pseudo_points=0 if factor is None else len(factor.Z),
            iterations=report.iterations,
            seconds=seconds,
            nugget=report.nugget,
            clipped_sites=report.clipped_sites,
            unexplained=report.unexplained,
            shown_error=report.shown_error,
            damping=rho * done.share,
            removed_fraction=done.removed_fractions[batch_id],
        )
