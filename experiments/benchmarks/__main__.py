"""Streaming methods side by side, on the same streams: python -m experiments.benchmarks.

Every run of a method on a stream has a process of its own, with one thread; results.json is written
after each of them, and a run that is in it is not repeated. --only 'barrett3-*/private*' chooses
streams and methods; --quick learns the first three batches with few iterations.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, fields
from pathlib import Path

from common import parser, run, write_results
from tqdm import tqdm

from experiments.benchmarks.figures import draw, draw_progress
from experiments.benchmarks.machine import fast_routines
from experiments.benchmarks.one_run import Row, Task
from experiments.benchmarks.plan import EVERYTHING, repeated, tasks
from experiments.benchmarks.streams import load
from experiments.benchmarks.summary import best_settings, summarised
from streaming_gp.errors import InvalidDataError

ROOT = Path(__file__).resolve().parents[2]
PAUSE = 300.0
"""CPU seconds that a run may take beyond its limit: for starting, the last batch and predicting."""
SLACK = 6.0
"""Wall seconds for each CPU second, on a machine that has other work."""
MEMORY_SHARE = 0.75
"""Of the machine's memory, which one run may have."""
ONE_THREAD = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    **dict.fromkeys(("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), "1"),
}


def performed(task: Task, arguments: argparse.Namespace) -> Row:
    """The row of one run in a process of its own; if that ends early, a row that says so."""
    with tempfile.TemporaryDirectory() as folder:
        row = Path(folder) / "row.json"
        command = [
            sys.executable, "-m", "experiments.benchmarks.one_run", json.dumps(asdict(task)),
            "--row", str(row), "--kept", str(arguments.out / "hyperparameters"),
        ]  # fmt: skip
        if arguments.data is not None:
            command += ["--data", str(arguments.data.resolve())]
        ended = _ended(command, task.limit + PAUSE)
        if row.exists():
            found: Row = json.loads(row.read_text())
            return found
    return {**asdict(task), "failed": ended}


def _ended(command: list[str], most_seconds: float) -> str:
    """Run a process to its end, and say how it ended."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (int(most_seconds), int(most_seconds) + 5))
        resource.setrlimit(resource.RLIMIT_DATA, (_most_bytes(), _most_bytes()))

    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    ours = {**ONE_THREAD, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment = {**fast_routines(), **os.environ, **ours}
    before = _seconds_of_children()
    try:
        process = subprocess.run(
            command, env=environment, preexec_fn=limit, timeout=SLACK * most_seconds,
            capture_output=True, text=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"stopped after {SLACK * most_seconds:.0f} wall seconds"
    if process.returncode == -signal.SIGKILL and _seconds_of_children() - before < most_seconds:
        return "killed, as when a machine has no memory left"
    if process.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"one update, or predicting, was stopped at {most_seconds:.0f} CPU seconds"
    last = process.stderr.strip().splitlines()[-1:]
    return f"ended with status {process.returncode}: {''.join(last)[:200]}"


def _most_bytes() -> int:
    """What a run may allocate; with more the machine would come to a stop."""
    return int(MEMORY_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def described(row: Row) -> str:
    """One line of progress."""
    name = f"{row['stream']}/{row['method']}, seed {row['seed']}"
    if row["failed"]:
        return f"{name}: failed: {row['failed']}"
    limit = f", limit after {row['batches_seen']} batches" if row["reached_limit"] else ""
    return (
        f"{name}: error {row['error']:.4f}, NLPD {row['nlpd']:.3f}, "
        f"{row['learning_cpu_seconds']:.1f} CPU s{limit}"
    )


def key_of(row: Row) -> tuple:
    """What a row is of."""
    return Task(**{field.name: row[field.name] for field in fields(Task)}).key


def kept_rows(out: Path) -> dict[tuple, Row]:
    """Rows of earlier runs, by what they are of.

    :raises InvalidDataError: if the file of results is not one of this command.
    """
    path = out / "results.json"
    if not path.exists():
        return {}
    try:
        rows = json.loads(path.read_text())["rows"]
        return {key_of(row): row for row in rows}
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidDataError(f"{path} holds no rows of this command: {error!r}") from error


def main(arguments: argparse.Namespace) -> None:
    first = tasks(arguments.only, arguments.seed, arguments.quick, arguments.limit)
    rows = kept_rows(arguments.out)
    carry_out(first, rows, arguments)
    number = 1 if arguments.quick else arguments.seeds
    ran = [rows[task.key] for task in first]
    better = {key_of(row) for row in best_settings(ran)}
    seeds = range(arguments.seed + 1, arguments.seed + number)
    carry_out(repeated(first, better, seeds), rows, arguments)
    write_summary(rows, arguments.out)
    draw([*rows.values()], arguments.out)
    draw_progress([*rows.values()], arguments.out)


def write_summary(rows: dict[tuple, Row], out: Path) -> None:
    """All rows, and the tables that are made of them; the date is that of the oldest row."""
    found = [*rows.values()]
    date = min((row.get("commit_date") or "" for row in found), default=None)
    write_results(out, {"rows": found, **summarised(found)}, date)


def carry_out(planned: list[Task], rows: dict[tuple, Row], arguments: argparse.Namespace) -> None:
    """Add the rows that are missing, one run after the other."""
    missing = [task for task in planned if task.key not in rows]
    print(f"{len(planned) - len(missing)} of {len(planned)} runs are there already", flush=True)
    for stream in dict.fromkeys(task.stream for task in missing):
        load(stream, arguments.data)  # where data are missing, that ends this before any run
    on_terminal = sys.stderr.isatty()
    for task in tqdm(missing, desc="runs", disable=not on_terminal):
        row = rows[task.key] = performed(task, arguments)
        write_summary(rows, arguments.out)
        tqdm.write(described(row)) if on_terminal else print(described(row), flush=True)


if __name__ == "__main__":
    options = parser(__doc__)
    options.set_defaults(out=Path("out/streams"))
    options.add_argument(
        "--only", nargs="+", default=EVERYTHING, metavar="STREAM/METHOD", help="patterns of runs"
    )
    options.add_argument(
        "--seeds", type=int, default=3, help="how many, of a random method at its better setting"
    )
    options.add_argument(
        "--limit", type=float, default=300.0, help="CPU seconds after which a run stops learning"
    )
    run(main, options)
