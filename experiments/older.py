"""Results that are older than the code they ran: python -m experiments.older.

A line for each results.json in docs/results: the day of the commit whose code it ran (of the commit
that wrote it, where it does not say), how many commits have changed the rooms of the package that
its script imports since, and these rooms; the whole package where there is no script, or it starts
others. Nothing is run again. A commit that changes no number counts as well: read what has changed
before you run anything.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "streaming_gp"


def git(*arguments: str) -> str:
    """What git answers about this repository."""
    told = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return told.stdout.strip()


def ran(results: Path) -> tuple[str, str]:
    """The commit whose code they ran, and its day."""
    date = json.loads(results.read_text()).get("commit_date")
    which = [f"--before={date}"] if date else ["--", str(results)]
    commit, day = git("log", "-1", "--format=%H %cs", *which).split()
    return commit, day


def script_of(results: Path) -> Path | None:
    """The script that wrote them: its name is in their command, or that of their folder."""
    command = str(json.loads(results.read_text()).get("command", ""))
    names = re.findall(r"(?:examples/|experiments\.(?:\w+\.)?)(\w+)", command)
    for name in (*names, results.parent.name):
        for folder in ("experiments/measured", "experiments/papers", "experiments", "examples"):
            if (ROOT / folder / f"{name}.py").is_file():
                return ROOT / folder / f"{name}.py"
    return None


def imports_of(script: Path, seen: set[Path]) -> set[str]:
    """Names within the package that a script imports, by itself or by scripts beside it."""
    seen.add(script)
    found: set[str] = set()
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute) and getattr(node.value, "id", None) == "sgp":
            names = [f"streaming_gp.{node.attr}"]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "streaming_gp":
                found |= {".".join(parts[1:])} - {""}
            for length in range(1, len(parts) + 1):
                beside = ROOT.joinpath(*parts[:length]).with_suffix(".py")
                if parts[0] == "experiments" and beside.is_file() and beside not in seen:
                    found |= imports_of(beside, seen)
    return found


def room_of(name: str) -> Path:
    """The folder or file of the package that a name comes from; its own names are of ``gp``."""
    first = name.split(".")[0]
    paths = (PACKAGE / first, PACKAGE / f"{first}.py", PACKAGE / "gp")
    return next(path for path in paths if path.exists())


def main() -> None:
    for results in sorted(ROOT.glob("docs/results/*/results.json")):
        commit, day = ran(results)
        script = script_of(results)
        names = imports_of(script, set()) if script else set()
        rooms = sorted({room_of(name) for name in names}) or [PACKAGE]
        since = git("rev-list", "--count", f"{commit}..HEAD", "--", *map(str, rooms))
        if since != "0":
            named = " ".join(room.name for room in rooms)
            print(f"{results.parent.name:34} {day} {since:>5} commits since in {named}")


if __name__ == "__main__":
    main()
