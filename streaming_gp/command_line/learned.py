"""What a fit has learned, in words and numbers that a person asks for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from streaming_gp.command_line.scores import mean_of
from streaming_gp.tables import TableGP

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
