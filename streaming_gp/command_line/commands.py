"""Commands. Each prints for people, and returns a report."""

from __future__ import annotations

import argparse
import bz2
import csv
import gzip
import hashlib
import lzma
import runpy
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gpflow
import numpy as np
from tqdm import tqdm

from streaming_gp import engines, pvi
from streaming_gp.command_line.learned import Learned, figures_of, score
from streaming_gp.command_line.plans import Plan, Settings
from streaming_gp.errors import InvalidDataError
from streaming_gp.estimators import default_kernel, default_likelihood
from streaming_gp.frames.files import Table
from streaming_gp.gp import PrivatePseudoPoints, StreamingGP, UntilSettled
from streaming_gp.gp.journal import last_state
from streaming_gp.metrics import smse
from streaming_gp.pvi.privacy import begin_record
from streaming_gp.serialization import replacing
from streaming_gp.tables import TableGP

NUM_DRAWS = 500
"""Draws that the intervals of hyperparameters are taken from."""

DEMO_BATCHES, DEMO_ROWS = 5, 60

_PACKERS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


# ---- fit ----


def fit(options: argparse.Namespace, plan: Plan) -> dict[str, Any]:
    """Learn all batches of a file that are not learned yet.

    Those that are learned are read again, for what they say of scales and counts.

    :raises InvalidDataError: if the file is not the one that the run began with, or a row cannot be
        learned.
    """
    start = time.perf_counter()
    if not plan.folder.has_learned:
        plan.folder.begin(plan.settings)
    try:
        table, number, num_learned = _fit(plan)
    finally:
        plan.folder.forget()
    report = {
        "batches": number,
        "new_batches": number - num_learned,
        "rows": table.num_rows,
        "skipped": table.num_skipped,
        "pseudo_points": table.model.posterior_process.num_pseudo_points,
        "seconds": time.perf_counter() - start,
    }
    if not options.json:
        print(
            f"{number} batches, {number - num_learned} of them new; {report['rows']} rows learned, "
            f"{report['skipped']} skipped; {report['pseudo_points']} pseudo-points; "
            f"{report['seconds']:.1f} s"
        )
    return report


def _fit(plan: Plan) -> tuple[TableGP, int, int]:
    """The table, the number of all batches, and of those that were learned before."""
    settings, folder = plan.settings, plan.folder
    model = _resumed(plan)
    table = TableGP(
        model,
        settings.target,
        features=[*settings.kinds],
        classes=settings.classes,
        categories=settings.categories,
        missing=settings.missing,
    )
    num_learned, number, first = model.num_updates, 0, 0
    learned = {one["batch"]: one.get("fingerprint") for one in folder.records()}
    with tqdm(desc="fit", unit="row", disable=not sys.stderr.isatty()) as bar:
        for chunk in plan.file.batches(settings.batch_size, settings.columns):
            size = len(chunk[settings.target])
            with _naming_rows(first, size):
                if number < num_learned:
                    if table.recall(chunk):
                        _require_same(chunk, f"batch-{number}", learned, settings.batch_size)
                        number += 1
                else:
                    number += _learn(plan, table, chunk, f"batch-{number}")
            first += size
            bar.update(size)
    if not first:
        raise InvalidDataError("the file has a header, but no rows")
    if number < num_learned:
        raise InvalidDataError(
            f"the file has {number} batches, but {num_learned} of it were learned: is it the same?"
        )
    if not number:
        raise InvalidDataError(f"no row has a target {settings.target!r} and all its inputs")
    folder.write_table(table.to_record())
    return table, number, num_learned


@contextmanager
def _naming_rows(first: int, size: int) -> Iterator[None]:
    """Say which rows of the file are refused, as a table knows those of a chunk alone."""
    try:
        yield
    except InvalidDataError as error:
        raise InvalidDataError(f"rows {first + 1} to {first + size}: {error}") from error


