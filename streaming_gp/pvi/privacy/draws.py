"""Where the noise comes from: bits of the operating system, or a seed that is asked for by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

BITS = np.uint64(52)


@dataclass(frozen=True)
class Draws:
    """Random numbers of which nobody else may know any.

    :param uniform: So many independent numbers, each in the open interval (0, 1).
    """

    uniform: Callable[[int], np.ndarray]

    def normal(self, *shape: int) -> np.ndarray:
        """Standard normal numbers of this shape, by the inverse of their distribution function.

        With 52 bits each, none is further out than 8.2. That floating-point numbers are no real
        ones is not defended against (Mironov 2012).
        """
        found: np.ndarray = ndtri(self.uniform(int(np.prod(shape)))).reshape(shape)
        return found

    def chosen(self, number: int, rate: float) -> np.ndarray:
        """Which of so many rows take part, each with this probability and alone: their numbers."""
        return np.flatnonzero(self.uniform(number) < rate)

    def parts(self, number: int, num_parts: int) -> list[np.ndarray]:
        """The rows of each part, where every row falls into one of them alone."""
        part = np.floor(num_parts * self.uniform(number))
        return [np.flatnonzero(part == one) for one in range(num_parts)]

    def seed(self) -> np.ndarray:
        """Two integers [2] for what is drawn in compiled functions."""
        return (self.uniform(2) * 2**31).astype(np.int32)


def secure_draws() -> Draws:
    """Numbers made of bits of ``os.urandom``."""
    return Draws(_secure_uniform)


def seeded_draws(*seed: int) -> Draws:
    """Numbers that whoever knows the seed can take away again: for tests and figures only."""
    return Draws(np.random.default_rng(seed).random)


def _secure_uniform(size: int) -> np.ndarray:
    bits = np.frombuffer(os.urandom(8 * size), np.uint64) >> (np.uint64(64) - BITS)
    return (bits.astype(np.float64) + 0.5) * 2.0 ** -float(BITS)
