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
    """The entry of a registry.

    :param kind: What the registry holds, for the error.
    :raises InvalidDataError: if it has no such entry; names those that it has.
    """
    if name not in forms:
        raise InvalidDataError(
            f"there is no NumPy form of the {kind} {name}; there is one of {', '.join(forms)}"
        )
    return forms[name]


class Kernel(ABC):
    """A covariance function.

    Each says what it wants of inputs (``prepared``, such as lengthscales divided out) and the
    covariance between two sets of inputs prepared in this way, so that one of the sets can be
    prepared once for all: :meth:`bind`.

    :param description: Its class, parameters and columns.
    """

    def __init__(self, description: Description) -> None:
        self.columns = description.columns
        self.parameters = description.parameters

    def covariance(self, X: np.ndarray, X2: np.ndarray) -> np.ndarray:
        """Covariance [N, N2] between two sets of inputs [N, D] and [N2, D].

        White noise has none between them, even where they are equal.
        """
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
        return np.full(len(X), self.parameters["variance"])

    @abstractmethod
    def prepared(self, X: np.ndarray) -> Any:
        """Values of inputs [N, D] that :meth:`between` wants."""

    @abstractmethod
    def between(self, one: Any, other: Any) -> np.ndarray:
        """Covariance [N, N2] between two sets of prepared inputs."""

    def centre(self, origin: np.ndarray) -> None:  # noqa: B027 — most kernels have no centre
        """Count inputs from this point [D] on, if nothing but differences matters.

        Where inputs lie far from zero in lengthscales, squares of distances would lose digits.
        """

    def seen(self, X: np.ndarray) -> np.ndarray:
        """The columns of X that the kernel sees."""
        return X if self.columns is None else X[:, self.columns]


# ---- stationary kernels ----


