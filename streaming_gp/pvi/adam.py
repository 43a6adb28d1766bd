"""Adam's formula, once for clients and for the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class AdamFormula:
    """``m ← β₁ m + (1 − β₁) g;  v ← β₂ v + (1 − β₂) g²``, and a step of
    ``η √(1 − β₂^t) / (1 − β₁^t) · m / (√v + ε)`` (Kingma & Ba 2015, end of section 2).

    :param learning_rate: The size η of a step, about.
    :param beta1: The decay β₁ of the gradient's mean, in [0, 1).
    :param beta2: The decay β₂ of the gradient's mean square, in [0, 1).
    :param epsilon: The offset ε, which is added to the root of that mean square.
    """

    learning_rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def ascent(
        self, gradient: Any, first: Any, second: Any, count: Any
    ) -> tuple[Any, tuple[Any, Any, Any]]:
        """One step uphill, of arrays or of tensors.

        :param gradient: The gradient g, of any shape.
        :param first: The mean m before the step; zeros at first.
        :param second: The mean square v before the step; zeros at first.
        :param count: The number of steps made before this one, a scalar.
        :returns: the step, and ``(m, v, t)`` after it.
        """
        count = count + 1.0
        first = self.beta1 * first + (1.0 - self.beta1) * gradient
        second = self.beta2 * second + (1.0 - self.beta2) * gradient**2
        bias = (1.0 - self.beta2**count) ** 0.5 / (1.0 - self.beta1**count)
        step = self.learning_rate * bias * first / (second**0.5 + self.epsilon)
        return step, (first, second, count)
