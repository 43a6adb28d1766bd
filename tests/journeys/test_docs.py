"""Every Python snippet in README and docs runs; every page that is linked exists."""

import doctest
import inspect
import os
import re
import runpy
import subprocess
import sys
import textwrap
from configparser import ConfigParser
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp

ROOT = Path(__file__).resolve().parents[2]
MARKDOWN = re.compile(r"```python\n(.*?)```", re.DOTALL)
RST = re.compile(r"\.\. code-block:: python\n\n((?:    .*\n|\n)+)")


def snippets(path):
    pattern = MARKDOWN if path.suffix == ".md" else RST
    return [textwrap.dedent(code) for code in pattern.findall(path.read_text())]


DOCS = ROOT / "docs"
TEXTS = [ROOT / "README.md", *sorted(p for p in DOCS.rglob("*.rst") if "_build" not in p.parts)]
PAGES = [path for path in TEXTS if snippets(path)]


def name_of(page):
    return str(page.relative_to(ROOT))


NEEDED = {
    "docs/extend/update_rule.rst": "dp_accounting",
    "docs/howto/changing_world.rst": "river",
    "docs/howto/privacy.rst": "dp_accounting",
    "docs/howto/river.rst": "river",
    "docs/howto/tables.rst": "pyarrow",
}
"""Extras that a page is about."""


@pytest.fixture
def module(monkeypatch):
    """A module of its own, so that the classes of a page can be pickled."""
    made = ModuleType("page_of_the_docs")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=getattr(pytest.mark, "example" if page in TEXTS[:1] else "slow"))
        for page in PAGES
    ],
    ids=name_of,
)
def test_snippets_run_one_after_another(page, module):
    """A snippet that raises fails here; many assert what they show."""
    if name_of(page) in NEEDED:
        pytest.importorskip(NEEDED[name_of(page)])
    for number, code in enumerate(snippets(page)):
        exec(compile(code, f"{page.name}, snippet {number}", "exec"), vars(module))


def test_every_seam_has_a_page_that_ends_with_its_check():
    for page in (DOCS / "extend").glob("*.rst"):
        if page.stem not in {"index", "house"}:
            *_, last = snippets(page)[-1].strip().splitlines()
            assert last.startswith("testing.check_"), name_of(page)


def test_the_page_about_the_house_names_files_that_are_there():
    named = re.findall(r"``((?:gp|pvi|engines)/[\w/.]+)``", (DOCS / "extend/house.rst").read_text())
    assert len(named) > 20
    for name in named:
        assert (ROOT / "streaming_gp" / name).exists(), name


def test_tables_show_as_many_digits_as_the_error_has():
    pytest.importorskip("docutils")
    cell = runpy.run_path(str(DOCS / "tables.py"))["cell"]
    small, large = {"value": 0.173562, "error": 0.00201}, {"value": 1234.5, "error": 17.2}
    assert cell(small, "value ± error") == "0.1736\u00a0±\u00a00.0020"
    assert cell(large, "value ± error") == "1234\u00a0±\u00a017"
    assert cell({"value": 2.5, "error": 0.0}, "value ± error") == "2.5"  # of one seed
    assert cell(small, "value") == "0.174"


def test_snippets_are_found():
    assert set(map(name_of, PAGES)) >= {"README.md", "docs/start/quickstart.rst"}


def test_the_readme_streams_a_batch_in_ten_lines():
    code = snippets(ROOT / "README.md")[0]
    lines = [one for one in code.splitlines() if one and not one.startswith(("import", ")"))]
    assert len(lines) <= 10
    exec(compile(code, "README.md", "exec"), found := {})
    assert list(found["model"].factors) == ["batch-0", "batch-1"]


def test_make_targets_of_the_readme_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make ([a-z-]+)", (ROOT / "README.md").read_text())) <= targets


def test_installing_is_from_the_source_and_names_extras_that_there_are():
    """There is no public package: its name could be a stranger's."""
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    rooms = ("streaming_gp", "docs", "examples", "experiments", "datasets")
    files = [path for room in rooms for path in (ROOT / room).rglob("*.*") if path.is_file()]
    named = set()
    for path in [*TEXTS, *(path for path in files if path.suffix in {".py", ".md"})]:
        text = path.read_text()
        assert not re.search(r"(pip install|extra).*streaming[-_]gp\[", text), path
        named |= set(re.findall(r"pip install '\.\[(\w+)\]'", text))
        named |= set(re.findall(r'missing_extra\([^)]*"(\w+)"\)', text))
    assert {"river", "nvflare", "plot"} <= named <= set(setup["options.extras_require"])