def _fingerprint(chunk: Table) -> str:
    values = [(name, column.tolist()) for name, column in chunk.items()]
    return hashlib.sha256(repr(values).encode()).hexdigest()


def _require_same(chunk: Table, name: str, learned: dict[str, Any], batch_size: int) -> None:
    """Refuse other rows than those that were learned: scales and counts would be theirs.

    :param learned: The fingerprints of batches, of those that have one.
    """
    if learned.get(name) not in (None, _fingerprint(chunk)):
        raise InvalidDataError(
            f"they are not those that {name} was learned from; a fit goes on with the same file, "
            f"to which whole batches of {batch_size} rows may have been added"
        )


def _modules(settings: Settings) -> tuple[Any, Any]:
    """A new kernel and likelihood."""
    num_classes = None if settings.classes is None else len(settings.classes)
    return default_kernel(settings.num_inputs, settings.kernel), default_likelihood(num_classes)


def _resumed(plan: Plan) -> StreamingGP:
    """The model after all batches that were completed, or a new one."""
    settings, journal = plan.settings, plan.folder.journal
    if plan.folder.has_learned:
        return StreamingGP.resume(journal, *_modules(settings))
    return StreamingGP(
        *_modules(settings),
        pseudo_points=PrivatePseudoPoints("all", budget=settings.budget),
        learning=None if settings.budget is None else UntilSettled(),
        seed=settings.seed,
        journal=journal,
    )


def _learn(plan: Plan, table: TableGP, chunk: Table, name: str) -> bool:
    """Learn a batch and note what it said; no batch if no row of it is complete."""
    rows, skipped = table.num_rows, table.num_skipped
    before = score(table, chunk) if rows else {}
    info = table.update(chunk, batch_id=name)
    if info is None:
        return False
    record = {
        "batch": name,
        "rows": table.num_rows - rows,
        "skipped": table.num_skipped - skipped,
        "free_energy": info.free_energy,
        "pseudo_points": info.num_pseudo_points,
        "iterations": info.iterations,
        "seconds": info.seconds,
        "fingerprint": _fingerprint(chunk),
        **before,
    }
    plan.folder.append_record(record)
    plan.folder.write_table(table.to_record())
    if not sys.stderr.isatty():
        print(
            f"{name}: {record['rows']} rows, free energy {info.free_energy:.2f}, "
            f"{info.iterations} iterations, {info.seconds:.1f} s",
            file=sys.stderr,
            flush=True,
        )
    return True


# ---- predict ----


def predict(options: argparse.Namespace, plan: Plan) -> dict[str, Any]:
    """Write one line for each row: mean and deviation, or the label and all probabilities.

    A row that misses an input has an empty line where such rows are left out.
    """
    table, rows = _table(plan), 0
    if table.classes is None:
        titles = [f"{plan.settings.target}_mean", f"{plan.settings.target}_sd"]
    else:
        titles = [plan.settings.target, *(f"p_{label}" for label in table.classes)]
    bar = tqdm(desc="predict", unit="row", disable=not sys.stderr.isatty())
    with bar, _writer(options.out, titles, table.classes is not None) as write:
        for chunk in plan.file.batches(1000, plan.settings.kinds):
            with _naming_rows(rows, len(next(iter(chunk.values())))):
                columns = _predictions(table, chunk)
            write(columns)
            rows += len(columns[0])
            bar.update(len(columns[0]))
        if not rows:
            write([[] for _ in titles])
    return {"rows": rows, "out": None if options.out is None else str(options.out)}


def _table(plan: Plan) -> TableGP:
    """The model with its columns, to predict with, while a fit may be going on."""
    model = StreamingGP.from_state(last_state(plan.folder.journal), *_modules(plan.settings))
    return TableGP.from_record(model, plan.folder.table())


