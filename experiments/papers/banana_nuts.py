"""NUTS on all banana points: the reference of the banana example."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from common import Results
from tqdm import tqdm

from streaming_gp.datasets import Split
from streaming_gp.expfam import Gaussian
from streaming_gp.metrics import error_rate, mean_negative_log_density

RECORDED = Path(__file__).resolve().parents[2] / "docs" / "results" / "banana_nuts.npz"


def nuts(data: Split, prior: Gaussian, grid: np.ndarray, num_samples: int, seed: int) -> Results:
    """NUTS over the function at all inputs and ε, on GPflow's GPMC; ``prior`` is that of ε."""
    model = gpflow.models.GPMC(
        (data.X, data.Y),
        gpflow.kernels.SquaredExponential(lengthscales=[1.0, 1.0]),
        gpflow.likelihoods.Bernoulli(),
    )
    mean, sd = np.asarray(prior.mean), np.sqrt(np.asarray(prior.variance))
    # paths in alphabetical order: lengthscales, variance
    for parameter, rows in ((model.kernel.lengthscales, slice(0, 2)), (model.kernel.variance, 2)):
        parameter.prior = tfp.distributions.Normal(mean[rows], sd[rows])
        parameter.prior_on = "unconstrained"
    helper = gpflow.optimizers.SamplingHelper(
        model.log_posterior_density, model.trainable_parameters
    )
    states = _sample_nuts(helper, num_samples, seed)
    return _nuts_predictions(model, helper, states, data, grid)


def _sample_nuts(helper: Any, num_samples: int, seed: int, block: int = 25) -> list[np.ndarray]:
    """Draws in blocks, so that there is progress to show."""
    kernel = tfp.mcmc.DualAveragingStepSizeAdaptation(
        tfp.mcmc.NoUTurnSampler(helper.target_log_prob_fn, step_size=0.1, max_tree_depth=7),
        num_adaptation_steps=num_samples // 2,
        target_accept_prob=0.8,
    )

    @tf.function(autograph=False)
    def advance(state: Any, results: Any, block_seed: tf.Tensor) -> Any:
        return tfp.mcmc.sample_chain(
            block, state, results, kernel, trace_fn=None, return_final_kernel_results=True,
            seed=block_seed,
        )  # fmt: skip

    state = [tf.convert_to_tensor(variable) for variable in helper.current_state]
    results, kept = kernel.bootstrap_results(state), []
    burn_in = num_samples // 2 // block
    for number in tqdm(range(burn_in + num_samples // block), desc=f"NUTS, blocks of {block}"):
        output = advance(state, results, tf.constant([seed, number], tf.int32))
        state, results = [part[-1] for part in output.all_states], output.final_kernel_results
        if number >= burn_in:
            kept.append([part.numpy() for part in output.all_states])
    return [np.concatenate(parts) for parts in zip(*kept, strict=True)]


def _nuts_predictions(
    model: Any, helper: Any, states: list[np.ndarray], data: Split, grid: np.ndarray
) -> Results:
    """Averages over every tenth draw, and the draws of ε in constrained space."""
    constrained = dict(
        zip(
            (id(p) for p in model.trainable_parameters),
            helper.convert_to_constrained_values(states),
            strict=True,
        )
    )
    predict = tf.function(lambda X: model.predict_y(X)[0])
    test, on_grid = [], []
    for index in tqdm(range(0, len(states[0]), 10), desc="NUTS predictions"):
        for variable, values in zip(helper.current_state, states, strict=True):
            variable.assign(values[index])
        test.append(predict(data.X_test).numpy())
        on_grid.append(predict(grid).numpy())
    probability = np.mean(test, axis=0)
    density = np.log(np.where(data.Y_test == 1, probability, 1.0 - probability))
    return {
        "kernel.lengthscales": np.asarray(constrained[id(model.kernel.lengthscales)]),
        "kernel.variance": np.asarray(constrained[id(model.kernel.variance)]),
        "grid": np.mean(on_grid, axis=0),
        "test_error": error_rate(probability, data.Y_test),
        "test_nlpd": mean_negative_log_density(density),
    }


def reference(
    data: Split, prior: Gaussian, grid: np.ndarray, arguments: argparse.Namespace
) -> Results | None:
    """A NUTS run that is there already, or with --quick the recorded one, or else a new one."""
    path = arguments.out / "nuts.npz"
    if arguments.quick and not path.exists():
        path = RECORDED
    if path.exists():
        print(f"NUTS: recorded run from {path}")
        with np.load(path) as recorded:
            return {name: recorded[name] for name in recorded}
    if arguments.quick:
        return None
    found = nuts(data, prior, grid, arguments.nuts_samples, arguments.seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **found)
    return found


def effective_sample_size(draws: np.ndarray) -> float:
    """Independent draws that would be worth as much as these of one chain [S]."""
    logger, level = tf.get_logger(), tf.get_logger().level
    logger.setLevel("ERROR")  # TFP casts an FFT's zero imaginary part away, and TensorFlow warns
    try:
        return float(tfp.mcmc.effective_sample_size(draws))
    finally:
        logger.setLevel(level)