def test_images_of_readme_and_docs_exist():
    for path in TEXTS:
        images = re.findall(
            r"(?:\]\(|\.\. (?:image|figure):: |:img-top: )([\w/.-]+\.png)", path.read_text()
        )
        for image in images:
            assert (path.parent / image).is_file(), f"{name_of(path)}: {image}"


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_what_markdown_files_link_to_exists(name):
    pages = re.findall(r"\]\(((?:docs|examples)/[\w/.-]+)\)", (ROOT / name).read_text())
    assert pages
    for page in pages:
        assert (ROOT / page).exists(), page


ROOMS = "bnn datasets engines evaluate expfam gp pvi river runtime sklearn testing"


@pytest.mark.parametrize("room", ROOMS.split())
def test_the_reference_has_every_public_name(room):
    if room in {"river", "sklearn"}:
        pytest.importorskip(room)
    pages = "\n".join(page.read_text() for page in (DOCS / "reference/api").glob("*.rst"))
    alone = re.findall(r"^\.\. (?:auto\w+|py:data):: streaming_gp\S*\.(\w+)", pages, re.MULTILINE)
    whole = [import_module(name) for name in re.findall(r"automodule:: (\S+)\n", pages)]
    for name in set(import_module(f"streaming_gp.{room}").__all__) - set(alone):
        things = [getattr(module, name) for module in whole if hasattr(module, name)]
        assert any(callable(one) or isinstance(one, ModuleType) for one in things), name


@pytest.fixture(scope="module")
def summaries():
    pytest.importorskip("sphinx")
    return runpy.run_path(str(DOCS / "summaries.py"))


def test_the_summary_of_an_api_page_says_what_an_object_is_and_where_it_is_used(summaries):
    lines = list(summaries["table_of"](["streaming_gp.StreamingGP", "streaming_gp.pvi.fit"]))
    of_model, of_fit = ([*map(str.strip, lines[start : start + 3])] for start in (7, 10))
    assert of_model[0] == "* - :py:obj:`~streaming_gp.StreamingGP`"
    assert of_fit[1].endswith(".")
    assert len(of_fit[1]) > 20
    assert ":doc:`/start/" in of_model[2]
    assert ":doc:`/howto/" in of_fit[2]


def test_a_summary_ends_with_a_sentence_and_a_use_is_more_than_the_same_word(summaries):
    docstring = "Natural gradients (Khan et al. 2018): quick. And\nmore.\n\n:param rate: None."
    assert summaries["first_sentence"](docstring) == "Natural gradients (Khan et al. 2018): quick."
    of_data = summaries["docstring_of"]("streaming_gp.pvi.guards.NO_LIMITS")
    assert of_data.startswith("For point estimates")
    use = summaries["use_of"]("streaming_gp.gp.fit.Problem")
    for code in (
        "from streaming_gp.gp.fit import LocalModel, Problem",
        "from streaming_gp.gp.fit import (\n    LocalModel,\n    Problem,\n)",
        "fit.Problem(X, Y)",
    ):
        assert use.search(code), code
    for code in (
        "Problem(X, Y)",
        "other.Problem",
        "from streaming_gp import gp\n\nProblem(X)",
        "from streaming_gp.river import Problem",
    ):
        assert not use.search(code), code


def test_every_object_of_the_reference_has_a_snippet_or_an_example(summaries):
    pages = [path.read_text() for path in (DOCS / "reference").rglob("*.rst")]
    names = [name for page in pages for name in summaries["ENTRY"].findall(page)]
    assert names
    assert [name for name in names if not summaries["uses_of"](name)] == []


# ---- docstrings ----


PACKAGE = ROOT / "streaming_gp"
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted(PACKAGE.rglob("*.py"))
    if ">>> " in path.read_text()
]
NEEDED_BY_MODULE = {"streaming_gp.sklearn": "sklearn"}
SLOW_MODULES = {
    "streaming_gp.gp.fit.optimiser",
    "streaming_gp.gp.forgetting",
    "streaming_gp.gp.strategies.private",
    "streaming_gp.gp.strategies.shared",
    "streaming_gp.pvi.updates.variational",
    "streaming_gp.sklearn",
    "streaming_gp.tables",
}
"""Their examples make models of kinds of their own, whose compilation takes seconds."""
WITHOUT_ONE = {"OwnPseudoPoints"}
"""Abstract, with a page of the docs."""


