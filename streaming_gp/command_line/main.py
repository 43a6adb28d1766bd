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
    asked = parser().parse_args(arguments)
    command = importlib.import_module(f"streaming_gp.command_line.{asked.module}")
    try:
        report = command.run(asked)
        if asked.json:
            print(json.dumps(report, allow_nan=False))
    except (StreamingGPError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(FAILED) from None
    except KeyboardInterrupt:
        print("interrupted: the same command goes on from here", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None


def parser() -> argparse.ArgumentParser:
    """All arguments."""
    found = argparse.ArgumentParser(
        "streaming-gp", description="Gaussian processes that learn from a stream of CSV rows."
    )
    commands = found.add_subparsers(required=True, metavar="command")
    _fit(_command(commands, "fit", "fitting", "learn a CSV file, or go on where a run stopped"))
    _predict(_command(commands, "predict", "predicting", "predict the rows of a CSV file"))
    _inspect(_command(commands, "inspect", "inspecting", "what has been learned"))
    _demo(_command(commands, "demo", "demo", "stream data that are made up, to see that it works"))
    return found


def _command(commands: Any, name: str, module: str, purpose: str) -> argparse.ArgumentParser:
    found: argparse.ArgumentParser = commands.add_parser(name, help=purpose, description=purpose)
    found.set_defaults(module=module)
    found.add_argument("--json", action="store_true", help="print the result as one JSON object")
    return found


def _fit(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("data", type=Path, help="CSV file with a header")
    add("--journal", type=Path, required=True, help="folder that keeps the model; made if missing")
    add("--target", help="column to predict")
    add("--features", type=_names, help="input columns, with commas; by default all others")
    add("--classes", type=_names, help="labels of the target, with commas, if it holds labels")
    add("--kernel", choices=KERNELS, help="kernel over scaled inputs (squared-exponential)")
    add("--batch-size", type=_positive, help="rows that are learned together (200)")
    add("--budget", type=_positive, help="most pseudo-points (300)")
    add("--seed", type=int, help="seed of all random numbers (0)")


def _predict(command: argparse.ArgumentParser) -> None:
    command.add_argument("journal", type=Path, help="folder of a fit")
    command.add_argument("data", type=Path, help="CSV file with the input columns")
    command.add_argument("--out", type=Path, help="CSV file to write; by default standard output")


def _inspect(command: argparse.ArgumentParser) -> None:
    command.add_argument("journal", type=Path, help="folder of a fit")
    command.add_argument("--plots", type=Path, help="folder to draw figures into")


def _demo(command: argparse.ArgumentParser) -> None:
    command.add_argument("--seed", type=int, default=0, help="seed of the data")


def _names(text: str) -> list[str]:
    found = [name.strip() for name in text.split(",")]
    if not all(found) or len({*found}) != len(found):
        raise argparse.ArgumentTypeError(f"wanted names that differ, with commas, got {text!r}")
    return found


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"wanted a positive integer, got {text!r}")
    return int(text)
