"""GPflow's common kernels in NumPy, by name: stationary ones, others, and what combines them."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.runtime import stationary
from streaming_gp.runtime.covariance import Kernel
from streaming_gp.runtime.description import Description, of_name


class Periodic(Kernel):
    """An isotropic kernel of the sines ``sin(π (x − x') / γ) / ℓ``, in the columns of its base.

    As in GPflow, a base that is a function of r gets the sum of their magnitudes for r.
    """

    def __init__(self, description: Description) -> None:
        super().__init__(description)
        base = kernel_of(description.parts[0])
        if not isinstance(base, stationary.Isotropic):
            raise InvalidDataError(f"Periodic wants an isotropic kernel, got {type(base).__name__}")
        self.base = base
        self.period = description.parameters["period"]

    def variance(self, X: np.ndarray) -> np.ndarray:
        return self.base.variance(X)

    def prepared(self, X: np.ndarray) -> np.ndarray:
        """The columns of X [N, d] that the base sees."""
        return self.base.seen(X)

    def between(self, one: Any, other: Any) -> np.ndarray:
        sines = np.sin(np.pi * (one[:, None, :] - other) / self.period) / self.base.lengthscales
        if isinstance(self.base, stationary.OfDistance):
            return self.base.of_distance(np.add.reduce(np.abs(sines), axis=-1))
        return self.base.of_squared_distance(np.add.reduce(sines * sines, axis=-1))


class Linear(Kernel):
    """``Σ_d σ²_d x_d x'_d``."""

    def __init__(self, description: Description) -> None:
        super().__init__(description)
        self.scale = description.parameters["variance"]

    def variance(self, X: np.ndarray) -> np.ndarray:
        return np.add.reduce(np.square(self.seen(X)) * self.scale, axis=-1)

    def prepared(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """``σ²_d x_d`` and x, both [N, d]."""
        seen = self.seen(X)
        return seen * self.scale, seen

    def between(self, one: Any, other: Any) -> np.ndarray:
        return one[0] @ other[1].T


class Polynomial(Linear):
    """``(Σ_d σ²_d x_d x'_d + γ)^p``."""

    def __init__(self, description: Description) -> None:
        super().__init__(description)
        self.offset = description.parameters["offset"]
        self.degree = description.parameters["degree"]

    def variance(self, X: np.ndarray) -> np.ndarray:
        return (super().variance(X) + self.offset) ** self.degree

    def between(self, one: Any, other: Any) -> np.ndarray:
        return (super().between(one, other) + self.offset) ** self.degree


class Static(Kernel):
    """A kernel for which only the number of inputs matters."""

    def __init__(self, description: Description) -> None:
        super().__init__(description)
        self.scale = description.parameters["variance"]

    def variance(self, X: np.ndarray) -> np.ndarray:
        return np.full(len(X), self.scale)

    def prepared(self, X: np.ndarray) -> int:
        """The number of inputs."""
        return len(X)


class Constant(Static):
    """``σ²``; GPflow also calls it Bias."""

    def between(self, one: Any, other: Any) -> np.ndarray:
        return np.full((one, other), self.scale)


class White(Static):
    """``σ²`` at one and the same input, none between two sets of inputs."""

    def between(self, one: Any, other: Any) -> np.ndarray:
        return np.zeros((one, other))


class Combination(Kernel):
    """A kernel made of others, each with columns of its own."""

    operation: np.ufunc

    def __init__(self, description: Description) -> None:
        super().__init__(description)
        self.parts = [kernel_of(part) for part in description.parts]

    def centre(self, origin: np.ndarray) -> None:
        for part in self.parts:
            part.centre(origin)

    def variance(self, X: np.ndarray) -> np.ndarray:
        return reduce(self.operation, [part.variance(X) for part in self.parts])

    def prepared(self, X: np.ndarray) -> list[Any]:
        """The inputs as each part wants them."""
        return [part.prepared(X) for part in self.parts]

    def between(self, one: Any, other: Any) -> np.ndarray:
        each = zip(self.parts, one, other, strict=True)
        return reduce(self.operation, [part.between(a, b) for part, a, b in each])


class Sum(Combination):
    """The sum of its parts."""

    operation = np.add


class Product(Combination):
    """The product of its parts."""

    operation = np.multiply


KERNELS: dict[str, type[Kernel]] = {
    kernel.__name__: kernel
    for kernel in (
        stationary.SquaredExponential, stationary.RationalQuadratic, stationary.Exponential,
        stationary.Matern12, stationary.Matern32, stationary.Matern52, stationary.Cosine, Periodic,
        Linear, Polynomial, Constant, White, Sum, Product,
    )
}  # fmt: skip
"""The kernels that there is a NumPy form of, by the names of their classes in GPflow."""


def kernel_of(description: Description) -> Kernel:
    """The kernel that is described.

    :raises InvalidDataError: if there is no NumPy form of it.
    """
    return of_name("kernel", description.name, KERNELS)(description)
