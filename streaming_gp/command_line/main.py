"""Arguments, and what becomes of errors: 0 is done, 1 an error in one line, 2 wrong usage."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from streaming_gp.errors import StreamingGPError

FAILED, INTERRUPTED = 1, 130
KERNELS = ("squared-exponential", "matern32", "matern52")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; ends the process with its exit code.

    :param arguments: The arguments; those of the process if None.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    options = parser().parse_args(arguments)
    commands = importlib.import_module("streaming_gp.command_line.commands")  # slow: TensorFlow
    try:
        report = getattr(commands, options.command)(options)
        if options.json:
            print(json.dumps(report, allow_nan=False))
    except (StreamingGPError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(FAILED) from None
    except KeyboardInterrupt:
        print("interrupted: the same command goes on from here", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None


def parser() -> argparse.ArgumentParser:
    """All arguments."""
    root = argparse.ArgumentParser(
        "streaming-gp", description="Gaussian processes that learn from a stream of CSV rows."
    )
    commands = root.add_subparsers(required=True, metavar="command", dest="command")

    add = _command(commands, "fit", "learn a CSV file, or go on where a run stopped").add_argument
    add("data", type=Path, help="CSV file with a header")
    add("--journal", type=Path, required=True, help="folder that keeps the model; made if missing")
    add("--target", help="column to predict")
    add("--features", type=_names, help="input columns, with commas; by default all others")
    add("--classes", type=_names, help="labels of the target, with commas, if it holds labels")
    add("--kernel", choices=KERNELS, help="kernel over scaled inputs (squared-exponential)")
    add("--batch-size", type=_positive, help="rows that are learned together (200)")
    add("--budget", type=_positive, help="most pseudo-points (300)")
    add("--seed", type=int, help="seed of all random numbers (0)")

    add = _command(commands, "predict", "predict the rows of a CSV file").add_argument
    add("journal", type=Path, help="folder of a fit")
    add("data", type=Path, help="CSV file with the input columns")
    add("--out", type=Path, help="CSV file to write; by default standard output")

    add = _command(commands, "inspect", "what has been learned").add_argument
    add("journal", type=Path, help="folder of a fit")
    add("--plots", type=Path, help="folder to draw figures into")

    purpose = "stream data that are made up, to see that it works"
    add = _command(commands, "demo", purpose).add_argument
    add("--seed", type=int, default=0, help="seed of the data")
    return root


def _command(commands: Any, name: str, purpose: str) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(name, help=purpose, description=purpose)
    command.add_argument("--json", action="store_true", help="print the result as one JSON object")
    return command


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len({*names}) != len(names):
        raise argparse.ArgumentTypeError(f"wanted names that differ, with commas, got {text!r}")
    return names


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"wanted a positive integer, got {text!r}")
    return int(text)
