"""The places of the package that mutants.py changes: listed, drawn, and found again in a later tree."""

from __future__ import annotations

import ast
import difflib
import keyword
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

COMPARISONS = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
OPERATORS = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Pow: "*"}
SKIPPED = ("kernels", "cuda", "gpu")  # run on a GPU only
PACKAGE = Path("src/whet")
AROUND = 2  # lines before and after that are kept with a mutant
LEAST = 2  # mutants of a room, however small
# how alike two functions must be to be the same one: of the same qualified name, of the same name, of another name
SAME_NAME, LIKE_NAME, OTHER_NAME = 0.3, 0.5, 0.75
SAME_PLACE = 0.6  # how alike the lines around a changed expression must be
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Scope:
    """A function, or a class where a place is in none of its functions."""

    path: str  # relative to the root of the tree
    name: str  # dotted, as __qualname__ without <locals>
    text: str

    @cached_property
    def words(self) -> list[str]:
        return words_of(self.text)


@dataclass(frozen=True)
class Mutant:
    scope: Scope
    line: int
    start: int  # offsets in the file's text
    end: int
    kind: str  # what is changed: "Lt", "Add", "If", "Constant"
    old: str
    new: str
    about: str
    nth: int  # among the same expressions changed in the same way in this scope
    at_import: bool  # evaluated once, when the module is imported
    lines: str
    before: str
    after: str

    @property
    def path(self) -> str:
        return self.scope.path

    @property
    def room(self) -> str:
        return room_of(self.path)

    @cached_property
    def around(self) -> list[str]:
        return words_of(f"{self.before}\n{self.lines}\n{self.after}")

    def record(self) -> dict[str, Any]:
        """What `found` needs to find it in another tree."""
        kept = {name: value for name, value in vars(self).items() if name not in ("scope", "around")}
        named = {"room": self.room, "path": self.path, "qualname": self.scope.name}
        return {**named, **kept, "scope": self.scope.text}


def from_record(record: dict[str, Any]) -> Mutant:
    kept = {name: value for name, value in record.items() if name not in ("room", "path", "qualname", "scope")}
    return Mutant(scope=Scope(record["path"], record["qualname"], record["scope"]), **kept)


def room_of(path: str) -> str:
    """The folder of the package that a file is in; "whet" for the modules beside the folders."""
    parts = Path(path).relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else PACKAGE.name


