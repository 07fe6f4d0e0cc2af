"""The tests that may notice a change of a function: of files that import it, or what comes to it by a few calls."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path

PACKAGE = "src/whet"
SUPPORT = "tests/support"  # whoever imports from here calls what that calls
MOST_CALLS = 6  # between a changed function and what a test imports
NEXT_CALL = 0.3  # what a name counts, against one that is a call closer
ALIKE = 5  # letters of a module's or a room's name in that of a file
OTHER_TESTS = ("architecture", "gpu", "peers")  # of the text of the tree, of a GPU, of other packages
TESTS_OF_ROOMS = {"objective": ("oracle", "properties")}  # folders of tests that are a room's own, besides its name
Name = tuple[str, str]  # a module and what it calls a function, a class or a constant
Function = ast.FunctionDef | ast.AsyncFunctionDef


class SourceFile:
    """What a file defines and imports, and the words of each."""

    def __init__(self, path: str, text: str) -> None:
        self.module = ".".join(Path(path).with_suffix("").parts).removeprefix("src.").removesuffix(".__init__")
        self.is_package = path.endswith("__init__.py")
        self.text, self.tree = text, ast.parse(text)

    @cached_property
    def definitions(self) -> list[tuple[frozenset[str], frozenset[str]]]:
        """(names, words) of each function, with the class it is in and its commands, and of each constant."""
        found: list[tuple[frozenset[str], frozenset[str]]] = []

        def visit(node: ast.AST, around: frozenset[str]) -> None:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.ClassDef):
                    bases = frozenset().union(*map(words_of, [*child.bases, *child.decorator_list]))
                    found.append((around | {child.name}, bases))
                    visit(child, around | {child.name})
                elif isinstance(child, Function):
                    found.append((around | {child.name} | commands_of(child), words_of(child)))
                elif isinstance(child, ast.Assign | ast.AnnAssign):
                    targets = child.targets if isinstance(child, ast.Assign) else [child.target]
                    names = frozenset(each.id for each in targets if isinstance(each, ast.Name))
                    found.append((around or names, words_of(child)))
                else:
                    visit(child, around)

        visit(self.tree, frozenset())
        return found

    @cached_property
    def imports(self) -> dict[str, Name]:
        """What each imported name stands for, wherever in the file it is imported."""
        found: dict[str, Name] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):  # `import whet`, whose functions are asked of it
                found |= {each.asname or each.name: ("", each.name) for each in node.names}
            elif isinstance(node, ast.ImportFrom):
                source = node.module or ""
                if node.level:
                    parts = self.module.split(".")
                    inside = parts[: len(parts) + self.is_package - node.level]
                    source = ".".join([*inside, *filter(None, [node.module])])
                found |= {each.asname or each.name: (source, each.name) for each in node.names}
        return found

    @cached_property
    def words(self) -> frozenset[str]:
        """All that its text is made of."""
        return frozenset(re.findall(r"\w+", self.text))

    @cached_property
    def quoted(self) -> frozenset[str]:
        """Its texts: the words of commands among them."""
        nodes = (node for node in ast.walk(self.tree) if isinstance(node, ast.Constant))
        return frozenset(word for node in nodes if isinstance(node.value, str) for word in node.value.split()[:3])


def dotted(source: Name) -> str:
    """What an import is called where it is a module."""
    return ".".join(filter(None, source))


def words_of(node: ast.AST) -> frozenset[str]:
    """The names and attributes in it."""
    inner = list(ast.walk(node))
    names = {each.id for each in inner if isinstance(each, ast.Name)}
    return frozenset(names | {each.attr for each in inner if isinstance(each, ast.Attribute)})


def commands_of(function: Function) -> frozenset[str]:
    """What a shell calls it: `evaluate` is registered as "eval"."""
    for each in function.decorator_list:
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr == "command":
            given = [word.value for word in each.args if isinstance(word, ast.Constant)]
            return frozenset(f"$ {word}" for word in given or [function.name.replace("_", "-")])
    return frozenset()


class NearTests:
    """Of a tree, whose files are read once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._files: dict[str, SourceFile] = {}
        self._reached: dict[tuple[str, str], dict[Name, int]] = {}
        self._exported: defaultdict[Name, set[Name]] = defaultdict(set)

    def file(self, path: str) -> SourceFile:
        if path not in self._files:
            self._files[path] = SourceFile(path, (self.root / path).read_text("utf-8"))
        return self._files[path]

    @cached_property
    def users(self) -> dict[Name, set[Name]]:
        """Who uses a name, in the package and in what tests share; other modules have it under a name of their own."""
        found: defaultdict[Name, set[Name]] = defaultdict(set)
        paths = sorted(path for folder in (PACKAGE, SUPPORT) for path in (self.root / folder).rglob("*.py"))
        files = [self.file(path.relative_to(self.root).as_posix()) for path in paths]
        modules = {file.module for file in files}
        for file in files:
            inner = {local: module for local, source in file.imports.items() if (module := dotted(source)) in modules}
            for names, words in file.definitions:
                mine = {(file.module, name) for name in names}
                for word in words:
                    found[file.imports.get(word, (file.module, word))] |= mine
                    if word in inner:  # a module, and what is asked of it
                        for asked in words:
                            found[inner[word], asked] |= mine
            for local, source in file.imports.items():
                self._exported[source].add((file.module, local))
        return found

    def reached(self, path: str, qualname: str) -> dict[Name, int]:
        """What comes to a function, by how many calls: itself and its class by none."""
        if (path, qualname) not in self._reached:
            users, module = self.users, self.file(path).module
            found: dict[Name, int] = {}
            new = {(module, name) for name in qualname.split(".")}
            for calls in range(MOST_CALLS + 1):
                new |= {other for each in new for other in self._exported.get(each, ())}
                found |= dict.fromkeys(new, calls)
                new = {user for each in new for user in users.get(each, ())} - found.keys()
            self._reached[path, qualname] = found
        return self._reached[path, qualname]

    def in_test(self, file: str, path: str, qualname: str) -> dict[str, int]:
        """The words of a test file that come to a function, by how many calls."""
        test, reached = self.file(file), self.reached(path, qualname)
        modules = {module for module, _ in reached}
        found = {local: reached[source] for local, source in test.imports.items() if source in reached}
        for local, source in test.imports.items():
            if (module := dotted(source)) in modules:
                asked = re.findall(rf"\b{re.escape(local)}\.(\w+)", test.text)
                found |= {each: reached[module, each] for each in asked if (module, each) in reached}
        for (_, name), calls in reached.items():
            if name.startswith("$ ") and name[2:] in test.quoted:
                found[name[2:]] = calls
        return found

    def files(self, path: str, qualname: str, files: Iterable[str]) -> list[str]:
        """The test files, the likeliest first."""
        inner = Path(path).relative_to("src").with_suffix("")
        of_room = TESTS_OF_ROOMS.get(inner.parts[1], ())
        folders, name = {*inner.parts[1:-1], *of_room}, qualname.rpartition(".")[2]

        def score(file: str) -> float:
            near = len(folders.intersection(Path(file).parts[1:-1]))
            alike = any(part[:ALIKE] in file for part in inner.parts[1:] if len(part) >= ALIKE)
            own = Path(file).stem.removeprefix("test_") == inner.name or Path(file).parts[1] in of_room
            calls = self.in_test(file, path, qualname)
            # a word that is another thing's name elsewhere
            names = name in calls or (inner.parts[-2] in Path(file).parts and name in self.file(file).words)
            return 2 * names + sum(NEXT_CALL**each for each in calls.values()) + own + 0.05 * alike + 0.1 * near

        scores = {file: score(file) for file in files if Path(file).parts[1] not in OTHER_TESTS}
        return sorted((file for file, found in scores.items() if found), key=lambda file: (-scores[file], file))


def calls_from(text: str, known: Mapping[str, int]) -> int:
    """How many calls the text of a test is away from a function, by the words that come to it; the most without any."""
    return min((known[word] for word in set(re.findall(r"\w+", text)) & known.keys()), default=MOST_CALLS + 1)
