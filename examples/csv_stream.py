"""A large CSV file through the command line: memory, and kills.

One ``streaming-gp fit`` learns a made-up file of 100,000 rows undisturbed, while its memory is
looked at. Another is sent SIGKILL at random moments, and started again with the same command each
time. Both must end with the same journal, bit for bit.

--quick takes 2,000 rows. Files in OUT/work are kept, and a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent))
from common import Results, parser, run, write_json, write_results

MEGABYTE = 2.0**20
PAUSE = 0.1


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
    return [sys.executable, "-m", "streaming_gp", *names]


def undisturbed(data: Path, journal: Path) -> Results:
    """The report of one fit, with its memory once all is imported and at its most, in megabytes."""
    with subprocess.Popen(
        command(data, journal), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        watched, start, peak = psutil.Process(process.pid), None, 0.0
        while process.poll() is None:
            try:
                now = watched.memory_info().rss / MEGABYTE
            except psutil.NoSuchProcess:
                break
            if start is None and (journal / "settings.json").exists():
                start = now
            peak = max(peak, now)
            time.sleep(PAUSE)
        assert process.stdout is not None
        report: Results = json.loads(process.stdout.read())
    return {**report, "start_megabytes": start, "peak_megabytes": peak}


def killed(data: Path, journal: Path, kills: int, batches: int, seed: int) -> int:
    """Kill a fit at random moments of its progress until it is done; returns how often."""
    rng, count = np.random.default_rng(seed), 0
    moments = np.sort(rng.uniform(0.0, batches, kills)).tolist()
    while moments:
        with subprocess.Popen(
            command(data, journal), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            wanted = moments.pop(0)
            while process.poll() is None and entries(journal) < 1 + wanted:
                time.sleep(PAUSE)
            time.sleep(float(rng.uniform(0.0, 1.0)))  # within the update, or within a write
            if process.poll() is None:
                process.kill()
                count += 1
    subprocess.run(command(data, journal), check=True, capture_output=True)
    return count


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
    write_csv(data, rows, arguments.seed)
    kept = work / "undisturbed.json"
    if not kept.exists():
        write_json(kept, undisturbed(data, work / "undisturbed"))
    report = json.loads(kept.read_text())
    grown = report["peak_megabytes"] - report["start_megabytes"]
    print(f"{rows} rows in {report['seconds']:.0f} s; {grown:.0f} MB above the start")
    kills = killed(data, work / "killed", 2 if arguments.quick else 6, report["batches"], 1)
    same = digest(work / "undisturbed") == digest(work / "killed")
    print(f"killed {kills} times: {'the same, bit for bit' if same else 'NOT the same'}")
    results = {
        "summary": [
            {
                "rows": rows,
                "learned": report["rows"],
                "skipped": report["skipped"],
                "batches": report["batches"],
                "seconds": report["seconds"],
                "start_megabytes": report["start_megabytes"],
                "grown_megabytes": grown,
                "kills": kills,
                "same": "yes" if same else "no",
            }
        ],
        "threads": os.environ.get("OMP_NUM_THREADS"),
    }
    write_results(arguments.out, results)
    if not same:
        raise SystemExit(1)


if __name__ == "__main__":
    run(main, parser(__doc__))
