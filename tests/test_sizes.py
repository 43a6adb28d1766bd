"""Small files, short functions, classes with few methods; no circle among files."""

import ast
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "streaming_gp"
LONGEST_FILE, LONGEST_FUNCTION, MOST_METHODS = 300, 40, 15
LARGER = {
    # a family is its algebra: each method is one law or one primitive, and they belong together
    "ExponentialFamily", "Gaussian", "IsotropicNormal", "MeanFieldNormal", "Normal",
    "NormalWishart",
    # a network answers every capability that a rule can ask of a model
    "Network",
}  # fmt: skip
FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if "_data" not in path.parts]
NAMES = [str(path.relative_to(PACKAGE)) for path in FILES]


@cache
def tree(path):
    return ast.parse(path.read_text())


def functions(path):
    return [n for n in ast.walk(tree(path)) if isinstance(n, ast.FunctionDef)]


def statements_of(function):
    """Lines of a function without its docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return sum(statement.end_lineno - statement.lineno + 1 for statement in body)


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_files_functions_and_classes_are_small(path):
    assert len(path.read_text().splitlines()) <= LONGEST_FILE
    for function in functions(path):
        assert statements_of(function) <= LONGEST_FUNCTION, function.name
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ClassDef):
            methods = [n for n in node.body if isinstance(n, ast.FunctionDef)]
            number = len(methods)
            assert number <= MOST_METHODS or node.name in LARGER, f"{node.name} has {number}"


def file_of(module):
    """The file of this package that a module is, or None."""
    parts = module.split(".")
    if parts[0] != PACKAGE.name:
        return None
    stem = PACKAGE.joinpath(*parts[1:])
    found = (stem.with_suffix(".py"), stem / "__init__.py")
    return next((file for file in found if file.is_file()), None)


def imported_files(path):
    """Files that importing a file reads by name, wherever the import stands in it.

    ``from package import name`` reads the module ``package.name`` if there is one.
    """
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
            modules = [module if file_of(module) else node.module for module in modules]
        else:
            continue
        yield from (file for module in modules if (file := file_of(module)) is not None)


def test_no_file_imports_itself_through_others():
    arrows = {path: set(imported_files(path)) - {path} for path in FILES}
    while leaves := [path for path, targets in arrows.items() if not targets & arrows.keys()]:
        for leaf in leaves:
            del arrows[leaf]
    assert not arrows, [str(path.relative_to(PACKAGE)) for path in arrows]
