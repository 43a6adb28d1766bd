"""Mutants of a file: one operator, sign, comparison or number changed.

What no test of behaviour can see is left alone: docstrings, annotations, the words of errors,
defaults and settings at the top of a file, and numbers below ``SMALLEST``, which are tolerances.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

SMALLEST = 1e-3
OPERATORS = {ast.Add: "+-", ast.Sub: "-+", ast.Mult: "*/", ast.Div: "/*", ast.Pow: ("**", "*")}
COMPARISONS = {
    ast.Lt: ("<", ">="), ast.GtE: (">=", "<"), ast.Gt: (">", "<="), ast.LtE: ("<=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"),
}  # fmt: skip
CONNECTIVES = {ast.And: ("and", "or"), ast.Or: ("or", "and")}


@dataclass(frozen=True)
class Mutant:
    """One change.

    :param file: The path of the file in the repository.
    :param place: The function that it is in, with the classes around it.
    :param before: The expression that is changed.
    :param after: The same expression after the change.
    :param number: The number of the change among equal ones in this place.
    :param start: The first byte that goes.
    :param stop: The first byte after it that stays.
    :param new: What comes instead.
    """

    file: str
    place: str
    before: str
    after: str
    number: int
    start: int
    stop: int
    new: bytes

    @property
    def name(self) -> str:
        """Where and what: it survives changes elsewhere in the file."""
        which = f" ({self.number})" if self.number else ""
        return f"{self.file}:{self.place}: {self.before} → {self.after}{which}"

    def applied(self, source: bytes) -> bytes:
        """The file after the change."""
        return source[: self.start] + self.new + source[self.stop :]


def mutants(file: str, source: bytes) -> list[Mutant]:
    """All mutants of a file, in order."""
    return list(_Finder(file, source).found())


class _Finder:
    def __init__(self, file: str, source: bytes) -> None:
        self._file, self._source = file, source
        self._lines = [0, *accumulate(len(line) for line in source.splitlines(keepends=True))]
        self._seen: Counter[tuple[str, str, str]] = Counter()

    def found(self) -> Iterator[Mutant]:
        for node in ast.parse(self._source).body:
            yield from self._within(node, "")

    def _within(self, node: ast.AST, place: str) -> Iterator[Mutant]:
        """Statements of functions, however deep in classes and functions they are."""
        place = f"{place}.{node.name}" if place else getattr(node, "name", "")
        for child in node.body if _is_nested(node) else []:
            if _is_nested(child):
                yield from self._within(child, place)
            elif isinstance(node, ast.FunctionDef):
                yield from self._of_statement(child, place)

    def _of_statement(self, node: ast.AST, place: str) -> Iterator[Mutant]:
        if isinstance(node, (ast.Raise, ast.Assert)) or _is_text(node) or _is_nested(node):
            return
        for start, stop, new in self._changes(node):
            yield self._mutant(node, place, start, stop, new)
        left_out = {id(node.annotation)} if isinstance(node, ast.AnnAssign) else set()
        for child in ast.iter_child_nodes(node):
            if _is_nested(child):
                yield from self._within(child, place)
            elif id(child) not in left_out:
                yield from self._of_statement(child, place)

    def _changes(self, node: ast.AST) -> Iterator[tuple[int, int, bytes]]:
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            yield self._between(node.left, node.right, *OPERATORS[type(node.op)])
        elif isinstance(node, ast.Compare) and len(node.ops) == 1:
            yield self._between(node.left, node.comparators[0], *COMPARISONS[type(node.ops[0])])
        elif isinstance(node, ast.BoolOp):
            yield self._between(node.values[0], node.values[1], *CONNECTIVES[type(node.op)])
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not)):
            start, old = self._start(node), b"-" if isinstance(node.op, ast.USub) else b"not "
            yield start, start + len(old), b""
        elif isinstance(node, ast.Constant) and (new := _other(node.value)) is not None:
            yield self._start(node), self._stop(node), new.encode()

    def _between(self, left: ast.AST, right: ast.AST, old: str, new: str) -> tuple:
        """The operator of an expression, past brackets that close and before some that open."""
        start = self._source.index(old.encode(), self._stop(left), self._start(right))
        return start, start + len(old), new.encode()

    def _mutant(self, node: ast.AST, place: str, start: int, stop: int, new: bytes) -> Mutant:
        first, last = self._start(node), self._stop(node)
        before = self._source[first:last]
        after = before[: start - first] + new + before[stop - first :]
        words = tuple(" ".join(text.decode().split()) for text in (before, after))
        number = self._seen[(place, *words)]
        self._seen[(place, *words)] += 1
        return Mutant(self._file, place, *words, number, start, stop, new)

    def _start(self, node: ast.AST) -> int:
        return self._lines[node.lineno - 1] + node.col_offset

    def _stop(self, node: ast.AST) -> int:
        return self._lines[node.end_lineno - 1] + node.end_col_offset


def _is_nested(node: ast.AST) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.ClassDef))


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _other(value: object) -> str | None:
    """Another value of the same type; None to leave it."""
    if isinstance(value, bool):
        return str(not value)
    if isinstance(value, int):
        return str(value + 1)
    if isinstance(value, float) and (value == 0.0 or abs(value) >= SMALLEST):
        return str(2.0 * value or 1.0)
    return None
