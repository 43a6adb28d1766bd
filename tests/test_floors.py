"""An import goes down the floors of the package, never up."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "streaming_gp"
FLOORS = [
    {"errors", "inputs", "numerics", "metrics", "datasets", "serialization"}
    | {"runtime", "frames"},
    {"expfam"},
    {"pvi"},
    {"engines"},
    {"samplers"},
    {"validation"},
    {"losses"},
    {"gp", "bnn", "linear", "mixture", "hierarchical", "flow"},
    {"estimators"},
    {"evaluate", "progress", "river", "sklearn", "surrogate", "tables", "testing"},
    {"plotting"},
    {"command_line"},
    {"__init__", "__main__"},
]
LIBRARIES = 4
GP_LIBRARIES = {"gpflow", "tensorflow_probability"}  # only from floor LIBRARIES up


def floor_of(room):
    matching = [level for level, rooms in enumerate(FLOORS) if room in rooms]
    assert matching, f"{room} stands on no floor: add it to FLOORS"
    return matching[0]


@cache
def room_of(module):
    """The room of this package that a module belongs to, or None."""
    package, _, rest = module.partition(".")
    room = rest.partition(".")[0]
    is_room = (PACKAGE / room).is_dir() or (PACKAGE / f"{room}.py").is_file()
    return room if package == "streaming_gp" and room and is_room else None


@cache
def imports(path):
    """Every module a file imports, including those inside functions."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found


def files():
    """Every file of the package, and its room."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if "_data" not in path.parts:
            yield path, path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_imports_go_down():
    for path, room in files():
        level = floor_of(room)
        for module in imports(path):
            named = f"{path} imports {module}"
            assert level >= LIBRARIES or module.split(".")[0] not in GP_LIBRARIES, named
            other = room_of(module)
            if other not in (None, room):
                assert floor_of(other) < level or floor_of(other) == level == 0, named


def test_libraries_that_weigh_much_are_imported_only_where_they_are_used():
    """TensorFlow Probability by four rooms; what it runs on by none; extras by their own part."""
    homes = {
        "tensorflow_probability": {"gp", "linear", "mixture", "samplers"},
        "tf_keras": set(),
        "keras": set(),
        "sklearn": {"sklearn"},
        "river": {"river", "evaluate"},
        "pandas": {"river"},
        "polars": set(),
        "pyarrow": {"frames", "command_line"},
        "matplotlib": {"plotting", "command_line", "pvi"},
        "ray": {"engines"},
        "nvflare": {"engines"},
        "flwr": {"engines"},
        "dp_accounting": {"pvi"},
        "mujoco": {"datasets"},
    }
    for path, room in files():
        for module in imports(path):
            library = module.split(".")[0]
            assert room in homes.get(library, {room}), f"{path} imports {library}"


@pytest.mark.slow
def test_federated_learning_loads_no_gaussian_processes_before_a_file_may_hold_some():
    """GPflow, and what it stands on, which others import without being asked."""
    code = """
import sys
import streaming_gp.engines, streaming_gp.expfam, streaming_gp.pvi
from streaming_gp import serialization
assert "tensorflow" in sys.modules
unused = {"gpflow", "check_shapes", "tensorflow_probability", "tf_keras"}
assert not unused & set(sys.modules), unused & set(sys.modules)
known = serialization.registered_classes()
assert {"PseudoPointFactor", "ServerState", "MeanFieldNormal"} <= set(known), sorted(known)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