class Isotropic(Kernel):
    """A function of ``r² = ‖(x − x') / ℓ‖²``."""

    def __init__(self, description: Description) -> None:
        super().__init__(description)
        self.scale = self.parameters["variance"]
        self.lengthscales = self.parameters["lengthscales"]
        self.origin: np.ndarray | float = 0.0

    def centre(self, origin: np.ndarray) -> None:
        self.origin = self.seen(origin[None])[0]

    def prepared(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Scaled inputs [N, d] and their squared norms [N]."""
        scaled = (self.seen(X) - self.origin) / self.lengthscales
        return scaled, np.add.reduce(scaled * scaled, axis=-1)

    def between(self, one: Any, other: Any) -> np.ndarray:
        (A, squares_a), (B, squares_b) = one, other
        r2 = A @ B.T
        r2 *= -2.0
        r2 += squares_a[:, None] + squares_b
        return self.of_squared_distance(r2)

    def covariance_with(self, X: np.ndarray, x: np.ndarray) -> np.ndarray:
        differences = self.seen(X - x) / self.lengthscales
        return self.of_squared_distance(np.einsum("nd,nd->n", differences, differences))

    @abstractmethod
    def of_squared_distance(self, r2: np.ndarray) -> np.ndarray:
        """The covariance at r²; rounding may have left it below zero."""


class OfDistance(Isotropic):
    """A function of r itself."""

    def of_squared_distance(self, r2: np.ndarray) -> np.ndarray:
        return self.of_distance(np.sqrt(np.maximum(r2, 1e-36)))

    @abstractmethod
    def of_distance(self, r: np.ndarray) -> np.ndarray:
        """The covariance at r."""


class SquaredExponential(Isotropic):
    """``σ² exp(−r²/2)``."""

    def of_squared_distance(self, r2: np.ndarray) -> np.ndarray:
        return self.scale * np.exp(-0.5 * r2)


class RationalQuadratic(Isotropic):
    """``σ² (1 + r² / 2α)^−α``."""

    def __init__(self, description: Description) -> None:
        super().__init__(description)
        self.alpha = self.parameters["alpha"]

    def of_squared_distance(self, r2: np.ndarray) -> np.ndarray:
        return self.scale * (1.0 + 0.5 * r2 / self.alpha) ** -self.alpha


class Exponential(OfDistance):
    """``σ² exp(−r/2)``."""

    def of_distance(self, r: np.ndarray) -> np.ndarray:
        return self.scale * np.exp(-0.5 * r)


class Matern12(OfDistance):
    """``σ² exp(−r)``."""

    def of_distance(self, r: np.ndarray) -> np.ndarray:
        return self.scale * np.exp(-r)


class Matern32(OfDistance):
    """``σ² (1 + √3 r) exp(−√3 r)``."""

    def of_distance(self, r: np.ndarray) -> np.ndarray:
        scaled = np.sqrt(3.0) * r
        return self.scale * (1.0 + scaled) * np.exp(-scaled)


class Matern52(OfDistance):
    """``σ² (1 + √5 r + 5/3 r²) exp(−√5 r)``."""

    def of_distance(self, r: np.ndarray) -> np.ndarray:
        scaled = np.sqrt(5.0) * r
        return self.scale * (1.0 + scaled + scaled * scaled / 3.0) * np.exp(-scaled)


class Cosine(Kernel):
    """``σ² cos(2π Σ_d (x_d − x'_d) / ℓ_d)``."""

    def prepared(self, X: np.ndarray) -> np.ndarray:
        """``Σ_d x_d / ℓ_d`` [N]."""
        return np.add.reduce(self.seen(X) / self.parameters["lengthscales"], axis=-1)

    def between(self, one: Any, other: Any) -> np.ndarray:
        return self.parameters["variance"] * np.cos(2.0 * np.pi * (one[:, None] - other))


class Periodic(Kernel):
    """An isotropic kernel of the sines ``sin(π (x − x') / γ) / ℓ``, in the columns of its base.

    As in GPflow, a base that is a function of r gets the sum of their magnitudes for r.
    """

    def __init__(self, description: Description) -> None:
        super().__init__(description)
        base = kernel_of(description.parts[0])
        if not isinstance(base, Isotropic):
            raise InvalidDataError(f"Periodic wants an isotropic kernel, got {type(base).__name__}")
        self.base = base

    def variance(self, X: np.ndarray) -> np.ndarray:
        return self.base.variance(X)

    def prepared(self, X: np.ndarray) -> np.ndarray:
        """The columns of X [N, d] that the base sees."""
        return self.base.seen(X)

    def between(self, one: Any, other: Any) -> np.ndarray:
        angles = np.pi * (one[:, None, :] - other) / self.parameters["period"]
        sines = np.sin(angles) / self.base.lengthscales
        if isinstance(self.base, OfDistance):
            return self.base.of_distance(np.add.reduce(np.abs(sines), axis=-1))
        return self.base.of_squared_distance(np.add.reduce(sines * sines, axis=-1))


# ---- others ----


class Linear(Kernel):
    """``Σ_d σ²_d x_d x'_d``."""

    def variance(self, X: np.ndarray) -> np.ndarray:
        return np.add.reduce(np.square(self.seen(X)) * self.parameters["variance"], axis=-1)

    def prepared(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """``σ²_d x_d`` and x, both [N, d]."""
        seen = self.seen(X)
        return seen * self.parameters["variance"], seen

    def between(self, one: Any, other: Any) -> np.ndarray:
        return one[0] @ other[1].T


class Polynomial(Linear):
    """``(Σ_d σ²_d x_d x'_d + γ)^p``."""

    def variance(self, X: np.ndarray) -> np.ndarray:
        return self._powered(super().variance(X))

    def between(self, one: Any, other: Any) -> np.ndarray:
        return self._powered(super().between(one, other))

    def _powered(self, products: np.ndarray) -> np.ndarray:
        return (products + self.parameters["offset"]) ** self.parameters["degree"]


class Constant(Kernel):
    """``σ²``; GPflow also calls it Bias."""

    def prepared(self, X: np.ndarray) -> int:
        """The number of inputs."""
        return len(X)

    def between(self, one: Any, other: Any) -> np.ndarray:
        return np.full((one, other), self.parameters["variance"])


class White(Constant):
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
        SquaredExponential, RationalQuadratic, Exponential, Matern12, Matern32, Matern52, Cosine,
        Periodic, Linear, Polynomial, Constant, White, Sum, Product,
    )
}  # fmt: skip
"""The kernels that there is a NumPy form of, by the names of their classes in GPflow."""


def kernel_of(description: Description) -> Kernel:
    """The kernel that is described.

    :raises InvalidDataError: if there is no NumPy form of it.
    """
    return of_name("kernel", description.name, KERNELS)(description)
