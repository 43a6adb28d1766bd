"""A large CSV file through the command line: memory, and kills.

One ``streaming-gp fit`` of a made-up file of 100,000 rows is left alone. Another is sent SIGKILL at
random moments, and started again with the same command each time. Both must end with the same
journal, bit for bit; the memory of the process that needed the most is kept.

--quick takes 2,000 rows. Files in OUT/work are kept: if this script is stopped, with its processes,
it goes on, and a run that was meant to be left alone has had several processes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shlex
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
from common import Results, parser, run, write_json, write_results

MEGABYTE = 2.0**20
PAUSE = 0.1
BATCH_SIZE = 1000


def write_csv(path: Path, rows: int, seed: int) -> None:
    """Four inputs and a target, of which one in a thousand is missing."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3.0, 3.0, (rows, 4))
    y = np.sin(2.0 * X[:, 0]) + X[:, 1] ** 2 / 3.0 + np.cos(X[:, 2] * X[:, 3])
    y += 0.1 * rng.standard_normal(rows)
    with path.open("w") as file:
        file.write("a,b,c,d,y\n")
        for number, (x, target) in enumerate(zip(X, y, strict=True)):
            known = "" if number % 1000 == 17 else f"{target:.6f}"
            file.write(",".join(f"{value:.6f}" for value in x) + f",{known}\n")


def command(data: Path, journal: Path) -> list[str]:
    names = ["fit", str(data), "--target", "y", "--journal", str(journal), "--json"]
    size = ["--batch-size", str(BATCH_SIZE)]
    return [sys.executable, "-m", "streaming_gp", *names, *size]


def fit(data: Path, folder: Path, stop_at: float = np.inf) -> bool:
    """One process, watched; killed when it has learned so many batches. Whether it came to the end.

    Its seconds, and its memory at its most in megabytes, are written down as it goes.
    """
    note = folder.with_name(f"{folder.name}-{len(processes(folder)):03d}.json")
    asked, begun = command(data, folder), time.perf_counter()
    with subprocess.Popen(asked, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        watched, seen = psutil.Process(process.pid), {"peak": 0.0, "seconds": 0.0}
        while process.poll() is None:
            with suppress(psutil.NoSuchProcess):
                seen["peak"] = max(seen["peak"], watched.memory_info().rss / MEGABYTE)
            seen["seconds"] = time.perf_counter() - begun
            write_json(note, seen)
            if entries(folder) > stop_at:
                process.kill()
            time.sleep(PAUSE)
    return process.returncode == 0


def processes(folder: Path) -> list[Results]:
    """What was written down of every process of a run."""
    return [json.loads(path.read_text()) for path in sorted(folder.parent.glob(f"{folder.name}-*"))]


def run_to_the_end(data: Path, folder: Path, moments: list[float]) -> Results:
    """A run that is killed when it has learned so many batches, and goes on."""
    done = folder.with_name(f"{folder.name}.done")
    for moment in moments:
        if entries(folder) <= moment:
            fit(data, folder, moment)
    if not done.exists():
        if not fit(data, folder):
            raise SystemExit(f"error: a fit failed; {shlex.join(command(data, folder))} says why")
        done.touch()
    seen = processes(folder)
    table = json.loads((folder / "table.json").read_text())
    return {
        "run": folder.name.replace("_", " "),
        "rows": table["num_rows"],
        "skipped": table["num_skipped"],
        "batches": entries(folder) - 1,
        "processes": len(seen),
        "seconds": sum(one["seconds"] for one in seen),
        "peak_megabytes": max(one["peak"] for one in seen),
        "digest": digest(folder),
    }


def entries(journal: Path) -> int:
    return len(list((journal / "journal").glob("*.npz")))


def digest(journal: Path) -> str:
    """Of the bytes of all entries of a journal."""
    found = hashlib.sha256()
    for path in sorted((journal / "journal").glob("*.npz")):
        found.update(path.read_bytes())
    return found.hexdigest()


def main(arguments: argparse.Namespace) -> None:
    work = arguments.out / "work"
    work.mkdir(parents=True, exist_ok=True)
    data, rows = work / "data.csv", 2_000 if arguments.quick else 100_000
    if not data.exists():
        write_csv(data, rows, arguments.seed)
    batches, kills = -(-rows // BATCH_SIZE), 2 if arguments.quick else 6
    moments = np.sort(np.random.default_rng(1).uniform(0.0, batches, kills)).tolist()
    results = [
        run_to_the_end(data, work / "left_alone", []),
        run_to_the_end(data, work / "killed", moments),
    ]
    for row in results:
        row["same"] = "yes" if row["digest"] == results[0]["digest"] else "no"
        print(
            f"{row['run']}: {row['rows']} rows in {row['processes']} processes, "
            f"{row['seconds']:.0f} s; {row['peak_megabytes']:.0f} MB at most; the same "
            f"bit for bit: {row['same']}"
        )
    write_results(arguments.out, {"summary": results})
    if any(row["same"] != "yes" for row in results):
        raise SystemExit(1)


if __name__ == "__main__":
    run(main, parser(__doc__))