def test_every_class_that_a_user_of_a_stream_gives_has_an_example():
    given = [one for one in map(partial(getattr, sgp), sgp.__all__) if inspect.isclass(one)]
    names = {one.__name__ for one in given if not issubclass(one, BaseException)}
    have = {one.__name__ for one in given if ">>> " in (one.__doc__ or "")}
    assert names - have == WITHOUT_ONE


@pytest.fixture(scope="module")
def names():
    X = np.linspace(0.0, 5.0, 20)[:, None]

    def learned():
        parts = gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian(0.01)
        model = sgp.StreamingGP(*parts, hyperparameters=sgp.FixedHyperparameters())
        model.update((X, np.sin(X)))
        return model

    def names_in(example):
        model = learned() if "model" in example.docstring else None
        Y, line = np.sin(X), sgp.linear.BayesianLinearRegression(1, noise_variance=0.1)
        parts = gpflow.kernels.Matern52(), gpflow.likelihoods.Gaussian(0.1)
        shards = [(X[:10], Y[:10]), (X[10:], Y[10:])]
        known = {"X": X, "Y": Y, "parts": parts, "shards": shards, "line": line, "model": model}
        return {"np": np, "gpflow": gpflow, "sgp": sgp} | known

    return names_in


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW_MODULES)) for name in MODULES],
)
def test_examples_in_docstrings_run(name, names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pytest.importorskip(NEEDED_BY_MODULE.get(name, "numpy"))
    examples = [one for one in doctest.DocTestFinder().find(import_module(name)) if one.examples]
    assert examples
    for one in examples:
        one.globs = names(one)
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
        said = []
        runner.run(one, out=said.append)
        assert not runner.failures, "".join(said)


# ---- types ----


PROGRAM = """
import gpflow
import numpy as np
from numpy.typing import NDArray

import streaming_gp as sgp
from streaming_gp import evaluate, pvi, runtime
from streaming_gp.surrogate import StreamingSurrogate
from streaming_gp.tables import read_csv

Array = NDArray[np.float64]


def stream(X: Array, Y: Array) -> tuple[Array, float]:
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(),
        gpflow.likelihoods.Gaussian(0.1),
        pseudo_points=sgp.PrivatePseudoPoints("all", budget=100),
        hyperparameters=sgp.VariationalHyperparameters(),
        learning=sgp.UntilSettled(),
    )
    info: sgp.UpdateInfo = model.update((X, Y))
    model.remove(info.batch_id)
    online = model.online(budget=50)
    online.update(X[0], Y[0])
    name: str | None = model.absorb(online)
    print(name, [factor.Z.shape for factor in model.factors.values()])
    model.export("predictor.npz")
    mean, _ = runtime.load("predictor.npz").predict_f(X)
    steps = list(evaluate.prequential(model, [(X, Y)]))
    return np.asarray(mean), evaluate.Summary(tuple(steps)).nlpd


def table(model: sgp.StreamingGP) -> int:
    known = sgp.TableGP(model, target="y")
    report = sgp.stream(read_csv("data.csv"), known)
    mean, deviation = known.predict({"x": [1.0]})
    print(mean + deviation)
    return report.num_rows


def minimise(model: sgp.StreamingGP, X: Array, Y: Array) -> None:
    surrogate = StreamingSurrogate(model)
    surrogate.update((X, Y))
    with surrogate.given(X, Y):
        print(surrogate.predict_joint(X)[0])


def federated(gp: sgp.StreamingGP, shards: list[tuple[Array, Array]]) -> None:
    clients = pvi.make_clients(gp, shards, update=sgp.GPUpdate())
    server = pvi.Server(gp.prior(), clients)
    pvi.fit(server, pvi.Synchronous(), rounds=2)
    gp.adopt(server.ledger)
"""


def checked(folder, program):
    """What mypy says; like any installed package, this one is read but not judged."""
    path = folder / "program.py"
    path.write_text(program)
    options = ["--strict", "--follow-imports=silent", "--config-file=", "--no-incremental"]
    return subprocess.run(
        [sys.executable, "-m", "mypy", *options, str(path)],
        env={**os.environ, "MYPYPATH": str(ROOT)},
        cwd=folder,
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_a_strict_users_program_passes_and_a_wrong_one_does_not(tmp_path):
    pytest.importorskip("mypy")
    assert (ROOT / "streaming_gp" / "py.typed").is_file()
    right = checked(tmp_path, PROGRAM)
    assert right.returncode == 0, right.stdout
    wrong = checked(tmp_path, PROGRAM + "\n\nrows: str = table(sgp.StreamingGP)\n")
    assert wrong.returncode == 1
    assert "Incompatible types in assignment" in wrong.stdout