def mutants_of(path: Path, root: Path) -> Iterator[Mutant]:
    """Every place of a file that can be changed; texts, annotations and raised errors are left alone."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    place = path.relative_to(root).as_posix()
    seen: Counter[tuple[str, str, str]] = Counter()

    def offset(line: int, column: int) -> int:
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    def span(node: ast.expr | Function) -> tuple[int, int]:
        last = node.end_lineno or node.lineno
        return offset(node.lineno, node.col_offset), offset(last, node.end_col_offset or 0)

    def source(node: ast.expr | Function) -> str:
        return text[slice(*span(node))]

    def mutant(node: ast.expr, kind: object, new: str, about: str, scope: Scope, at_import: bool) -> Mutant:
        last = node.end_lineno or node.lineno
        name = kind if isinstance(kind, str) else type(kind).__name__
        seen[scope.name, name, source(node)] += 1
        return Mutant(
            scope,
            node.lineno,
            *span(node),
            name,
            source(node),
            new,
            about,
            seen[scope.name, name, source(node)],
            at_import,
            "".join(lines[node.lineno - 1 : last]).rstrip("\n"),
            "".join(lines[max(node.lineno - 1 - AROUND, 0) : node.lineno - 1]).rstrip("\n"),
            "".join(lines[last : last + AROUND]).rstrip("\n"),
        )

    def changes(node: ast.AST) -> Iterator[tuple[ast.expr, object, str, str]]:
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
            new = COMPARISONS[type(node.ops[0])]
            left, right = source(node.left), source(node.comparators[0])
            yield node, node.ops[0], f"({left}) {new} ({right})", f"{source(node)}  ->  {left} {new} {right}"
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS and not _is_text(node):
            new = OPERATORS[type(node.op)]
            left, right = source(node.left), source(node.right)
            yield node, node.op, f"(({left}) {new} ({right}))", f"{source(node)}  ->  {left} {new} {right}"
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
            inner = source(node.operand)
            yield node, node.op, f"({inner})", f"{source(node)}  ->  {inner}"
        if isinstance(node, ast.BoolOp):
            word, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            joined = f" {other} ".join(f"({source(each)})" for each in node.values)
            yield node, node.op, f"({joined})", f"{source(node)}  ->  {word} becomes {other}"
        if isinstance(node, ast.IfExp | ast.If) and not isinstance(node.test, ast.Compare | ast.BoolOp | ast.UnaryOp):
            yield node.test, "If", f"(not ({source(node.test)}))", f"if {source(node.test)}  ->  if not ..."
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
            yield node, node, repr(node.value + 1), f"{source(node)}  ->  {node.value + 1!r}"

    def visit(node: ast.AST, scope: Scope, at_import: bool) -> Iterator[Mutant]:
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert):
            return
        for change in changes(node):
            yield mutant(*change, scope, at_import)
        inner, body_at_import = scope, at_import
        if isinstance(node, Function):
            inner = Scope(place, f"{scope.name}.{node.name}".lstrip("."), source(node))
            body_at_import = at_import and isinstance(node, ast.ClassDef)
        elif isinstance(node, ast.Lambda):
            body_at_import = False
        for field, child in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            now = body_at_import if field == "body" else at_import
            for each in child if isinstance(child, list) else [child]:
                if isinstance(each, ast.AST):
                    yield from visit(each, inner, now)

    for node in ast.parse(text).body:
        if isinstance(node, Function):
            yield from visit(node, Scope(place, "", ""), True)


def _is_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(each, ast.JoinedStr) or (isinstance(each, ast.Constant) and isinstance(each.value, str))
        for each in ast.walk(node)
    )


def all_mutants(root: Path, rooms: Iterable[str] = ()) -> list[Mutant]:
    """Every mutant of the package, or of some of its rooms; what runs on a GPU only is left out."""
    wanted = set(rooms)
    paths = [path for path in sorted((root / PACKAGE).rglob("*.py")) if not any(word in path.stem for word in SKIPPED)]
    paths = [path for path in paths if not wanted or room_of(path.relative_to(root).as_posix()) in wanted]
    return [mutant for path in paths for mutant in mutants_of(path, root)]


def drawn(known: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """A sample with each room's share by its size, and at least LEAST from each room that has them."""
    rooms: defaultdict[str, list[Mutant]] = defaultdict(list)
    for mutant in known:
        rooms[mutant.room].append(mutant)
    shares = {room: max(LEAST, count * len(each) / len(known)) for room, each in rooms.items()}
    counts = {room: min(int(share), len(rooms[room])) for room, share in shares.items()}
    while sum(counts.values()) < min(count, len(known)):
        open_rooms = [room for room in sorted(rooms) if counts[room] < len(rooms[room])]
        counts[max(open_rooms, key=lambda room: shares[room] - counts[room])] += 1
    while sum(counts.values()) > count:  # the smallest rooms took more than their share
        counts[max(sorted(rooms), key=lambda room: counts[room] - count * len(rooms[room]) / len(known))] -= 1
    chance = random.Random(seed)
    return [mutant for room in sorted(rooms) for mutant in chance.sample(rooms[room], counts[room])]


