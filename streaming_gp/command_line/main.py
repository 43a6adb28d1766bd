"""Arguments, and what becomes of errors: 0 is done, 1 an error in one line, 2 wrong usage."""

from __future__ import annotations

import argparse
import csv
import importlib
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import streaming_gp
from streaming_gp.command_line import plans
from streaming_gp.errors import StreamingGPError

FAILED, INTERRUPTED = 1, 130
KERNELS = ("squared-exponential", "matern32", "matern52")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; ends the process with its exit code.

    Options and files are looked at first, as TensorFlow takes seconds to load.

    :param arguments: The arguments; those of the process if None.
    """
    options = parser().parse_args(arguments)
    warnings.showwarning = _show_warning
    try:
        plan = getattr(plans, options.command)(options)
        with _quiet():
            commands = importlib.import_module("streaming_gp.command_line.commands")
        report = getattr(commands, options.command)(options, plan)
        if options.json:
            print(json.dumps(report, allow_nan=False))
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read the output has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(FAILED) from None
    except (StreamingGPError, OSError) as error:
        print(f"error: {_in_one_line(error)}", file=sys.stderr)
        raise SystemExit(FAILED) from None
    except KeyboardInterrupt:
        print("interrupted: the same command goes on from here", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None


@contextmanager
def _quiet() -> Iterator[None]:
    """TensorFlow's libraries write to standard error when they are loaded, whatever is asked."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if "tensorflow" in sys.modules:
        yield
        return
    sys.stderr.flush()
    own = os.dup(2)
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 2)
        try:
            yield
        except BaseException:
            log.seek(0)
            os.write(own, log.read())
            raise
        finally:
            os.dup2(own, 2)
            os.close(own)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"warning: {_in_one_line(message)}", file=sys.stderr)


def _in_one_line(message: object) -> str:
    return " ".join(str(message).split())


def parser() -> argparse.ArgumentParser:
    """All arguments."""
    root = argparse.ArgumentParser(
        "streaming-gp", description="Gaussian processes that learn from the rows of a file."
    )
    root.add_argument("--version", action="version", version=streaming_gp.__version__)
    commands = root.add_subparsers(required=True, metavar="command", dest="command")

    add = _command(commands, "fit", "learn the rows of a file, or go on where a run stopped")
    add("data", type=Path, help="file with a header: CSV, packed or not, Parquet, Feather, Arrow")
    add("--journal", type=Path, required=True, help="folder that keeps the model; made if missing")
    add("--target", help="column to predict")
    add("--features", type=_names, help="input columns, with commas; by default all others")
    add("--classes", type=_names, help="labels of the target, with commas, if it holds labels")
    add("--text", choices=("refuse", "drop", "encode"), help="columns of words: refuse them, leave "
        "them out, or take their words as categories (refuse)")  # fmt: skip
    add("--missing", choices=("refuse", "drop", "mean"), help="rows that miss an input: refuse "
        "them, leave them out, or put the mean in (refuse)")  # fmt: skip
    add("--kernel", choices=KERNELS, help="kernel over scaled inputs (squared-exponential)")
    add("--batch-size", type=_positive, help="rows that are learned together (200)")
    add("--budget", type=_positive, help="most pseudo-points (one for each row)")
    add("--seed", type=_count, help="seed of all random numbers (0)")
    add("--encoding", help="encoding of text, as Python names it; found if not given")

    add = _command(commands, "predict", "predict the rows of a file")
    add("journal", type=Path, help="folder of a fit")
    add("data", type=Path, help="file with the input columns")
    add("--out", type=Path, help="file to write, .csv or .parquet; by default standard output")
    add("--encoding", help="encoding of text, as Python names it; found if not given")

    add = _command(commands, "inspect", "say what has been learned")
    add("journal", type=Path, help="folder of a fit")

    add = _command(commands, "plot", "draw errors, calibration and the effect of each input")
    add("journal", type=Path, help="folder of a fit")
    add("--out", type=Path, required=True, help="folder to draw figures into; made if missing")

    add = _command(commands, "site", "answer the coordinator of a federation for a site's data")
    add("program", type=Path, help="Python file that defines site, a pvi.Site, or sites")
    add("--check", action="store_true", help="only see that its data can be learned from")
    add("--begin-record", action="store_true", help="say that nothing of these data was ever told: "
        "its record of privacy begins")  # fmt: skip
    add("--nvflare", type=Path, metavar="KIT", help="connect by this startup kit of NVFlare")
    add("--flower", metavar="ADDRESS", help="connect to the Flower SuperNode at this host:port")
    add("--secret", type=Path, help="file with the secret that the SuperNode was started with")
    add("--certificate", type=Path, help="file that the SuperNode's certificate is verified by")
    add("--address", help="host:port of the coordinator, if not the kit's (NVFlare)")
    add("--inbox", type=Path, help="file for the results that the coordinator publishes")

    add = _command(commands, "demo", "stream data that are made up, to see that it works")
    add("--seed", type=_count, default=0, help="seed of the data")
    return root


def _command(commands: Any, name: str, purpose: str) -> Any:
    """The function that adds an argument to a new command."""
    command = commands.add_parser(name, help=purpose, description=purpose)
    command.add_argument("--json", action="store_true", help="print the result as one JSON object")
    return command.add_argument


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for row in csv.reader([text]) for name in row)
    if not all(names) or len({*names}) != len(names):
        raise argparse.ArgumentTypeError(f"wanted names that differ, with commas, got {text!r}")
    return names


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) > 2**31 - 1:
        raise argparse.ArgumentTypeError(f"wanted an integer from 0 to {2**31 - 1}, got {text!r}")
    return int(text)


def _positive(text: str) -> int:
    if _count(text) < 1:
        raise argparse.ArgumentTypeError(f"wanted a positive integer, got {text!r}")
    return int(text)
