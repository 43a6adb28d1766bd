"""The size of the package, and the files that three journeys pass: ``make house``.

Lines and files are those of ``*.py``, blank lines and comments included. The others are counted so:

- *classes of StreamingGP*: it, and those of the package that it inherits from.
- *files a batch passes*: package files in which a function runs during the third ``model.update``
  of a model with private points and Gaussian noise, when everything is imported and compiled.
- *files of two default updates*: the same during the first two updates of a model that is given a
  kernel and a likelihood alone, in a process that has learned nothing before.
- *files a prediction passes*: the same during the second ``model.predict_f``.
- *files an answer passes*: the same during the third round of one client, in this process.
- *inner modules that tests import*: those that ``docs/reference/api`` does not name.

In brackets are those of ``gp``, or of ``pvi`` and ``engines``. ``--files`` lists all as they come.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gpflow
import numpy as np

import streaming_gp as sgp
from streaming_gp import engines, linear, pvi

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "streaming_gp"


def size_of(folder: Path) -> str:
    texts = [path.read_text() for path in folder.rglob("*.py")]
    return f"{sum(len(text.splitlines()) for text in texts):,} / {len(texts)}"


@contextmanager
def files_passed() -> Iterator[list[str]]:
    """Package files in which functions run within the block; bodies of modules and classes, and
    what these call, belong to imports.
    """
    names: list[str] = []

    def note(frame: Any, event: str, argument: Any) -> None:
        path, is_function = frame.f_code.co_filename, inspect.CO_OPTIMIZED
        if event == "call" and path.startswith(str(PACKAGE)):
            name, flags = path[len(str(PACKAGE)) + 1 :], frame.f_code.co_flags
            if name not in names and flags & frame.f_back.f_code.co_flags & is_function:
                names.append(name)

    sys.setprofile(note)
    try:
        yield names
    finally:
        sys.setprofile(None)


def batch(number: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(number)
    X = rng.uniform(-3.0, 3.0, (50, 1))
    return X, np.sin(2.0 * X) + 0.1 * rng.standard_normal(X.shape)


def of_updates(first: int, last: int, **options: Any) -> tuple[sgp.StreamingGP, list[str]]:
    """A model after some batches, and the files of those from the first that counts."""
    kernel, likelihood = gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian(0.1)
    model = sgp.StreamingGP(kernel, likelihood, **options)
    for number in range(first):
        model.update(batch(number))
    with files_passed() as found:
        for number in range(first, last):
            model.update(batch(number))
    return model, found


def of_prediction(model: sgp.StreamingGP) -> list[str]:
    X, _ = batch(3)
    model.predict_f(X)
    with files_passed() as found:
        model.predict_f(X)
    return found


def of_answer() -> list[str]:
    model = linear.BayesianLinearRegression(1, noise_variance=0.01)
    rule = pvi.VariationalUpdate(epochs=1, batch_size=25)
    server = pvi.Server(model.prior(), pvi.make_clients(model, [batch(0)], rule))
    pvi.fit(server, pvi.Sequential(), rounds=2, engine=engines.Serial())
    with files_passed() as found:
        pvi.fit(server, pvi.Sequential(), rounds=1, engine=engines.Serial())
    return found


def inner_modules() -> list[str]:
    pages = "".join(page.read_text() for page in (ROOT / "docs/reference/api").glob("*.rst"))
    public = {"streaming_gp", *(f"streaming_gp.{name}" for name in sgp.__all__)}
    for kind, name in re.findall(r"auto(\w+):: (\S+)", pages):
        public.add(name if kind == "module" else name.rpartition(".")[0])
    imported: set[str] = set()
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                home = ROOT / node.module.replace(".", "/")
                for alias in node.names:
                    is_module = [*home.glob(alias.name), *home.glob(f"{alias.name}.py")]
                    imported.add(f"{node.module}.{alias.name}" if is_module else node.module)
    return sorted(name for name in imported - public if name.startswith("streaming_gp."))


def counted(files: list[str], *folders: str) -> tuple[str, list[str]]:
    return f"{len(files)} ({sum(name.startswith(folders) for name in files)})", files


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--files", action="store_true")
    arguments = options.parse_args()
    _, of_default = of_updates(0, 2)
    model, of_batch = of_updates(2, 3, pseudo_points=sgp.PrivatePseudoPoints(10))
    ours = [one.__name__ for one in sgp.StreamingGP.__mro__ if "streaming_gp" in one.__module__]
    inner = inner_modules()
    rows: dict[str, tuple[str, list[str]]] = {
        "package, lines / files": (size_of(PACKAGE), []),
        "gp, lines / files": (size_of(PACKAGE / "gp"), []),
        "tests, lines / files": (size_of(ROOT / "tests"), []),
        "classes of StreamingGP": (str(len(ours)), ours),
        "files a batch passes": counted(of_batch, "gp/"),
        "files of two default updates": counted(of_default, "gp/"),
        "files a prediction passes": counted(of_prediction(model), "gp/"),
        "files an answer passes": counted(of_answer(), "pvi/", "engines/"),
        "inner modules that tests import": (str(len(inner)), inner),
    }
    for name, (number, names) in rows.items():
        print(f"{name:<34}{number:>16}")
        for one in names if arguments.files else []:
            print(f"    {one}")


if __name__ == "__main__":
    main()