def _predictions(table: TableGP, chunk: Table) -> list[list[Any]]:
    """Columns of values, with None where there is none."""
    if table.classes is None:
        both = np.hstack(table.predict(chunk)).T.tolist()
        return [[None if value != value else value for value in one] for one in both]
    probabilities = table.predict_proba(chunk)
    is_missing = np.isnan(probabilities).any(axis=1)
    labels = [table.classes[one] for one in np.nan_to_num(probabilities).argmax(axis=1)]
    columns = [labels, *probabilities.T.tolist()]
    return [
        [None if gone else value for gone, value in zip(is_missing, one, strict=True)]
        for one in columns
    ]


@contextmanager
def _writer(
    path: Path | None, titles: list[str], has_labels: bool
) -> Iterator[Callable[[list[list[Any]]], None]]:
    """Columns to standard output, or to a file of the kind that its name says, as a whole.

    :param has_labels: Whether the first column holds labels.
    """
    if path is None:
        yield _csv(sys.stdout, titles)
        return
    with replacing(path) as part:
        if path.suffix.lower() == ".parquet":
            import pyarrow
            from pyarrow import parquet

            kinds = [pyarrow.float64()] * len(titles)
            if has_labels:
                kinds[0] = pyarrow.string()
            schema = pyarrow.schema([*zip(titles, kinds, strict=True)])
            with parquet.ParquetWriter(part, schema) as writer:
                yield lambda columns: writer.write_table(pyarrow.table(columns, schema))
            return
        pack = _PACKERS.get(path.suffix.lower(), open)
        with pack(part, "wt", newline="", encoding="utf-8") as file:
            yield _csv(file, titles)


def _csv(file: Any, titles: list[str]) -> Callable[[list[list[Any]]], None]:
    """Writes rows; the titles come with the first of them, when it is known that there are some."""
    writer, head = csv.writer(file, lineterminator="\n"), [titles]

    def write(columns: list[list[Any]]) -> None:
        writer.writerows([*head, *zip(*columns, strict=True)])
        head.clear()

    return write


# ---- inspect and plot ----


def inspect(options: argparse.Namespace, plan: Plan) -> dict[str, Any]:
    """Say what was learned: how well it predicts, which inputs matter, batches and factors."""
    table, records = _table(plan), plan.folder.records()
    learned, model = Learned(table, records), table.model
    is_complete = len(records) == model.num_updates
    report = {
        "inputs": [*learned.inputs],
        "num_updates": model.num_updates,
        "rows": table.num_rows,
        "skipped": table.num_skipped,
        "free_energy": sum(one["free_energy"] for one in records) if is_complete else None,
        "batches": records,
        "factors": {name: len(factor.Z) for name, factor in model.factors.items()},
        "hyperparameters": _hyperparameters(model),
        "effects": learned.effects(),
        "words": learned.words(),
        "scale": {
            name: one.to_record()
            for name, one in zip(("inputs", "targets"), table.normalisation, strict=True)
        },
    }
    if not options.json:
        _print(report)
    return report


def _hyperparameters(model: StreamingGP) -> dict[str, Any]:
    """Median and 95 % interval of each, in scaled units."""
    report = {}
    for path, draws in model.hyperparameter_samples(NUM_DRAWS).items():
        median, low, high = np.quantile(draws, [0.5, 0.025, 0.975], axis=0).tolist()
        report[path] = {"median": median, "low": low, "high": high}
    return report


def _print(report: dict[str, Any]) -> None:
    print("\n".join(report["words"]))
    print(f"\n{'batch':<14}{'rows':>8}{'skipped':>9}{'free energy':>14}{'iterations':>12}{'s':>8}")
    for one in report["batches"]:
        print(
            f"{one['batch']:<14}{one['rows']:>8}{one['skipped']:>9}{one['free_energy']:>14.2f}"
            f"{one['iterations']:>12}{one['seconds']:>8.2f}"
        )
    print(f"\n{'factor':<14}{'points':>8}")
    for name, points in report["factors"].items():
        print(f"{name:<14}{points:>8}")
    print("\nhyperparameters in scaled units: median and 95 % interval")
    for path, values in report["hyperparameters"].items():
        triples = np.stack([np.ravel(values[name]) for name in ("median", "low", "high")], axis=1)
        names, inputs = [path] * len(triples), report["inputs"]
        if "lengthscales" in path and len(inputs) == len(triples) > 1:
            names = [f"{path} of {name}" for name in inputs]
        for name, (median, low, high) in zip(names, triples, strict=True):
            print(f"  {name:<34} {median:>9.4g}  [{low:.4g}, {high:.4g}]")


