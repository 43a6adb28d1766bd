"""A CSV file in chunks: a model that reads it keeps a journal, is stopped, and goes on.

The file has 20,000 rows of readings that are made up, some without a target. A model reads it 500
rows at a time on at most 300 pseudo-points. Half-way it is thrown away, as when a process is
killed; another resumes from the journal and reads on. The same from the command line is
``streaming-gp fit readings.csv --target power --journal run``. Draws power by hour and wind.

--quick has 2,000 rows.
"""

from __future__ import annotations

import argparse
import json
import shutil
from itertools import islice
from pathlib import Path

import gpflow
import matplotlib.pyplot as plt
import numpy as np
from common import Results, parser, run, save_figure, write_results

import streaming_gp as sgp
from streaming_gp.metrics import smse
from streaming_gp.tables import read_csv

BATCH_SIZE = 500


def write_readings(path: Path, number: int, seed: int) -> None:
    """Power of a turbine by hour and wind; one reading in a hundred is missing."""
    rng = np.random.default_rng(seed)
    hour, wind = rng.uniform(0.0, 24.0, number), rng.uniform(0.0, 12.0, number)
    power = 100.0 * np.sin(hour / 4.0) + 20.0 * wind + 5.0 * rng.standard_normal(number)
    with path.open("w") as file:
        file.write("hour,wind,power\n")
        for one in zip(hour, wind, power, strict=True):
            target = "" if rng.uniform() < 0.01 else f"{one[2]:.2f}"
            file.write(f"{one[0]:.3f},{one[1]:.3f},{target}\n")


def draw(table: sgp.TableGP) -> plt.Figure:
    """Power by hour at three speeds of the wind, with two standard deviations."""
    hour = np.linspace(0.0, 24.0, 100)
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    for wind in (2.0, 6.0, 10.0):
        mean, deviation = table.predict({"hour": hour, "wind": np.full(100, wind)})
        axes.plot(hour, mean[:, 0], label=f"wind {wind:g}")
        lower, upper = (mean + sign * 2.0 * deviation for sign in (-1.0, 1.0))
        axes.fill_between(hour, lower[:, 0], upper[:, 0], alpha=0.3)
    axes.set(xlabel="hour", ylabel="power")
    axes.legend()
    return figure


def main(arguments: argparse.Namespace) -> None:
    path, journal = arguments.out / "readings.csv", arguments.out / "journal"
    arguments.out.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(journal, ignore_errors=True)
    number = 2000 if arguments.quick else 20_000
    write_readings(path, number, arguments.seed)
    half = number // BATCH_SIZE // 2

    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(lengthscales=[1.0, 1.0]),
        gpflow.likelihoods.Gaussian(0.1),
        pseudo_points=sgp.PrivatePseudoPoints(30, budget=300),
        learning=sgp.UntilSettled(),
        journal=journal,
        seed=arguments.seed,
    )
    table = sgp.TableGP(model, target="power")
    first = sgp.stream(islice(read_csv(path, BATCH_SIZE), half), table, label="first half")
    columns = json.dumps(table.to_record())  # names and scales, which the journal has not
    del model, table  # the process is killed

    model = sgp.StreamingGP.resume(
        journal,
        gpflow.kernels.SquaredExponential(lengthscales=[1.0, 1.0]),
        gpflow.likelihoods.Gaussian(0.1),
    )
    table = sgp.TableGP.from_record(model, json.loads(columns))
    rest = islice(read_csv(path, BATCH_SIZE), half, None)
    second = sgp.stream(rest, table, label="second half")

    test = arguments.out / "test.csv"
    write_readings(test, 1000, arguments.seed + 1)
    (fresh,) = read_csv(test, 1000)
    is_there = ~np.isnan(fresh["power"])
    mean, _ = table.predict(fresh)
    error = smse(mean[is_there], fresh["power"][is_there, None])
    summary: Results = {
        "batches": first.num_batches + second.num_batches,
        "rows": first.num_rows + second.num_rows,
        "skipped": first.num_skipped + second.num_skipped,
        "pseudo_points": model.posterior_process.num_pseudo_points,
        "smse": error,
        "seconds": first.seconds + second.seconds,
    }
    print(
        f"{summary['batches']} batches, {summary['rows']} rows and {summary['skipped']} without a "
        f"target; {summary['pseudo_points']} pseudo-points; test SMSE {error:.4f}; "
        f"{summary['seconds']:.1f} s"
    )
    save_figure(draw(table), arguments.out, "csv_stream.png")
    write_results(arguments.out, {"seed": arguments.seed, "summary": summary})


if __name__ == "__main__":
    run(main, parser(__doc__))
