"""Other packages' processes that condition on what is near: GPBoost's Vecchia approximation
(Sigrist 2022), and GPyTorch's variational nearest-neighbour GP (Wu, Pleiss & Cunningham 2022).
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from experiments.benchmarks.methods.learner import Held, Hyperparameters, Prediction, Setup

NEIGHBOURS = 20
"""GPBoost's default."""
VARIATIONAL_NEIGHBOURS, MINIBATCH, RATE = 32, 256, 0.01
EPOCHS, LEAST_STEPS = 100, 2000
"""Passes over all rows, and the least number of steps."""


class Rows:
    """All rows so far."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._X, self._y = np.empty((0, setup.input_dim)), np.empty(0)

    def _keep(self, X: np.ndarray, Y: np.ndarray) -> None:
        self._X, self._y = np.concatenate([self._X, X]), np.concatenate([self._y, Y[:, 0]])

    def held(self) -> Held:
        return Held(len(self._X), "points", self._X.nbytes + self._y.nbytes)


class GPBoost(Rows):
    """A squared exponential with a range for each input, its likelihood maximised over all rows so
    far at the first batch and whenever the stream has grown by a tenth of its length.

    :param threads: How many the library may use.
    """

    def __init__(self, setup: Setup, threads: int) -> None:
        super().__init__(setup)
        self._threads, self._fitted = threads, 0
        self._model: Any = None
        self._parameters: np.ndarray | None = None

    def update(self, X: np.ndarray, Y: np.ndarray) -> None:
        import gpboost

        self._keep(X, Y)
        self._model = gpboost.GPModel(
            gp_coords=self._X,
            cov_function="gaussian_ard",
            likelihood="bernoulli_probit" if self._setup.classes else "gaussian",
            gp_approx="vecchia",
            num_neighbors=NEIGHBOURS,
            num_parallel_threads=self._threads,
            seed=self._setup.seed,
        )
        if len(self._X) - self._fitted >= self._setup.num_data / 10 or not self._fitted:
            self._model.fit(self._y, params={"maxit": self._setup.iterations(1000)})
            self._parameters = self._model.get_cov_pars(format_pandas=False)
            self._fitted = len(self._X)

    def predict(self, X: np.ndarray) -> Prediction:
        found = self._model.predict(
            y=self._y, cov_pars=self._parameters, gp_coords_pred=X,
            predict_var=not self._setup.classes, predict_response=True,
        )  # fmt: skip
        mean = np.ravel(found["mu"])
        return Prediction.of_label(mean) if self._setup.classes else Prediction(mean, found["var"])

    def hyperparameters(self) -> Hyperparameters:
        """What it learned, of regression: its correlation is ``exp(−‖d / range‖²)``."""
        assert self._parameters is not None
        noise, variance, *ranges = np.ravel(self._parameters)
        return Hyperparameters(variance, np.array(ranges) / np.sqrt(2.0), noise)


def gpboost(setup: Setup, threads: int) -> GPBoost:
    return GPBoost(setup, threads)


class VNNGP(Rows):
    """A pseudo-point at every input, mean-field, by Adam on minibatches of both, at rates that fall
    along a cosine.

    Each factor of q starts at the target of its row and with the deviation of the noise. Where all
    start at the prior, as is GPyTorch's default, the noise takes the place of f before they get
    there.
    """

    def update(self, X: np.ndarray, Y: np.ndarray) -> None:
        import gpytorch
        import torch

        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(1)
        torch.manual_seed(self._setup.seed)
        warnings.filterwarnings("ignore", module="linear_operator|gpytorch")
        # A factor's neighbours are among the rows before it.
        order = np.random.default_rng(self._setup.seed).permutation(len(X))
        self._keep(X[order], Y[order])
        self._likelihood = gpytorch.likelihoods.GaussianLikelihood(
            noise_constraint=gpytorch.constraints.GreaterThan(1e-8)
        )
        self._likelihood.noise = self._setup.hyperparameters.noise
        self._model = model = _process(torch.tensor(self._X), self._setup)
        y = torch.tensor(self._y)
        strategy = model.variational_strategy
        q = strategy._variational_distribution
        with torch.no_grad():
            q.variational_mean.copy_(y)
            q._variational_stddev.fill_(np.sqrt(self._setup.hyperparameters.noise))
            strategy.variational_params_initialized.fill_(1)
        objective = gpytorch.mlls.VariationalELBO(self._likelihood, model, num_data=len(y))
        parameters = [*model.parameters(), *self._likelihood.parameters()]
        steps = self._setup.iterations(max(EPOCHS * -(-len(y) // MINIBATCH), LEAST_STEPS))
        optimiser = torch.optim.Adam(parameters, lr=RATE)
        rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        model.train()
        self._likelihood.train()
        for _ in range(steps):
            optimiser.zero_grad()
            loss = -objective(model(x=None), y[strategy.current_training_indices])
            loss.backward()
            optimiser.step()
            rates.step()

    def predict(self, X: np.ndarray) -> Prediction:
        import torch

        self._model.eval()
        self._likelihood.eval()
        with torch.no_grad():
            found = self._likelihood(self._model(torch.tensor(np.ascontiguousarray(X))))
            return Prediction(found.mean.numpy(), found.variance.numpy())


def _process(Z: Any, setup: Setup) -> Any:
    """GPyTorch's model of it, at the hyperparameters at which all methods start."""
    import gpytorch
    import torch

    class Process(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            distribution = gpytorch.variational.MeanFieldVariationalDistribution(len(Z))
            super().__init__(
                gpytorch.variational.NNVariationalStrategy(
                    self, Z, distribution, k=min(VARIATIONAL_NEIGHBOURS, len(Z) - 1),
                    training_batch_size=min(MINIBATCH, len(Z)),
                )
            )  # fmt: skip
            self.mean_module = gpytorch.means.ZeroMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(
                gpytorch.kernels.RBFKernel(ard_num_dims=Z.shape[1])
            )
            self.covar_module.outputscale = setup.hyperparameters.variance
            self.covar_module.base_kernel.lengthscale = torch.tensor(
                setup.hyperparameters.lengthscales
            )

        def forward(self, X: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(
                self.mean_module(X), self.covar_module(X)
            )

        def __call__(self, x: Any, prior: bool = False, **kwargs: Any) -> Any:
            strategy = self.variational_strategy
            return strategy(x=x, prior=False, **kwargs)

    return Process()


def vnngp(setup: Setup) -> VNNGP:
    return VNNGP(setup)
