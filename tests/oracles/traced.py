"""How often TensorFlow traces: a rule that counts, in the process that it works in."""

import os
from dataclasses import dataclass
from functools import partial
from typing import Any

import gpflow
import numpy as np
from tensorflow.python.framework import func_graph

import streaming_gp as sgp
from streaming_gp import linear, pvi
from streaming_gp.pvi.guards import read

ROUNDS, SETTLED, NUM_DATA = 5, 2, 12
GRAPHS = []
_trace = func_graph.func_graph_from_py_func


def _counted(name, *arguments, **options):
    GRAPHS.append(name)
    return _trace(name, *arguments, **options)


func_graph.func_graph_from_py_func = _counted


@dataclass(frozen=True)
class Counting:
    """Answers as another rule, and says how many graphs its process has traced by then."""

    rule: Any

    def __call__(self, task):
        found = self.rule(task)
        counts = {"graphs": float(len(GRAPHS)), "process": float(os.getpid())}
        return pvi.LocalResult(found.factor, found.free_energy, diagnostics=counts)


def models():
    gp = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(),
        gpflow.likelihoods.Gaussian(0.1),
        pseudo_points=sgp.PrivatePseudoPoints(3),
        optimiser=sgp.LocalOptimiser(max_iterations=5),
    )
    newton = pvi.VariationalUpdate(batch_size=None, optimiser=pvi.LBFGS())
    return {
        "traced gp": (gp, sgp.GPUpdate()),
        "traced labels": (linear.logistic_regression(1), newton),
    }


def shard(name, number):
    X = np.linspace(-1.0, 1.0, NUM_DATA)[:, None] + number
    return X, np.sin(3.0 * X) if name == "traced gp" else (number < X).astype(float)


def sites(number, place=None, load=shard):
    """A site for each model, at one place."""
    found = []
    for name, (model, rule) in models().items():
        reader = load and partial(load, name, number)
        site = pvi.Site(f"{name} {number}", model, Counting(rule), NUM_DATA, reader, place=place)
        found.append(site)
    return found


def known(places):
    """What a coordinator knows of the sites of all places."""
    return [one for number, place in enumerate(places) for one in sites(number, place, None)]


@dataclass(frozen=True)
class Watching:
    """Synchronous rounds that keep what clients report of their work."""

    reports: list

    def round(self, server, session, number, progress):
        listening = Listening(session)
        report = pvi.Synchronous().round(server, listening, number, progress)
        assert not report.unheard
        self.reports.append(listening.diagnostics)
        return report


class Listening:
    """A session that keeps the diagnostics of answers, by client."""

    def __init__(self, session):
        self.session, self.diagnostics = session, {}
        self.submit = session.submit

    now = property(lambda self: self.session.now)
    open = property(lambda self: self.session.open)

    def next(self):
        delivery = self.session.next()
        self.diagnostics[delivery.client_id] = read(delivery).diagnostics
        return delivery


def assert_resident(engine, together):
    """Sites answer in one process each, which does not trace after the second of its rounds.

    :param together: The sites of all places; those of one model hold a run.
    """
    for kind, (model, _) in models().items():
        reports = []
        server = pvi.Server(
            model.prior(), [one for one in together if one.client_id.startswith(kind)]
        )
        pvi.fit(server, Watching(reports), ROUNDS, engine)
        for name in server.clients:
            graphs = [report[name]["graphs"] for report in reports]
            assert graphs[0] > 0
            assert set(graphs[SETTLED - 1 :]) == {graphs[-1]}, graphs
            assert len({report[name]["process"] for report in reports}) == 1