def plot(options: argparse.Namespace, plan: Plan) -> dict[str, Any]:
    """Draw error over the stream, calibration, the effect of each input, and the ledger."""
    learned = Learned(_table(plan), plan.folder.records())
    options.out.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, figure in figures_of(learned).items():
        paths.append(str(options.out / f"{name}.png"))
        with replacing(paths[-1]) as part:
            figure.savefig(part, dpi=130, format="png")
    if not options.json:
        print("\n".join(f"wrote {path}" for path in paths))
    return {"plots": paths}


# ---- demo ----


def demo(options: argparse.Namespace, plan: None) -> dict[str, Any]:
    """A made-up sensor in five batches: print how well each was predicted before it was learned."""
    model = StreamingGP(
        gpflow.kernels.SquaredExponential(lengthscales=[0.5]),
        gpflow.likelihoods.Gaussian(0.1),
        pseudo_points=PrivatePseudoPoints("all", budget=200),
    )
    table, rng, scores = TableGP(model, "reading"), np.random.default_rng(options.seed), []
    for number in range(DEMO_BATCHES):
        hour = rng.uniform(0.0, 24.0, DEMO_ROWS)
        reading = 20.0 + 5.0 * np.sin(hour / 3.0) + 0.3 * rng.standard_normal(DEMO_ROWS)
        batch = {"hour": hour, "reading": reading}
        if number:
            mean, _ = table.predict(batch)
            scores.append(float(smse(mean, reading[:, None])))
        table.update(batch)
        if not options.json:
            result = f"SMSE {scores[-1]:.4f} before it was learned" if scores else "learned"
            print(f"batch {number + 1} of {DEMO_BATCHES}: {result}", flush=True)
    if not options.json:
        print("prior × factors: it works")
    return {"smse": scores, "rows": table.num_rows}


def site(options: argparse.Namespace, plan: None) -> dict[str, Any]:
    """Check the sites of a program, or serve them until the process is ended."""
    sites = sites_of(options.program)
    if options.begin_record:
        for one in sites:
            begin_record(_record_of(one), one.client_id)
    if options.check:
        rows = {one.client_id: one.at_work().num_data for one in sites}
        if not options.json:
            for name, number in rows.items():
                print(f"{name}: {number} rows that its model takes")
        return {"rows": rows}
    pvi.serve(sites, _engine(options))
    return {"served": [one.client_id for one in sites]}


def sites_of(program: Path) -> list[pvi.Site]:
    """What a Python file calls ``site`` or ``sites``."""
    names = runpy.run_path(str(program))
    given: Any = names.get("sites", names.get("site"))
    sites: list[Any] = list(given) if isinstance(given, (list, tuple)) else [given]
    if not sites or not all(isinstance(one, pvi.Site) for one in sites):
        raise InvalidDataError(f"{program} must define site, a pvi.Site, or sites, several of them")
    return sites


def _record_of(one: pvi.Site) -> str:
    rule: Any = one.update
    while rule is not None:  # a rule may be made around another
        if getattr(rule, "record", None) is not None:
            return str(rule.record)
        rule = getattr(rule, "rule", None)
    raise InvalidDataError(f"the rule of site {one.client_id!r} keeps no record")


def _engine(options: argparse.Namespace) -> Any:
    if options.nvflare is not None:
        return engines.NVFlare(options.nvflare, address=options.address, inbox=options.inbox)
    return engines.Flower(options.flower, options.secret, options.certificate, inbox=options.inbox)
