"""GPyTorch's ``get_fantasy_model``, of an exact GP (Gardner et al. 2018) and of a variational one
(online variational conditioning: Maddox, Stanton & Wilson 2021).
"""

from __future__ import annotations

import warnings
from typing import Any

import gpytorch
import numpy as np
import torch
from gpytorch.distributions import MultivariateNormal

from experiments.benchmarks.methods.learner import Held, Hyperparameters, Prediction, Setup

POINTS = 240
STEPS, RATE = 300, 0.05
LARGEST_CHOLESKY = 10**6
"""Every system is solved exactly, as the defaults' conjugate gradients are for larger ones."""

torch.set_default_dtype(torch.float64)
warnings.filterwarnings("ignore", module="linear_operator|gpytorch")  # each nugget that it adds


def kernel_and_likelihood(of: Hyperparameters) -> tuple[Any, Any]:
    kernel = gpytorch.kernels.ScaleKernel(
        gpytorch.kernels.RBFKernel(ard_num_dims=len(of.lengthscales))
    )
    kernel.outputscale = of.variance
    kernel.base_kernel.lengthscale = torch.tensor(of.lengthscales)
    likelihood = gpytorch.likelihoods.GaussianLikelihood(
        noise_constraint=gpytorch.constraints.GreaterThan(1e-7)
    )
    likelihood.noise = max(of.noise, 1e-6)
    return kernel, likelihood


class Exact(gpytorch.models.ExactGP):
    """A GP of mean zero."""

    def __init__(self, X: torch.Tensor, y: torch.Tensor, of: Hyperparameters) -> None:
        kernel, likelihood = kernel_and_likelihood(of)
        super().__init__(X, y, likelihood)
        self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), kernel

    def forward(self, X: torch.Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(X), self.covar_module(X))


class Sparse(gpytorch.models.ApproximateGP):
    """A variational GP at given hyperparameters."""

    def __init__(self, Z: torch.Tensor, of: Hyperparameters) -> None:
        distribution = gpytorch.variational.CholeskyVariationalDistribution(len(Z))
        strategy = gpytorch.variational.VariationalStrategy(self, Z, distribution)
        super().__init__(strategy)
        self.covar_module, self.likelihood = kernel_and_likelihood(of)
        self.mean_module = gpytorch.means.ZeroMean()
        for parameter in (*self.covar_module.parameters(), *self.likelihood.parameters()):
            parameter.requires_grad = False

    forward = Exact.forward


def fitted(X: torch.Tensor, y: torch.Tensor, setup: Setup) -> Sparse:
    """The variational GP of the first batch, by full-batch steps of Adam."""
    chosen = np.random.default_rng(setup.seed).permutation(len(X))[:POINTS]
    model = Sparse(X[chosen], setup.hyperparameters)
    bound = gpytorch.mlls.VariationalELBO(model.likelihood, model, num_data=len(X))
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.Adam(wanted, RATE)
    model.train()
    for _ in range(setup.iterations(STEPS)):
        optimiser.zero_grad()
        (-bound(model(X), y)).backward()
        optimiser.step()
    return model


class Fantasies:
    """The first batch is learned in the usual way, and every later one by a fantasy."""

    def __init__(self, setup: Setup, variational: bool) -> None:
        self._setup, self._variational = setup, variational
        self._model: Any = None

    def update(self, X: np.ndarray, Y: np.ndarray) -> None:
        x, y = torch.tensor(X), torch.tensor(Y[:, 0])
        with _exactly():
            if self._model is None:
                self._model = self._first(x, y)
                return
            with torch.no_grad():
                self._model = self._model.get_fantasy_model(x, y)

    def _first(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        setup = self._setup
        model = fitted(x, y, setup) if self._variational else Exact(x, y, setup.hyperparameters)
        model.eval()
        model.likelihood.eval()
        with torch.no_grad():
            model(x[:1])  # fills the caches that a fantasy starts from
        return model

    def predict(self, X: np.ndarray) -> Prediction:
        with torch.no_grad(), _exactly():
            y = self._model.likelihood(self._model(torch.tensor(X)))
            return Prediction(y.mean.numpy(), y.variance.numpy())

    def held(self) -> Held:
        inputs = getattr(self._model, "train_inputs", None)
        number = (
            len(self._model.variational_strategy.inducing_points)
            if inputs is None
            else (inputs[0].shape[-2])
        )
        numbers = number * (number + 1) // 2 + number * (self._setup.input_dim + 1)
        return Held(number, "points", 8 * numbers)


def _exactly() -> Any:
    """A context without conjugate gradients."""
    return gpytorch.settings.max_cholesky_size(LARGEST_CHOLESKY)


def exact(setup: Setup) -> Fantasies:
    return Fantasies(setup, variational=False)


def variational(setup: Setup) -> Fantasies:
    return Fantasies(setup, variational=True)