class Tree:
    """The places of a tree, to find mutants of an earlier one in."""

    def __init__(self, root: Path) -> None:
        self.mutants = all_mutants(root)
        self.of_scope: defaultdict[Scope, list[Mutant]] = defaultdict(list)
        self.named: defaultdict[str, list[Scope]] = defaultdict(list)
        for mutant in self.mutants:
            self.of_scope[mutant.scope].append(mutant)
        for scope in self.of_scope:
            self.named[_last(scope.name)].append(scope)

    def find(self, mutant: Mutant) -> tuple[Mutant | None, str]:
        """The same change in this tree, and how it was found; or None, and why it is gone."""
        scope = self._scope(mutant.scope)
        found = self._in_scope(mutant, scope) if scope else None
        if scope and found:
            if scope.path == mutant.path and scope.name == mutant.scope.name:
                return found, "same place"
            return found, "moved" if scope.name == mutant.scope.name else f"{mutant.scope.name} became {scope.name}"
        if elsewhere := self._elsewhere(mutant):
            return elsewhere, f"{mutant.scope.name} was cut; the lines are in {elsewhere.scope.name}"
        if scope:
            return None, f"the expression is no longer in {scope.path}:{scope.name}"
        return None, f"there is no function like {mutant.scope.name} any more"

    def _scope(self, wanted: Scope) -> Scope | None:
        """The function it is in: by its name where that is told from others by its text, else by its text alone."""
        best, likeness = None, 0.0
        for scope in self.named[_last(wanted.name)]:
            needed = SAME_NAME if scope.name == wanted.name else LIKE_NAME
            alike = _alike(wanted.words, scope.words, max(needed, likeness))
            # two functions of one name and text: the one in the file of before
            score = alike + 0.05 * (scope.name == wanted.name) + 0.05 * (scope.path == wanted.path)
            if alike >= needed and score > likeness:
                best, likeness = scope, score
        if best:
            return best
        others = ((_alike(wanted.words, scope.words, OTHER_NAME), scope) for scope in self.of_scope)
        alike, other = max(others, key=lambda each: each[0], default=(0.0, None))
        return other if alike >= OTHER_NAME else None

    def _in_scope(self, mutant: Mutant, scope: Scope) -> Mutant | None:
        """The place whose expression and lines are most alike; names of variables may have changed."""
        best, likeness = None, 0.0
        for each in self.of_scope[scope]:
            if each.kind != mutant.kind or (mutant.kind == "Constant" and each.old != mutant.old):
                continue
            expression = _alike(_shape(mutant.old), _shape(each.old))
            around = _alike(mutant.around, each.around)
            score = expression + around + 0.02 * (each.nth == mutant.nth) + 0.02 * (each.old == mutant.old)
            if expression >= SAME_PLACE and around >= SAME_PLACE / 2 and score > likeness:
                best, likeness = each, score
        return best

    def _elsewhere(self, mutant: Mutant) -> Mutant | None:
        lines = mutant.lines.split()
        same = [each for each in self.mutants if each.kind == mutant.kind and each.old == mutant.old]
        same = [each for each in same if each.lines.split() == lines]
        alike, found = max(
            ((_alike(mutant.around, each.around), each) for each in same),
            key=lambda each: each[0],
            default=(0.0, None),
        )
        return found if alike >= SAME_PLACE else None


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _alike(left: list[str], right: list[str], least: float = 0.0) -> float:
    """From 0 to 1; 0 where it is below `least`, which is quicker to see."""
    matcher = difflib.SequenceMatcher(None, left, right, autojunk=False)
    if least and (matcher.real_quick_ratio() < least or matcher.quick_ratio() < least):
        return 0.0
    return matcher.ratio()


def words_of(text: str) -> list[str]:
    """The words and signs of a text that may be any part of a file."""
    return re.findall(r"\w+|[^\w\s]", text)


def _shape(expression: str) -> list[str]:
    """The tokens of an expression with its variables numbered in their order, so that renamed ones are alike."""
    numbers: dict[str, str] = {}
    words = words_of(expression)
    return [
        numbers.setdefault(word, f"name{len(numbers)}") if _is_name(word) and last != "." else word
        for last, word in zip(["", *words], words, strict=False)
    ]


def _is_name(word: str) -> bool:
    return word.isidentifier() and not keyword.iskeyword(word)
