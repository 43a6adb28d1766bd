"""What every example script shares: options, results.json, one clear line on bad input."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl

from streaming_gp.errors import StreamingGPError

mpl.use("Agg")

Results = dict[str, Any]
ROOT = Path(__file__).resolve().parents[1]


def commit_date() -> str | None:
    """The date of the commit that is checked out; where nothing is, there is none."""
    asked = ["git", f"--git-dir={ROOT / '.git'}", "log", "-1", "--format=%cI"]
    try:
        return subprocess.run(asked, capture_output=True, text=True).stdout.strip() or None
    except FileNotFoundError:
        return None


COMMIT_DATE = commit_date()
"""Asked for as a process begins: another commit may be checked out before it ends."""


def parser(description: str | None) -> argparse.ArgumentParser:
    """Options that every example takes."""
    options = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--quick", action="store_true", help="a reduced run, within minutes")
    options.add_argument("--seed", type=int, default=0, help="seed of all random numbers")
    options.add_argument(
        "--out", type=Path, default=Path("out"), help="where figures and results go"
    )
    options.add_argument("--data", type=Path, default=None, help="folder to look for data in first")
    return options


def write_json(path: Path, results: Results) -> None:
    """Write a JSON file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False) as part:
        json.dump(results, part, indent=1)
        part.write("\n")
    os.replace(part.name, path)


def command() -> str:
    """The command of this process, without the folders it reads from and writes to."""
    module = sys.modules["__main__"].__spec__
    name = ["-m", module.name.removesuffix(".__main__")] if module else []
    script = name or [os.path.relpath(sys.argv[0], ROOT)]
    said = shlex.join(["python", *script, *sys.argv[1:]])
    return re.sub(r" --(?:out|data)[ =]('[^']*'|\S+)", "", said)


def write_results(folder: Path, results: Results, date: str | None = COMMIT_DATE) -> None:
    """Write ``results.json`` whole or not at all, with the command and the date of the code.

    Where runs of an earlier command are kept beside it, the date is that of the earlier code.
    """
    path = folder / "results.json"
    if (folder / "runs").exists() and path.exists():
        date = json.loads(path.read_text()).get("commit_date")
    dated = {"commit_date": date} if date else {}
    write_json(path, {"command": command(), **dated, **results})


def save_figure(figure: Any, folder: Path, name: str) -> None:
    """Write a PNG and say where it is."""
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / name, dpi=130)
    print(f"wrote {folder / name}")


def run(main: Callable[[argparse.Namespace], None], options: argparse.ArgumentParser) -> None:
    """Run an example; expected errors end it with one line and a non-zero status."""
    arguments = options.parse_args()
    try:
        main(arguments)
    except (StreamingGPError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
