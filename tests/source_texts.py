"""Which texts of the source reach a call: found by reading all of `src`, wherever its modules stand."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

SOURCE: Final = Path(__file__).parents[1] / "src"
GAP: Final = "{}"
"""Stands for what is put into a text when the program runs."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Scopes = tuple[ast.AST, ...]
"""What a place in the source is inside of: its module first."""


class Sink(NamedTuple):
    """A parameter of whatever is called like this; `position` is None if it is always given by name."""

    callee: str
    position: int | None
    parameter: str
    is_method: bool = False


class Place(NamedTuple):
    """A call, and where it stands."""

    call: ast.Call
    scopes: Scopes


def texts_reaching(sinks: Sequence[Sink], is_meant: Callable[[ast.Call], bool] = lambda _: True) -> set[str]:
    """The texts that are passed to these parameters, also through functions, attributes, loops and constants.

    `is_meant` chooses among the calls of `sinks`, not of the functions in between.
    """
    texts: set[str] = set()
    known, waiting = set(sinks), list(sinks)
    while waiting:
        sink = waiting.pop()
        for place in _calls()[sink.callee]:
            if sink in sinks and not is_meant(place.call):
                continue
            found = {one for value in _given(place.call, sink) for one in _reached(value, place.scopes)}
            texts |= {one for one in found if isinstance(one, str)}
            further = {one for one in found if isinstance(one, Sink)} - known
            known |= further
            waiting += further
    return texts


def constant_texts() -> Iterator[str]:
    """Every text that stands in the source."""
    for tree in _modules().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def functions() -> Iterator[Function]:
    """Every function of the source."""
    for tree in _modules().values():
        yield from (node for node in ast.walk(tree) if isinstance(node, Function))


def defined(name: str) -> Any:
    """What is defined under a name that only one module has."""
    homes = _modules().items()
    [path] = [
        path for path, tree in homes if name in _constants(tree) or any(_is_class(one, name) for one in tree.body)
    ]
    return getattr(import_module(_dotted(path)), name)


def attributes_set_in(kind: type) -> set[str]:
    """The attributes that the methods of a class give to `self`."""
    node = _class_definition(kind)
    return {target.attr for target, _ in _assigned(node) if isinstance(target, ast.Attribute) and _is_self(target)}


def _class_definition(kind: type) -> ast.AST:
    """The class in the module that it names, or in one of the package that it names: the one that exports it."""
    [node] = [
        node
        for path, tree in _modules().items()
        if f"{_dotted(path)}.".startswith(f"{kind.__module__}.")
        for node in tree.body
        if _is_class(node, kind.__qualname__)
    ]
    return node


def _dotted(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts)


@cache
def _modules() -> dict[Path, ast.Module]:
    paths = [path for path in sorted(SOURCE.rglob("*.py")) if "_pb2" not in path.name]
    return {path: ast.parse(path.read_text("utf-8")) for path in paths}


@cache
def _calls() -> defaultdict[str, list[Place]]:
    found: defaultdict[str, list[Place]] = defaultdict(list)

    def visit(node: ast.AST, scopes: Scopes) -> None:
        if isinstance(node, ast.Call):
            found[getattr(node.func, "attr", getattr(node.func, "id", ""))].append(Place(node, scopes))
        inner = (*scopes, node) if isinstance(node, ast.Module | ast.ClassDef | Function) else scopes
        for child in ast.iter_child_nodes(node):
            visit(child, inner)

    for tree in _modules().values():
        visit(tree, ())
    return found


def _given(call: ast.Call, sink: Sink) -> Iterator[ast.expr]:
    if sink.is_method and not isinstance(call.func, ast.Attribute):
        return
    if sink.position is not None and sink.position < len(call.args):
        yield call.args[sink.position]
    yield from (keyword.value for keyword in call.keywords if keyword.arg == sink.parameter)


def _reached(value: ast.AST, scopes: Scopes) -> Iterator[str | Sink]:
    """The texts that a value may be, and the parameters that it may come from."""
    match value:
        case ast.Constant(value=str() as text):
            yield text
        case ast.JoinedStr(values=parts):
            yield from map("".join, product(*(_part(part, scopes) for part in parts)))
        case ast.IfExp(body=one, orelse=other):
            yield from (*_reached(one, scopes), *_reached(other, scopes))
        case ast.BoolOp(values=values) | ast.Tuple(elts=values):
            yield from (one for each in values for one in _reached(each, scopes))
        case ast.Name(id=name):
            yield from _named(name, scopes)
        case ast.Attribute(attr=name) if _is_self(value):
            yield from _kept(name, scopes)
        case ast.Attribute(attr=name) if name.isupper():
            yield from _named(name, scopes[:1])


