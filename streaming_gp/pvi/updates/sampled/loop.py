"""The two loops of SNEP: what is held between outer iterations, and what keeps a factor proper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf

from streaming_gp.expfam import Gaussian

Natural = tuple[tf.Tensor, ...]
SMALLEST_SHARE = 0.5  # of its variance that a factor keeps in one iteration, in every direction


class Loop(Protocol):
    """How the auxiliary distribution θ' follows, and how far one iteration may go; hashable."""

    def anchor(self, cavity: Natural, factor: Natural) -> Natural:
        """What is held from an outer iteration to the next.

        :param cavity: The natural parameters of the cavity θ_{-i}.
        :param factor: Those of the factor λ.
        """
        ...

    def auxiliary(self, cavity: Natural, anchor: Natural) -> Natural:
        """θ' under this cavity, of what is held."""
        ...

    def kept(self, family: type[Gaussian], covariance: Any, before: Any) -> Any:
        """The covariance of the factor after an iteration.

        :param covariance: What the natural gradient made of it.
        :param before: What it was.
        """
        ...


@dataclass(frozen=True)
class StabilisedLoop:
    """The factor is held, so that θ' takes part in every change of the cavity: with a θ' that lags
    behind, workers that have moved together all move back. A factor keeps at least half its
    variance in one iteration, so that it stays proper.
    """

    def anchor(self, cavity: Natural, factor: Natural) -> Natural:
        return factor

    def auxiliary(self, cavity: Natural, anchor: Natural) -> Natural:
        return added(cavity, anchor)

    def kept(self, family: type[Gaussian], covariance: Any, before: Any) -> Any:
        return family.raised(covariance, SMALLEST_SHARE * before)


@dataclass(frozen=True)
class PublishedLoop:
    """Algorithm 1 of Hasenclever et al. (2017) to the letter: θ' itself is held, and the variance
    is left as the gradient makes it, but for ``min_variance``. A factor that a step makes improper
    is lost, and its client begins anew.
    """

    def anchor(self, cavity: Natural, factor: Natural) -> Natural:
        return added(cavity, factor)

    def auxiliary(self, cavity: Natural, anchor: Natural) -> Natural:
        return anchor

    def kept(self, family: type[Gaussian], covariance: Any, before: Any) -> Any:
        return covariance


def added(a: Natural, b: Natural, weight: float = 1.0) -> Natural:
    """``a + weight · b`` of natural parameters."""
    return tuple(x + weight * y for x, y in zip(a, b, strict=True))
