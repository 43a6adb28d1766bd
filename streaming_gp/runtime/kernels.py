"""GPflow's common kernels in NumPy, by name; formulas and their order are those of GPflow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, TypeVar

import numpy as np

from streaming_gp.errors import InvalidDataError

T = TypeVar("T")
FAR = 1e3
"""In lengthscales: beyond, squares of distances as products would lose their digits."""
Parameters = Mapping[str, np.ndarray | float]
"""Parameters by name, constrained."""


@dataclass(frozen=True, eq=False)
class Description:
    """A kernel, mean function or likelihood of GPflow, by its class's name and its values.

    :param name: The name of its class.
    :param parameters: Its parameters by name, constrained.
    :param columns: The columns of X [d] that a kernel sees; all of them if None.
    :param parts: The kernels that a kernel is made of.
    """

    name: str
    parameters: Parameters = field(default_factory=dict)
    columns: np.ndarray | None = None
    parts: tuple[Description, ...] = ()


def of_name(kind: str, name: str, forms: Mapping[str, T]) -> T:
    """The entry of a registry."""
    if name not in forms:
        raise InvalidDataError(
            f"there is no NumPy form of the {kind} {name}; there is one of {', '.join(forms)}"
        )
    return forms[name]


class Kernel(ABC):
    """A covariance function.

    Each says what it wants of inputs (``prepared``, such as lengthscales divided out) and the
    covariance between two sets of inputs prepared in this way, so that one of the sets can be
    prepared once for all: :meth:`bind`. Inputs may have further axes in front of [N, D].

    :param description: Its class, parameters and columns.
    """

    is_of_differences = True
    """Whether covariances stay the same when all inputs move by as much."""

    def __init__(self, description: Description) -> None:
        self.columns = description.columns
        self.parameters = description.parameters
        self.parts = [kernel_of(part) for part in description.parts]

    def covariance(self, X: np.ndarray, X2: np.ndarray) -> np.ndarray:
        """Covariance [N, N2] between two sets of inputs [N, D] and [N2, D].

        White noise has none between them, even where they are equal. Where nothing but differences
        matters inputs are counted from one of them, so that these keep their digits.
        """
        if self.is_of_differences:
            X, X2 = X - X2[:1], X2 - X2[:1]
        return self.between(self.prepared(X), self.prepared(X2))

    def bind(self, Z: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        """A function from X [N, D] to the covariance [R, N] between Z [R, D] and X.

        What depends on Z alone is computed here, once.
        """
        points = self.prepared(Z)
        return lambda X: self.between(points, self.prepared(X))

    def covariance_with(self, X: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Covariance [N] between inputs [N, D] and one more [D]."""
        return self.covariance(X, x[None])[:, 0]

    def variance(self, X: np.ndarray) -> np.ndarray:
        """Variance [N] at inputs [N, D]; by default one and the same everywhere."""
        return np.full(X.shape[:-1], self.parameters["variance"])

    def prepared(self, X: np.ndarray) -> Any:
        """Values of inputs [N, D] that :meth:`between` wants; by default the columns it sees."""
        return X if self.columns is None else X[..., self.columns]

    @abstractmethod
    def between(self, one: Any, other: Any) -> np.ndarray:
        """Covariance [N, N2] between two sets of prepared inputs."""

    def about(self, Z: np.ndarray, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Covariances among B sets of rows Z [B, k, D], and of each set with an input of X [B, D].

        Where nothing but differences matters they are taken from X, so that they keep their digits.

        :returns: [B, k, k] and [B, k].
        """
        if self.is_of_differences:
            Z, X = Z - X[:, None], np.zeros_like(X)
        rows = self.prepared(Z)
        return self.between(rows, rows), self.between(rows, self.prepared(X[:, None]))[..., 0]

    def centre(self, origin: np.ndarray) -> None:
        """Count inputs from this point [D] on, if nothing but differences matters.

        Where inputs lie far from zero in lengthscales, squares of distances would lose digits.
        """
        for part in self.parts:
            part.centre(origin)


OF_SQUARED_DISTANCE: dict[str, Callable[[np.ndarray, Parameters], np.ndarray]] = {
    "SquaredExponential": lambda r2, _: np.exp(-0.5 * r2),
    "RationalQuadratic": lambda r2, own: (1.0 + 0.5 * r2 / own["alpha"]) ** -own["alpha"],
}
"""Stationary kernels of variance one by ``r² = ‖(x − x') / ℓ‖²``."""

OF_DISTANCE: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Exponential": lambda r: np.exp(-0.5 * r),
    "Matern12": lambda r: np.exp(-r),
    "Matern32": lambda r: (1.0 + np.sqrt(3.0) * r) * np.exp(-np.sqrt(3.0) * r),
    "Matern52": lambda r: (1.0 + np.sqrt(5.0) * r + 5.0 * r * r / 3.0) * np.exp(-np.sqrt(5.0) * r),
}
"""Those that are functions of r itself."""


class Isotropic(Kernel):
    """``σ²`` times a function of ``r² = ‖(x − x') / ℓ‖²``."""

    def __init__(self, description: Description) -> None:
        super().__init__(description)
        self.name = description.name
        self.scale = self.parameters["variance"]
        self.lengthscales = self.parameters["lengthscales"]
        self.origin: np.ndarray | float = 0.0

    def centre(self, origin: np.ndarray) -> None:
        self.origin = super().prepared(origin[None])[0]

    def prepared(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Scaled inputs [N, d] and their squared norms [N]."""
        scaled = (super().prepared(X) - self.origin) / self.lengthscales
        return scaled, np.add.reduce(scaled * scaled, axis=-1)

    def between(self, one: Any, other: Any) -> np.ndarray:
        (A, squares_a), (B, squares_b) = one, other
        if max(squares_a.max(initial=0.0), squares_b.max(initial=0.0)) > FAR**2:
            pairs = zip(np.moveaxis(A, -1, 0), np.moveaxis(B, -1, 0), strict=True)
            gaps = ((a[..., None] - b[..., None, :]) ** 2 for a, b in pairs)
            return self.of_squared_distance(reduce(np.add, gaps))
        r2 = A @ np.swapaxes(B, -1, -2)
        r2 *= -2.0
        r2 += squares_a[..., None] + squares_b[..., None, :]
        return self.of_squared_distance(r2)

    def covariance_with(self, X: np.ndarray, x: np.ndarray) -> np.ndarray:
        differences = Kernel.prepared(self, X - x)
        differences *= 1.0 / self.lengthscales
        differences *= differences
        return self.of_squared_distance(differences @ np.ones(differences.shape[1]))

    def of_squared_distance(self, r2: np.ndarray) -> np.ndarray:
        """The covariance at r²; rounding may have left it below zero."""
        if self.name in OF_DISTANCE:
            return self.scale * OF_DISTANCE[self.name](np.sqrt(np.maximum(r2, 1e-36)))
        return self.scale * OF_SQUARED_DISTANCE[self.name](r2, self.parameters)


class Cosine(Kernel):
    """``σ² cos(2π Σ_d (x_d − x'_d) / ℓ_d)``."""

    def prepared(self, X: np.ndarray) -> np.ndarray:
        """``Σ_d x_d / ℓ_d`` [N]."""
        return np.add.reduce(super().prepared(X) / self.parameters["lengthscales"], axis=-1)

    def between(self, one: Any, other: Any) -> np.ndarray:
        return self.parameters["variance"] * np.cos(
            2.0 * np.pi * (one[..., None] - other[..., None, :])
        )


class Periodic(Kernel):
    """An isotropic kernel of the sines ``sin(π (x − x') / γ) / ℓ``, in the columns of its base.

    As in GPflow, a base that is a function of r gets the sum of their magnitudes for r.
    """

    def __init__(self, description: Description) -> None:
        super().__init__(description)
        (base,) = self.parts
        if not isinstance(base, Isotropic):
            raise InvalidDataError(f"Periodic wants an isotropic kernel, got {type(base).__name__}")
        self.base, self.columns = base, base.columns

    def centre(self, origin: np.ndarray) -> None:
        """Differences are taken first anyway."""

    def variance(self, X: np.ndarray) -> np.ndarray:
        return self.base.variance(X)

    def between(self, one: Any, other: Any) -> np.ndarray:
        angles = np.pi * (one[..., None, :] - other[..., None, :, :]) / self.parameters["period"]
        sines = np.sin(angles) / self.base.lengthscales
        if self.base.name in OF_DISTANCE:
            return self.base.of_squared_distance(np.add.reduce(np.abs(sines), axis=-1) ** 2)
        return self.base.of_squared_distance(np.add.reduce(sines * sines, axis=-1))


class Linear(Kernel):
    """``Σ_d σ²_d x_d x'_d``."""

    is_of_differences = False

    def variance(self, X: np.ndarray) -> np.ndarray:
        return np.add.reduce(np.square(self.prepared(X)) * self.parameters["variance"], axis=-1)

    def between(self, one: Any, other: Any) -> np.ndarray:
        return (one * self.parameters["variance"]) @ np.swapaxes(other, -1, -2)


class Polynomial(Linear):
    """``(Σ_d σ²_d x_d x'_d + γ)^p``."""

    def variance(self, X: np.ndarray) -> np.ndarray:
        return self._power(super().variance(X))

    def between(self, one: Any, other: Any) -> np.ndarray:
        return self._power(super().between(one, other))

    def _power(self, products: np.ndarray) -> np.ndarray:
        return (products + self.parameters["offset"]) ** self.parameters["degree"]


class Constant(Kernel):
    """``σ²``; GPflow also calls it Bias."""

    def between(self, one: Any, other: Any) -> np.ndarray:
        return np.full((*one.shape[:-1], other.shape[-2]), self.parameters["variance"])


class White(Kernel):
    """``σ²`` at one and the same input, none between two sets of inputs."""

    def between(self, one: Any, other: Any) -> np.ndarray:
        return np.zeros((*one.shape[:-1], other.shape[-2]))


class Sum(Kernel):
    """The sum of kernels, each with columns of its own."""

    operation: np.ufunc = np.add

    def about(self, Z: np.ndarray, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        among, between = zip(*(part.about(Z, X) for part in self.parts), strict=True)
        return reduce(self.operation, among), reduce(self.operation, between)

    def covariance(self, X: np.ndarray, X2: np.ndarray) -> np.ndarray:
        return reduce(self.operation, [part.covariance(X, X2) for part in self.parts])

    def covariance_with(self, X: np.ndarray, x: np.ndarray) -> np.ndarray:
        return reduce(self.operation, [part.covariance_with(X, x) for part in self.parts])

    def variance(self, X: np.ndarray) -> np.ndarray:
        return reduce(self.operation, [part.variance(X) for part in self.parts])

    def prepared(self, X: np.ndarray) -> list[Any]:
        """The inputs as each part wants them."""
        return [part.prepared(X) for part in self.parts]

    def between(self, one: Any, other: Any) -> np.ndarray:
        each = zip(self.parts, one, other, strict=True)
        return reduce(self.operation, [part.between(a, b) for part, a, b in each])


class Product(Sum):
    """Their product."""

    operation = np.multiply


KERNELS: dict[str, type[Kernel]] = {
    **dict.fromkeys((*OF_SQUARED_DISTANCE, *OF_DISTANCE), Isotropic),
    **{
        kernel.__name__: kernel
        for kernel in (Cosine, Periodic, Linear, Polynomial, Constant, White, Sum, Product)
    },
}
"""The kernels that there is a NumPy form of, by the names of their classes in GPflow."""


def kernel_of(description: Description) -> Kernel:
    """The kernel that is described.

    :raises InvalidDataError: if there is no NumPy form of it.
    """
    return of_name("kernel", description.name, KERNELS)(description)