def _part(part: ast.AST, scopes: Scopes) -> list[str]:
    """What may stand in one place of a text: also each value of an enumeration."""
    match part:
        case ast.Constant(value=text):
            return [str(text)]
        case ast.FormattedValue(value=ast.Attribute(value=ast.Name(id=name), attr="value")):
            return _values_of(name, scopes) or [GAP]
        case ast.FormattedValue(value=value):
            found = [*_reached(value, scopes)]
            texts = [one for one in found if isinstance(one, str)]
            return texts if texts and len(texts) == len(found) else [GAP]
        case _:
            return [GAP]


def _values_of(parameter: str, scopes: Scopes) -> list[str]:
    """The values of the enumeration that a parameter is of, by its annotation."""
    wanted = next((one.annotation for one in _parameters(scopes) if one.arg == parameter), None)
    module, _, name = ast.unparse(wanted).rpartition(".") if wanted else ("", "", "")
    kinds = [(path.stem, node) for path, tree in _modules().items() for node in tree.body if _is_class(node, name)]
    chosen = [node for stem, node in kinds if stem == module] or [node for _, node in kinds]
    return [
        one.value.value
        for node in chosen
        for one in getattr(node, "body", ())
        if isinstance(one, ast.Assign) and isinstance(one.value, ast.Constant) and isinstance(one.value.value, str)
    ]


def _parameters(scopes: Scopes) -> Iterator[ast.arg]:
    for scope in reversed(scopes):
        if isinstance(scope, Function):
            yield from (*scope.args.posonlyargs, *scope.args.args, *scope.args.kwonlyargs)


def _named(name: str, scopes: Scopes) -> Iterator[str | Sink]:
    """What a name may stand for: a parameter, a local, a constant of the module or of another."""
    for depth in range(len(scopes) - 1, 0, -1):
        scope = scopes[depth]
        if not isinstance(scope, Function):
            continue
        is_method = isinstance(scopes[depth - 1], ast.ClassDef)
        positional = [*scope.args.posonlyargs, *scope.args.args][is_method:]
        places = dict.fromkeys(scope.args.kwonlyargs) | {one: index for index, one in enumerate(positional)}
        if given := [one for one in places if one.arg == name]:
            yield from (Sink(scope.name, places[one], name, is_method) for one in given if _is_text(one))
            return
        if local := [one for target, one in _assigned(scope) if isinstance(target, ast.Name) and target.id == name]:
            yield from (found for one in local for found in _reached(one, scopes[: depth + 1]))
            return
    module = scopes[0]
    homes = [module] if name in _constants(module) else [one for one in _modules().values() if name in _constants(one)]
    yield from (found for home in homes for found in _reached(_constants(home)[name], (home,)))


def _kept(attribute: str, scopes: Scopes) -> Iterator[str | Sink]:
    """What an attribute of `self` may be, by all that its class assigns; what makes it may be the call of the class."""
    owner = next(scope for scope in reversed(scopes) if isinstance(scope, ast.ClassDef))
    inside = (*scopes[: scopes.index(owner)], owner)
    for method in owner.body:
        for target, value in _assigned(method):
            if isinstance(target, ast.Attribute) and target.attr == attribute and _is_self(target):
                found = _reached(value, (*inside, method))
                yield from (_made(one, owner) if isinstance(one, Sink) else one for one in found)


def _made(sink: Sink, owner: ast.ClassDef) -> Sink:
    return sink._replace(callee=owner.name, is_method=False) if sink.callee == "__init__" else sink


@cache
def _assigned(scope: ast.AST) -> list[tuple[ast.AST, ast.AST]]:
    """What is bound in a scope, and to what; a loop binds to each element."""
    return [*_bindings(scope)]


def _bindings(scope: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    for node in ast.walk(scope):
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                yield from zip(targets, values, strict=True)
            case ast.Assign(targets=[target], value=value):
                yield target, value
            case ast.AnnAssign(target=target, value=ast.AST() as value):
                yield target, value
            case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
                yield target, value
            case _:
                pass


@cache
def _constants(tree: ast.AST) -> dict[str, ast.AST]:
    body = tree.body if isinstance(tree, ast.Module) else []
    pairs = [pair for node in body if isinstance(node, ast.Assign | ast.AnnAssign) for pair in _assigned(node)]
    return {target.id: value for target, value in pairs if isinstance(target, ast.Name)}


def _is_class(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.ClassDef) and node.name == name


def _is_text(parameter: ast.arg) -> bool:
    return parameter.annotation is not None and "str" in ast.unparse(parameter.annotation)


def _is_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "self"
