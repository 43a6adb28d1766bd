"""What a fit has learned, and how well it predicted: in words, in numbers, and in figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import ndtr

from streaming_gp import plotting
from streaming_gp.frames.files import Table
from streaming_gp.tables import TableGP

BINS = 10
INSIDE = 1.959964
"""Standard deviations of a 95 % interval."""


def score(table: TableGP, chunk: Table) -> dict[str, Any]:
    """The scores of a chunk, of which rows without target or inputs are left out.

    Of regression ``squared_error``, ``nlpd`` in nats and ``inside``, the share of rows within 95 %
    intervals; of labels ``error_rate`` and ``nlpd``. ``bins`` counts rows: of regression by the
    probability below the target, of labels by the probability of the label that is most probable,
    with how many of them it was right for.
    """
    Y = table.observations(chunk)
    mean, deviation = table.predict(chunk)
    rows = ~(np.isnan(Y).any(axis=1) | np.isnan(mean).any(axis=1))
    if not rows.any():
        return {}
    y, mean, deviation = Y[rows, 0], mean[rows], deviation[rows]
    if table.classes is not None:
        probabilities = table.predict_proba(chunk)[rows]
        place, confidence = probabilities.argmax(axis=1), probabilities.max(axis=1)
        of_label = np.maximum(probabilities[np.arange(len(y)), y.astype(int)], 1e-12)
        return {
            "error_rate": float(np.mean(place != y)),
            "nlpd": float(-np.mean(np.log(of_label))),
            "bins": [_counts(confidence), _counts(confidence[place == y])],
        }
    z = (y - mean[:, 0]) / deviation[:, 0]
    return {
        "squared_error": float(np.mean((y - mean[:, 0]) ** 2)),
        "variance": float(np.var(y)),
        "nlpd": float(np.mean(0.5 * z**2 + np.log(deviation[:, 0]) + 0.5 * np.log(2.0 * np.pi))),
        "inside": float(np.mean(np.abs(z) < INSIDE)),
        "bins": [_counts(ndtr(z))],
    }


def _counts(shares: np.ndarray) -> list[int]:
    return np.histogram(shares, BINS, (0.0, 1.0))[0].tolist()


def mean_of(records: Sequence[dict[str, Any]], name: str) -> float | None:
    """The mean of a score over all rows of the batches that have it."""
    some = [one for one in records if name in one]
    rows = sum(one["rows"] for one in some)
    return sum(one["rows"] * one[name] for one in some) / rows if rows else None


GRID, MOST_EFFECTS = 25, 200


@dataclass(frozen=True)
class Learned:
    """A model of tables, and the record of each batch.

    :param table: The model.
    :param records: What each batch said, and how well it was predicted before it was learned.
    """

    table: TableGP
    records: list[dict[str, Any]]

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The names of the model's inputs [D]; each word of a category is one."""
        return self.table.input_names

    @cached_property
    def places(self) -> np.ndarray:
        """Pseudo-inputs [M, D] in units of the inputs."""
        inputs, _ = self.table.normalisation
        Z = np.concatenate([factor.Z for factor in self.table.model.factors.values()])
        return inputs.original(Z)

    def along(self, dimension: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Values [K] of one input, and mean and deviation [K, P] there, others at their medians.

        Of labels it is the probability of each.
        """
        inputs, _ = self.table.normalisation
        low, high = np.quantile(self.places[:, dimension], [0.05, 0.95])
        X = np.tile(np.median(self.places, axis=0), (GRID, 1))
        X[:, dimension] = np.linspace(low, high, GRID)
        mean, deviation = self.table.predict_at(inputs.scaled(X))
        return X[:, dimension], mean, deviation

    def effects(self) -> dict[str, float]:
        """The range of the prediction along each input, the largest first, in units of the target.

        Of many inputs only the first 200 are looked at.
        """
        ranges = {}
        for dimension, name in enumerate(self.inputs[:MOST_EFFECTS]):
            ranges[name] = float(np.max(np.ptp(self.along(dimension)[1], axis=0)))
        return dict(sorted(ranges.items(), key=lambda one: -one[1]))

    def words(self) -> list[str]:
        """A few sentences."""
        table, model = self.table, self.table.model
        target = table.target_names[0]
        said = [
            f"{model.num_updates} batches, {table.num_rows} rows, {table.num_skipped} skipped "
            "(without a target or an input)",
            f"inputs: {', '.join(self.inputs[:50])}{', ...' if len(self.inputs) > 50 else ''}",
        ]
        recent = self.records[-max(1, len(self.records) // 4) :]
        if (errors := mean_of(recent, "error_rate")) is not None:
            said.append(
                f"of the newest rows, {100 * (1 - errors):.0f} % were predicted rightly before "
                "they were learned"
            )
        elif (squares := mean_of(recent, "squared_error")) is not None:
            variance, inside = mean_of(recent, "variance"), mean_of(recent, "inside")
            share = f", {100 * (1 - squares / variance):.0f} % explained" if variance else ""
            said.append(
                f"the newest rows were predicted with an error of {np.sqrt(squares):.3g} (root "
                f"mean square) before they were learned{share}; {100 * (inside or 0.0):.0f} % lay "
                "within their 95 % intervals"
            )
        else:
            said.append("no batch was predicted before it was learned, as there is only one")
        if table.classes is None:
            noise = float(np.sqrt(np.max(model.likelihood.variance.numpy())))
            unit = float(table.normalisation[1].unit[0])
            said.append(f"noise: {target} deviates by {noise * unit:.3g} from its function")
        what = "probability" if table.classes is not None else target
        strongest = [f"{name} {size:.3g}" for name, size in [*self.effects().items()][:5]]
        said.append(
            f"{what} changes along each input, others at their medians, by: {', '.join(strongest)}"
        )
        return said


MOST_PANELS = 9


# ---- figures ----


def figures_of(learned: Learned) -> dict[str, Any]:
    """Figures by name; those of scores only where a batch was predicted before it was learned."""
    figures = {"inputs": _inputs(learned), "ledger": _figure()}
    plotting.ledger(learned.table.model, figures["ledger"].subplots())
    if any("bins" in one for one in learned.records):
        figures |= {"error": _error(learned), "calibration": _calibration(learned)}
    figures["hyperparameters"] = _figure(9.0, 6.0)
    plotting.hyperparameters(learned.table.model, figures["hyperparameters"])
    return figures


def _figure(*size: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(size or None, layout="constrained")


def _error(learned: Learned) -> Any:
    """Each batch before it was learned, against the rows seen until then."""
    scored = [one for one in learned.records if "bins" in one]
    seen = np.cumsum([one["rows"] for one in learned.records])[-len(scored) :]
    is_classifier = learned.table.classes is not None
    errors = [
        one["error_rate"] if is_classifier else np.sqrt(one["squared_error"]) for one in scored
    ]
    figure = _figure(8.0, 3.5)
    left, right = figure.subplots(1, 2)
    left.plot(seen, errors, ".-")
    left.set(xlabel="rows seen", ylabel="error rate" if is_classifier else "root mean square error")
    left.set_ylim(bottom=0.0)
    right.plot(seen, [one["nlpd"] for one in scored], ".-")
    right.set(xlabel="rows seen", ylabel="NLPD in nats")
    return figure


def _calibration(learned: Learned) -> Any:
    """Shares of targets below each predicted quantile, or of labels that were right."""
    bins = np.sum([one["bins"] for one in learned.records if "bins" in one], axis=0)
    axes = _figure(4.5, 4.5).subplots()
    axes.plot([0.0, 1.0], [0.0, 1.0], color="0.7")
    if learned.table.classes is None:
        quantiles = np.arange(BINS + 1) / BINS
        axes.plot(quantiles, np.append(0.0, np.cumsum(bins[0])) / bins[0].sum(), ".-")
        axes.set(xlabel="predicted quantile", ylabel="share of targets below it")
    else:
        counts, right = bins
        some = counts > 0
        axes.plot((np.arange(BINS)[some] + 0.5) / BINS, right[some] / counts[some], ".-")
        axes.set(xlabel="predicted probability of the label", ylabel="share that was right")
    return axes.figure


def _inputs(learned: Learned) -> Any:
    """The prediction along each of the inputs that change it most, others at their medians."""
    names = [*learned.effects()][:MOST_PANELS]
    rows = -(-len(names) // 3)
    figure = _figure(9.0, 2.6 * rows)
    cells = figure.subplots(rows, min(3, len(names)), squeeze=False, sharey=True).ravel()
    for axes, name in zip(cells, names, strict=False):
        x, mean, deviation = learned.along(learned.inputs.index(name))
        axes.plot(x, mean)
        if learned.table.classes is None:
            low, high = mean[:, 0] - 2.0 * deviation[:, 0], mean[:, 0] + 2.0 * deviation[:, 0]
            axes.fill_between(x, low, high, alpha=0.2, lw=0)
        axes.set_xlabel(name)
    for axes in cells[len(names) :]:
        axes.set_axis_off()
    if learned.table.classes is not None:
        cells[0].legend([str(label) for label in learned.table.classes], fontsize=8)
    cells[0].set_ylabel("probability" if learned.table.classes else learned.table.target_names[0])
    return figure
