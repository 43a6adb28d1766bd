"""An import goes down the floors of the package, never up."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "streaming_gp"
FLOORS = [
    {"errors", "linalg", "metrics", "datasets"},
    {"expfam"},
    {"pvi", "engines"},
    {"gp"},
    {"plotting", "progress", "__init__"},
]
ALLOWED_BELOW = {
    0: {"gpflow", "tensorflow_probability"},
    1: {"gpflow", "tensorflow_probability"},
    2: {"gpflow", "tensorflow_probability"},
}


def floor_of(room):
    matching = [level for level, rooms in enumerate(FLOORS) if room in rooms]
    assert matching, f"{room} stands on no floor: add it to FLOORS"
    return matching[0]


def imports(path):
    """Every module a file imports, including those inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def files():
    return [path for path in sorted(PACKAGE.rglob("*.py")) if "_data" not in path.parts]


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down(path):
    room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    level = floor_of(room)
    for module in imports(path):
        parts = module.split(".")
        if parts[0] in ALLOWED_BELOW.get(level, set()):
            pytest.fail(f"{path.name} on floor {level} imports {module}")
        if (
            parts[0] == "streaming_gp"
            and len(parts) > 1
            and (PACKAGE / parts[1]).exists() | (PACKAGE / f"{parts[1]}.py").exists()
        ):
            other = floor_of(parts[1])
            assert other < level or parts[1] == room or (level, other) == (0, 0), module


def test_rooms_of_one_floor_do_not_import_one_another():
    for path in files():
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if floor_of(room) != 3:
            continue
        for module in imports(path):
            parts = module.split(".")
            if parts[0] == "streaming_gp" and len(parts) > 1 and parts[1] in FLOORS[3]:
                assert parts[1] == room
