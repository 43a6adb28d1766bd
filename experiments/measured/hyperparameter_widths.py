"""Means and widths of q(ε) beside those of Markov chain Monte Carlo on the exact model.

Five small problems come as one batch and as five. NUTS samples the exact posterior of the
hyperparameters ε under the same prior: with Gaussian noise from the marginal likelihood, and with
labels and counts together with the values of f at all inputs. For the logarithm of each number in ε
a row has how far its mean under q(ε) is from the exact one, in exact standard deviations, and the
ratio of the two standard deviations; and that ratio of the unconstrained number, too.

--quick has the first problem, dense, and a short chain.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import gpflow
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from common import Results, parser, run, save_figure, write_json, write_results
from tqdm import tqdm

import streaming_gp as sgp

BATCHES = 1, 5
MEAN_WITHIN, LEAST_RATIO, MOST_RATIO = 0.3, 0.8, 1.25
"""Of each component, asked of a point at every input."""
LEAST_SHOWN, MOST_SHOWN = 0.08, 16.0
"""Ratios beyond are drawn at these."""
BLOCK = 50
DRAWS_OF_Q = 20_000
DRAWS = {"line": 4000, "three inputs": 4000, "classes": 2000, "counts": 2000, "periodic": 1000}
"""Of NUTS; with labels and counts f is sampled, too."""
METHODS: dict[str, Callable[[], Any]] = {
    "dense": lambda: sgp.PrivatePseudoPoints("all"),
    "private 10": lambda: sgp.PrivatePseudoPoints(10),
    "shared 30": lambda: sgp.SharedPseudoPoints(30),
    "conditional 10": lambda: sgp.ConditionalPseudoPoints(10),
}


class Problem(NamedTuple):
    """Data, and a kernel and a likelihood to start from."""

    X: np.ndarray
    Y: np.ndarray
    kernel: Callable[[], Any]
    likelihood: Callable[[], Any]


def line(seed: int) -> Problem:
    rng = np.random.default_rng([seed, 0])
    X = rng.uniform(-3.0, 3.0, (100, 1))
    Y = np.sin(2.0 * X) + 0.2 * rng.standard_normal(X.shape)
    return Problem(
        X, Y, gpflow.kernels.SquaredExponential, lambda: gpflow.likelihoods.Gaussian(0.1)
    )


def three_inputs(seed: int) -> Problem:
    rng = np.random.default_rng([seed, 1])
    X = rng.uniform(-3.0, 3.0, (150, 3))
    Y = np.sin(1.5 * X[:, :1]) + np.cos(X[:, 1:2]) + 0.5 * X[:, 2:]
    Y += 0.1 * rng.standard_normal(Y.shape)
    return Problem(
        X,
        Y,
        lambda: gpflow.kernels.SquaredExponential(lengthscales=np.ones(3)),
        lambda: gpflow.likelihoods.Gaussian(0.1),
    )


def classes(seed: int) -> Problem:
    rng = np.random.default_rng([seed, 2])
    X = rng.uniform(-3.0, 3.0, (60, 1))
    p = 0.5 + 0.5 * np.tanh(3.0 * np.sin(2.0 * X))
    Y = (rng.uniform(size=X.shape) < p).astype(float)
    return Problem(X, Y, gpflow.kernels.SquaredExponential, gpflow.likelihoods.Bernoulli)


def counts(seed: int) -> Problem:
    rng = np.random.default_rng([seed, 3])
    X = rng.uniform(-3.0, 3.0, (60, 1))
    Y = rng.poisson(np.exp(1.0 + np.sin(2.0 * X))).astype(float)
    return Problem(X, Y, gpflow.kernels.SquaredExponential, gpflow.likelihoods.Poisson)


def periodic(seed: int) -> Problem:
    rng = np.random.default_rng([seed, 4])
    X = rng.uniform(0.0, 6.0, (100, 1))
    Y = np.sin(np.pi * X) + 0.5 * np.cos(2.0 * np.pi * X) + 0.2 * rng.standard_normal(X.shape)
    return Problem(
        X,
        Y,
        lambda: gpflow.kernels.Periodic(gpflow.kernels.SquaredExponential(), period=2.0),
        lambda: gpflow.likelihoods.Gaussian(0.1),
    )


PROBLEMS = {
    one.__name__.replace("_", " "): one for one in (line, three_inputs, classes, counts, periodic)
}


# ---- q(ε), and the exact posterior ----


def model_of(problem: Problem, method: str, seed: int = 0) -> sgp.StreamingGP:
    return sgp.StreamingGP(
        problem.kernel(),
        problem.likelihood(),
        pseudo_points=METHODS[method](),
        hyperparameters=sgp.VariationalHyperparameters(full_covariance=True),
        seed=seed,
    )


def learned(problem: Problem, method: str, number: int, seed: int) -> Results:
    """Mean and standard deviation of q(ε) after so many batches, of the logarithms as well."""
    model = model_of(problem, method, seed)
    for rows in np.array_split(np.arange(len(problem.X)), number):
        model.update((problem.X[rows], problem.Y[rows]))
    q = model.hyperparameter_posterior
    assert q is not None
    draws = model.hyperparameter_samples(DRAWS_OF_Q)
    values = [draws[path] for path in model.parameter_vector.parameters]
    logs = np.log(np.hstack([one.reshape(DRAWS_OF_Q, -1) for one in values]))
    return {
        "mean": np.asarray(q.mean).tolist(),
        "sd": np.sqrt(np.asarray(q.variance)).tolist(),
        "log_mean": logs.mean(axis=0).tolist(),
        "log_sd": logs.std(axis=0).tolist(),
    }


def names_of(model: sgp.StreamingGP) -> list[str]:
    """A name for each component of ε."""
    names = []
    for path, one in model.parameter_vector.parameters.items():
        short = path.replace("likelihood.variance", "noise").split(".")[-1]
        size = int(np.prod(one.shape))
        names += [short] if size == 1 else [f"{short} {i + 1}" for i in range(size)]
    return names


def exact(problem: Problem, start: Results, num_samples: int, seed: int) -> Results:
    """NUTS from the mean of some q(ε): moments of each component, and effective draws."""
    begun = model_of(problem, "dense")
    prior = begun.ledger.prior.hyperparameters
    assert prior is not None
    centre, width = np.asarray(prior.mean), np.sqrt(np.asarray(prior.variance))
    vector, data = begun.parameter_vector, (problem.X, problem.Y)
    if isinstance(begun.likelihood, gpflow.likelihoods.Gaussian):
        model: Any = gpflow.models.GPR(data, begun.kernel, likelihood=begun.likelihood)
    else:
        model = gpflow.models.GPMC(data, begun.kernel, begun.likelihood)
    owners = dict(vector.pieces(np.arange(len(centre))))
    values = dict(vector.pieces(np.asarray(start["mean"])))
    units = dict(vector.pieces(np.asarray(start["sd"])))
    for one, places in owners.items():
        where = places.astype(int)
        one.prior = tfp.distributions.Normal(centre[where], width[where])
        one.prior_on = "unconstrained"
        one.unconstrained_variable.assign(values[one])
    parameters = model.trainable_parameters
    steps = [0.3 * tf.constant(units.get(one, np.ones(one.shape))) for one in parameters]
    helper = gpflow.optimizers.SamplingHelper(model.log_posterior_density, parameters)
    states = sample(helper, steps, num_samples, seed)
    draws = np.zeros((len(states[0]), len(centre)))
    logs = np.zeros_like(draws)
    for one, states_of in zip(parameters, states, strict=True):
        if one in owners:
            where = owners[one].astype(int).ravel()
            draws[:, where] = states_of.reshape(len(draws), -1)
            logs[:, where] = np.log(one.transform.forward(draws[:, where]))
    effective = tfp.mcmc.effective_sample_size(tf.constant(draws)).numpy()
    return {
        "mean": draws.mean(axis=0).tolist(),
        "sd": draws.std(axis=0).tolist(),
        "log_mean": logs.mean(axis=0).tolist(),
        "log_sd": logs.std(axis=0).tolist(),
        "effective": effective.tolist(),
    }


def sample(helper: Any, steps: list[Any], num_samples: int, seed: int) -> list[np.ndarray]:
    """Draws after some that adapt the step size, in blocks, so that there is progress to show."""
    adapting = max(BLOCK, num_samples // 4)
    kernel = tfp.mcmc.DualAveragingStepSizeAdaptation(
        tfp.mcmc.NoUTurnSampler(helper.target_log_prob_fn, step_size=steps, max_tree_depth=6),
        num_adaptation_steps=int(0.8 * adapting),
        target_accept_prob=0.8,
    )

    @tf.function(autograph=False)
    def advance(state: Any, results: Any, block_seed: tf.Tensor) -> Any:
        return tfp.mcmc.sample_chain(
            BLOCK, state, results, kernel, trace_fn=None, return_final_kernel_results=True,
            seed=block_seed,
        )  # fmt: skip

    state = [tf.convert_to_tensor(variable) for variable in helper.current_state]
    results, kept = kernel.bootstrap_results(state), []
    for number in tqdm(range((adapting + num_samples) // BLOCK), desc=f"NUTS, blocks of {BLOCK}"):
        output = advance(state, results, tf.constant([seed, number], tf.int32))
        state, results = [part[-1] for part in output.all_states], output.final_kernel_results
        if number >= adapting // BLOCK:
            kept.append([part.numpy() for part in output.all_states])
    return [np.concatenate(parts) for parts in zip(*kept, strict=True)]


# ---- rows ----


def compared(q: Results, reference: Results) -> tuple[np.ndarray, np.ndarray]:
    """How far means of logarithms are apart in exact standard deviations, and ratios of widths."""
    sd = np.asarray(reference["log_sd"])
    apart = (np.asarray(q["log_mean"]) - np.asarray(reference["log_mean"])) / sd
    return apart, np.asarray(q["log_sd"]) / sd


def made(path: Any, make: Callable[[], Results]) -> Results:
    """What a file holds, which is made where it is missing."""
    if not path.exists():
        write_json(path, make())
    return dict(json.loads(path.read_text()))


def main(arguments: argparse.Namespace) -> None:
    names = list(PROBLEMS)[:1] if arguments.quick else list(PROBLEMS)
    methods = ["dense"] if arguments.quick else list(METHODS)
    folder = arguments.out / "runs"
    components: list[Results] = []
    summary: list[Results] = []
    chains: list[Results] = []
    for name in names:
        problem = PROBLEMS[name](arguments.seed)
        found: dict[tuple[str, int], Results] = {}
        for method in methods:
            for number in BATCHES:
                path = folder / f"{name}, {method}, {number}, seed {arguments.seed}.json"

                def make(method: str = method, number: int = number) -> Results:
                    return learned(problem, method, number, arguments.seed)  # noqa: B023

                found[method, number] = made(path, make)
                print(name, method, number, found[method, number], flush=True)
        start = found["dense", 1]
        number = 200 if arguments.quick else DRAWS[name]
        reference = made(
            folder / f"{name}, NUTS, {number}, seed {arguments.seed}.json",
            lambda: exact(problem, start, number, arguments.seed),  # noqa: B023
        )
        chains.append(
            {
                "problem": name,
                "data": len(problem.X),
                "draws": number,
                "fewest": min(reference["effective"]),
            }
        )
        labels = names_of(model_of(problem, "dense"))
        for (method, number), q in found.items():
            apart, ratio = compared(q, reference)
            unconstrained = np.asarray(q["sd"]) / np.asarray(reference["sd"])
            row: Results = {"problem": name, "points": method, "batches": number}
            inside = (ratio >= LEAST_RATIO) & (ratio <= MOST_RATIO)
            summary.append(
                {
                    **row,
                    "furthest": float(np.abs(apart).max()),
                    "narrowest": float(ratio.min()),
                    "widest": float(ratio.max()),
                    "components": len(apart),
                    "within": int((inside & (np.abs(apart) <= MEAN_WITHIN)).sum()),
                }
            )
            columns = {"mean": apart, "width": ratio, "unconstrained_width": unconstrained}
            for place, label in enumerate(labels):
                numbers = {name: float(one[place]) for name, one in columns.items()}
                components.append({**row, "component": label, **numbers})
        results = {
            "summary": summary,
            "dense": [one for one in components if one["points"] == "dense"],
            "components": components,
            "chains": chains,
        }
        write_results(arguments.out, results)
    for row in summary:
        print(row)
    save_figure(figure_of(components), arguments.out, "hyperparameter_widths.png")


def figure_of(components: list[Results]) -> Any:
    """Each component at its difference of means and its ratio of widths, by method."""
    methods = [one for one in METHODS if any(row["points"] == one for row in components)]
    figure, axes = plt.subplots(
        1, len(methods), figsize=(3.0 * len(methods) + 1.0, 3.6), sharey=True
    )
    problems = list(dict.fromkeys(row["problem"] for row in components))
    for axis, method in zip(np.atleast_1d(axes), methods, strict=True):
        axis.axvspan(-MEAN_WITHIN, MEAN_WITHIN, color="0.93")
        axis.axhspan(LEAST_RATIO, MOST_RATIO, color="0.93")
        for color, name in enumerate(problems):
            for number, marker in zip(BATCHES, "o^", strict=True):
                rows = [
                    (row["mean"], np.clip(row["width"], LEAST_SHOWN, MOST_SHOWN))
                    for row in components
                    if (row["points"], row["problem"], row["batches"]) == (method, name, number)
                ]
                axis.plot(
                    *np.transpose(rows), marker, color=f"C{color}", mfc="none",
                    label=f"{name}, {number}",
                )  # fmt: skip
        axis.axvline(0.0, color="0.6", lw=0.6)
        axis.axhline(1.0, color="0.6", lw=0.6)
        axis.set(
            title=method, yscale="log", ylim=(LEAST_SHOWN, MOST_SHOWN), xlabel="difference, sd"
        )
        axis.set_xscale("symlog", linthresh=1.0)
        axis.set_xlim(-100.0, 100.0)
        axis.set_xticks([-30, -3, -1, 0, 1, 3, 30], ["-30", "-3", "-1", "0", "1", "3", "30"])
        axis.set_yticks(
            [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0], map(str, (0.1, 0.2, 0.5, 1, 2, 5, 10))
        )
        axis.minorticks_off()
    np.atleast_1d(axes)[0].set_ylabel("width over the exact one")
    np.atleast_1d(axes)[-1].legend(fontsize=6, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.tight_layout()
    return figure


if __name__ == "__main__":
    run(main, parser(__doc__))
