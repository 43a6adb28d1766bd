"""The methods of PVI 2018, section 7.1 and appendix E, and the settings that are tried of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from experiments.federated_runs import NUM_CLIENTS, PARTITIONS
from streaming_gp import pvi

BATCH = 200
VISITS = (1, 5, 20)
"""Epochs of a visit, where there is but one."""


@dataclass(frozen=True)
class OneClassTask(pvi.LocalTask):
    """A question whose minibatches have one class each, in random order."""

    def minibatches(self, batch_size: int | None) -> Iterator[np.ndarray]:
        rng, labels = np.random.default_rng(self.seed), self.data[1][:, 0]
        size = self.size_of(batch_size)
        while True:
            batches: list[np.ndarray] = []
            for label in np.unique(labels):
                rows = rng.permutation(np.flatnonzero(labels == label))
                batches.extend(np.resize(rows, (-(-len(rows) // size), size)))
            yield from (batches[i] for i in rng.permutation(len(batches)))


@dataclass(frozen=True)
class OneClassBatches:
    """A rule that sees one class at a time."""

    rule: pvi.VariationalUpdate

    def __call__(self, task: pvi.LocalTask) -> pvi.LocalResult:
        given = {one.name: getattr(task, one.name) for one in fields(task)}
        return self.rule(OneClassTask(**given))


@dataclass(frozen=True)
class Method:
    """How clients answer and who is asked when.

    :param rule: The rule of a learning rate and a setting.
    :param schedule: The schedule of a setting.
    :param epochs: The epochs of a visit at a setting.
    :param settings: What is tried, by partition.
    :param rounds: The number of rounds, by partition.
    :param rates: The learning rates that are tried, by partition.
    :param cores: Of global VI, which has all data in one place: a gradient goes up and a posterior
        down for each core and minibatch.
    :param units: The number of hidden units.
    """

    rule: Callable[[float, float], Any]
    schedule: Callable[[float], Any]
    epochs: Callable[[float], int]
    settings: dict[str, tuple[float, ...]]
    rounds: dict[str, int]
    rates: dict[str, tuple[float, ...]]
    cores: int = 0
    units: int = 200


def both(value: Any) -> dict[str, Any]:
    """The same with either partition."""
    return dict.fromkeys(PARTITIONS, value)


def local(epochs: int, rate: float, batch_size: int = BATCH) -> pvi.VariationalUpdate:
    return pvi.VariationalUpdate(epochs, batch_size, rate)


def lasting(rate: float, damping: float) -> pvi.VariationalUpdate:
    """One epoch of Adam that remembers the visits before."""
    return replace(local(1, rate), stateful=True)


def split(rate: float, epochs: float) -> pvi.SplitPriorUpdate:
    return pvi.SplitPriorUpdate(visit(rate, epochs), 1.0 / NUM_CLIENTS)


def visit(rate: float, epochs: float) -> pvi.VariationalUpdate:
    return local(int(epochs), rate)


def natural(rate: float, epochs: float) -> pvi.VariationalUpdate:
    """Natural gradients at a fixed rate (PVI 2018, eq. 13), with precisions kept positive."""
    optimiser = pvi.VariationalOnlineNewton(rate, rate, momentum=0.0)
    return pvi.VariationalUpdate(int(epochs), BATCH, optimiser=optimiser)


def at_once(setting: float) -> pvi.Synchronous:
    return pvi.Synchronous(damping=1.0)


def in_turn(setting: float) -> pvi.Sequential:
    return pvi.Sequential()


ONE_EPOCH: dict[str, Any] = {
    "rule": lambda rate, damping: local(1, rate),
    "epochs": lambda damping: 1,
    "settings": {"iid": (0.1, 0.2, 0.4), "label": (0.03, 0.1, 0.2)},
    "rounds": {"iid": 40, "label": 100},
    "rates": {"iid": (1e-3, 2e-3, 5e-3), "label": (2e-4, 5e-4, 1e-3)},
}
ONE_VISIT: dict[str, Any] = {
    "epochs": int,
    "settings": both(VISITS),
    "rounds": both(1),
    "rates": both((5e-4, 2e-3, 5e-3)),
}
GLOBAL: dict[str, Any] = {
    "schedule": in_turn,
    "epochs": int,
    "settings": both((5,)),
    "rounds": {"iid": 8, "label": 12},
    "rates": {"iid": (5e-4, 2e-3, 5e-3), "label": (2e-4, 5e-4, 2e-3)},
}
SYNCHRONOUS = Method(schedule=lambda damping: pvi.Synchronous(damping), **ONE_EPOCH)
FEDERATED = {
    "gvi-1-core": Method(visit, cores=1, **GLOBAL),
    "gvi-10-cores": Method(
        lambda rate, epochs: local(int(epochs), rate, BATCH * NUM_CLIENTS),
        cores=NUM_CLIENTS, **GLOBAL,
    ),
    "bcm-same": Method(visit, at_once, **ONE_VISIT),
    "bcm-split": Method(split, at_once, **ONE_VISIT),
    "pvi-seq-one-pass": Method(visit, in_turn, **ONE_VISIT),
    "pvi-sync": SYNCHRONOUS,
    "pvi-sync-stateful": replace(SYNCHRONOUS, rule=lasting),
    "pvi-async": Method(schedule=lambda damping: pvi.Asynchronous(damping), **ONE_EPOCH),
}  # fmt: skip
"""Rounds of global VI have five epochs, as Adam begins anew with each."""
LONGER: dict[str, Any] = {**GLOBAL, "cores": 1, "rounds": both(20)}
ADAM: dict[str, Any] = {"rule": visit, **LONGER, "rates": both((5e-4, 2e-3, 5e-3))}
SNGD: dict[str, Any] = {"rule": natural, **LONGER, "rates": both((3e-4, 1e-3, 3e-3))}
OPTIMISERS = {
    f"{name}-{units}": Method(units=units, **settings)
    for units in (200, 500)
    for name, settings in (("adam", ADAM), ("sngd", SNGD))
}
METHODS = FEDERATED | OPTIMISERS
