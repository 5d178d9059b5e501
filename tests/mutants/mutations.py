"""The mutants of a module: mutmut's operators and two of our own, on the code inside functions."""

from __future__ import annotations

import difflib
import functools
import gc
import inspect
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from types import CodeType, FunctionType
from typing import Any

import libcst as cst
from libcst import matchers
from mutmut.mutation import mutators

# Calls that say something to people, or to the type checker.
SAY = {"log", "logger", "warnings"}
# Arguments of these are types, or all that there is.
PLAIN = {"isinstance", "issubclass", "len", "cast", "super"}
# Parts that are no rules: types, defaults and decorators, which count before a test runs, and claims of the code.
NO_RULES = (cst.Annotation, cst.Assert, cst.Decorator, cst.Parameters)


@dataclass(frozen=True)
class Mutant:
    """One change in a function: the `nth` one with this qualified name."""

    function: str
    nth: int
    _tree: Any
    _old: Any
    _new: Any

    @property
    def code(self) -> CodeType:
        """What the function becomes."""
        tree = self._tree.deep_replace(self._old, self._new)
        for name in reversed(self.function.split(".")[:-1]):
            tree = cst.ClassDef(cst.Name(name), cst.IndentedBlock([tree]))
        return functions(f"from __future__ import annotations\n{_text(tree)}")[self.function, 0]

    @property
    def change(self) -> tuple[str, str]:
        """A name, which is the function and what its changed lines become; and what these are without the change."""
        before, after = _text(self._tree), _text(self._tree.deep_replace(self._old, self._new))
        lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0))[3:]
        old, new = (" ".join(line[1:].strip() for line in lines if line[0] == sign) for sign in "-+")
        return f"{self.function}: {new}", old


def _text(tree: Any) -> str:
    code: str = cst.Module([tree]).code
    return code


def functions(source: str) -> dict[tuple[str, int], CodeType]:
    """Code of the functions of a source that stand in no other, by qualified name and number."""
    found: dict[tuple[str, int], CodeType] = {}
    counts: Counter[str] = Counter()

    def look(code: CodeType) -> None:
        for inner in code.co_consts:
            if not isinstance(inner, CodeType):
                continue
            if inner.co_flags & inspect.CO_NEWLOCALS:  # else the body of a class
                found[inner.co_qualname, counts[inner.co_qualname]] = inner
                counts[inner.co_qualname] += 1
            else:
                look(inner)

    look(compile(source, "", "exec", dont_inherit=True))
    return found


def live(file: str) -> Iterator[Any]:
    """The functions of a file in this process, and what keeps their results."""
    gc.unfreeze()
    for one in gc.get_objects():
        function = one.__wrapped__ if isinstance(one, functools._lru_cache_wrapper) else one
        if isinstance(function, FunctionType) and function.__code__.co_filename == file:
            yield one
    gc.freeze()


def mutants(source: str) -> Iterator[Mutant]:
    """All mutants of a module."""
    counts: Counter[str] = Counter()
    errors: set[Any] = set()  # the calls that make what is raised, and their texts

    def walk(node: Any, names: tuple[str, ...], function: tuple[str, int, Any] | None) -> Iterator[Mutant]:
        if isinstance(node, NO_RULES) or _says(node) or (isinstance(node, cst.FormattedString) and node in errors):
            return
        if isinstance(node, cst.Raise):
            errors.update([node.exc, *matchers.findall(node, matchers.FormattedString())])
        if function is not None:
            yield from (Mutant(*function, node, new) for new in _changes(node) if not _is_no_mutant(node, new, errors))
        elif isinstance(node, cst.ClassDef):
            names = (*names, node.name.value)
        elif isinstance(node, cst.FunctionDef):
            name = ".".join((*names, node.name.value))
            function = name, counts[name], node
            counts[name] += 1
        for child in node.children:
            yield from walk(child, names, function)

    return walk(cst.parse_module(source), (), None)


def _says(node: Any) -> bool:
    """Whether this is a docstring, or a line of a log."""
    match node:
        case cst.SimpleStatementLine(body=[cst.Expr(value=cst.SimpleString() | cst.ConcatenatedString())]):
            return True
        case cst.Call(func=cst.Attribute(value=cst.Name(value=name))):
            return name in SAY
    return False


def _is_text(node: Any) -> bool:
    """Whether this is a text for people."""
    if isinstance(node, cst.SimpleString):
        return len(node.evaluated_value.split()) > 2
    return isinstance(node, cst.FormattedString | cst.ConcatenatedString)


def _is_no_mutant(node: Any, new: Any, errors: set[Any]) -> bool:
    """Whether a change is of a text for people alone, or much like another one."""
    match node, new:
        case cst.Call(args=[_, _, *_]), cst.Call(args=args) if len(args) == len(node.args) and new.func is node.func:
            return True  # None for an argument that another mutant drops
        case cst.Call(), cst.Call():
            gone = [one for one in node.args if one.keyword is None and one not in new.args]
            return any(node in errors or _is_text(one.value) for one in gone)
        case cst.Assign(), cst.Assign():
            return _is_text(node.value)
    return False


def _changes(node: Any) -> Iterator[Any]:
    if _is_text(node):
        return
    match node:
        case cst.SimpleString():
            yield from islice(mutators.operator_string(node), 1)
            return
        case cst.Call(func=cst.Name(value=name)) if name in PLAIN:
            return
        case cst.Call(func=cst.Name(value="min" | "max" as name)):
            yield node.with_changes(func=cst.Name("max" if name == "min" else "min"))
            if len(node.args) > 1:
                yield from (argument.value for argument in node.args)
            return
        case cst.BooleanOperation():
            yield from (node.left, node.right)
    for kind, operator in mutators.mutation_operators:
        if isinstance(node, kind):
            yield from operator(node)
