"""How a process is conditioned on many observations: on all of them, or on what is near."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from streaming_gp.gp.process.dense import DenseProcess
from streaming_gp.gp.process.nearest import NearestProcess
from streaming_gp.gp.process.prior import PriorAt
from streaming_gp.inputs import require_count, require_positive_integer, typed
from streaming_gp.serialization import storable


@runtime_checkable
class Conditioning(Protocol):
    """How a process is conditioned: a frozen dataclass of plain fields."""

    def unconditioned(self, prior: PriorAt, num_points: int) -> DenseProcess | NearestProcess:
        """The prior at some ε, which will be conditioned on so many points."""
        ...


@storable
@dataclass(frozen=True)
class Dense:
    """Every prediction conditions on all points: exact, at a cost that grows with their number.

    n points cost n³/3 operations once, n² for each new one and each prediction, and n² numbers of
    memory for each value of ε.

    >>> dense = sgp.StreamingGP(*parts, conditioning=sgp.Dense())
    """

    def unconditioned(self, prior: PriorAt, num_points: int) -> DenseProcess:
        return DenseProcess(prior)


@storable
@typed
@dataclass(frozen=True)
class NearestNeighbors:
    """Every prediction conditions on the points near it (Vecchia 1988; Datta et al. 2016).

    What a prediction costs does not depend on how long the stream is, and nothing is thrown away.
    What is approximate: a prediction knows of the points far from it only what the near ones say.
    Smooth functions of many inputs with much noise want more neighbours, or :class:`Dense`.

    It wants a point at every input, ``PrivatePseudoPoints("all")``, the default. Points that
    were merged, by a budget or by ``compress``, are all conditioned on.

    :param num_neighbors: The number of neighbours by which ε is learned, and the sites of
        likelihoods whose noise is not Gaussian.
    :param num_neighbors_pred: The number of neighbours of a prediction.
    :param dense_up_to: Up to so many points all of them are conditioned on, as :class:`Dense`; 0
        for never. Otherwise each update that learns from more than 600 rows asks how many
        neighbours predict random rows better, by a fiftieth of a nat each at least: where they are
        as few as ``num_neighbors``, so many are conditioned on from then on; and more than 2,000
        points are all conditioned on only where it is four times ``num_neighbors_pred``.
    :raises InvalidDataError: if a number is not a positive integer.

    >>> near = sgp.StreamingGP(*parts, conditioning=sgp.NearestNeighbors(num_neighbors_pred=200))
    """

    num_neighbors: int = 30
    num_neighbors_pred: int = 100
    dense_up_to: int = 0

    def __post_init__(self) -> None:
        require_positive_integer("num_neighbors", self.num_neighbors)
        require_positive_integer("num_neighbors_pred", self.num_neighbors_pred)
        require_count("dense_up_to", self.dense_up_to)

    def unconditioned(self, prior: PriorAt, num_points: int) -> DenseProcess | NearestProcess:
        if num_points <= max(self.dense_up_to, self.num_neighbors_pred):
            return DenseProcess(prior)
        return NearestProcess(prior, self.num_neighbors_pred)
