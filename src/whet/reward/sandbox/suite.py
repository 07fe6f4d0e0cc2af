"""What a test suite holds, read from its source once per prompt, and the code that the process of the tests runs.

All that a source shows is worked out by the trainer: what can fail, which functions nobody calls, which names the code
must have. Every assertion of the compiled program is recorded (`AssertionRecorder`).
"""

from __future__ import annotations

import ast
import builtins
import functools
import re
import sys
import types
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from whet.reward.sandbox.suite_runner import PreparedSuite, expected_names

# calls that can end in a failure without an `assert` of their own
CHECKING_CALL = re.compile(r"assert|raises|warns|fail|exit|expect|check|verify", re.IGNORECASE)
# what people call the module with the code that is tested
CODE_MODULES = frozenset(
    (
        *("solution", "solutions", "candidate", "main", "submission", "answer", "implementation", "program", "task"),
        *("module", "my_module", "mymodule", "my_code", "your_module", "your_code", "your_solution", "my_solution"),
    )
)
# what a test may set up for a program, by the names that say so
READ = {
    "environ": "os.environ",
    "setenv": "os.environ",
    "delenv": "os.environ",
    "argv": "sys.argv",
    "stdin": "sys.stdin",
}
DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.\w+)+")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def holds_check(tree: ast.AST) -> bool:
    """True where something in it can fail: an assertion, a `raise`, a call such as `self.assertEqual`."""
    return any(_is_check(node) for node in ast.walk(tree))


def _is_check(node: ast.AST) -> bool:
    if isinstance(node, ast.Assert):
        return not is_always_true(node.test)
    if isinstance(node, ast.Call):
        return CHECKING_CALL.search(_called_name(node)) is not None
    return isinstance(node, ast.Raise)


def is_always_true(node: ast.expr) -> bool:
    """True where a condition holds whatever the code does: `True`, `(f(1) == 2, "message")`, `f(1) == 2 or True`."""
    if isinstance(node, ast.Constant):
        return bool(node.value)
    if isinstance(node, ast.Tuple):
        return bool(node.elts)
    if isinstance(node, ast.BoolOp):
        decided = [is_always_true(value) for value in node.values]
        return any(decided) if isinstance(node.op, ast.Or) else all(decided)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return isinstance(node.operand, ast.Constant) and not node.operand.value
    return False


def is_always_false(node: ast.expr) -> bool:
    """True for the `False` of `assert False`: it says that the line must not be reached."""
    return isinstance(node, ast.Constant) and not node.value


def is_asserting_call(node: ast.Expr) -> bool:
    """True for a statement such as `self.assertEqual(...)`."""
    return isinstance(node.value, ast.Call) and _called_name(node.value).lower().startswith("assert")


def is_asserting_context(item: ast.withitem) -> bool:
    """True for `with pytest.raises(...)` and its like."""
    call = item.context_expr
    return isinstance(call, ast.Call) and re.search(r"raises|warns", _called_name(call), re.IGNORECASE) is not None


def holds_assertion(tree: ast.AST) -> bool:
    """True where it holds a check whose passing can be seen: any but a bare `raise` and `assert False`."""
    return any(
        (isinstance(node, ast.Assert) and not is_always_true(node.test) and not is_always_false(node.test))
        or (isinstance(node, ast.Expr) and is_asserting_call(node))
        or (isinstance(node, ast.With) and any(map(is_asserting_context, node.items)))
        for node in ast.walk(tree)
    )


def _called_name(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def num_results(tree: ast.AST) -> int:
    """How many results a program gives at least: one per test function or method, and one per assertion elsewhere."""
    count = 0
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function) and is_test_function(node):
            count += 1
        elif isinstance(node, ast.Assert):
            count += not is_always_true(node.test)
        elif isinstance(node, ast.ClassDef):
            count += sum(isinstance(statement, Function) and is_test_function(statement) for statement in node.body)
        else:
            count += num_results(node)
    return count


def top_level(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module, those inside its `if`, `try` and `with` blocks too."""
    for statement in body:
        yield statement
        for part in ("body", "orelse", "finalbody", "handlers"):
            if isinstance(statement, ast.If | ast.Try | ast.With):
                for inner in getattr(statement, part, ()):
                    yield from top_level(inner.body if isinstance(inner, ast.ExceptHandler) else [inner])


def functions_of(tree: ast.Module) -> dict[str, Function]:
    """The functions at the top of a module, by name."""
    return {node.name: node for node in top_level(tree.body) if isinstance(node, Function)}


def is_test_name(name: str) -> bool:
    """True for names of tests."""
    return name.startswith("test")


def is_test_function(function: Function) -> bool:
    """True for a test that is more than a placeholder."""
    return is_test_name(function.name) and not is_empty(function)


def _is_placeholder(function: Function) -> bool:
    """True for a test with nothing in it."""
    is_fixture = any("fixture" in ast.unparse(decorator) for decorator in function.decorator_list)
    return is_test_name(function.name) and is_empty(function) and not is_fixture


def is_empty(function: Function) -> bool:
    """True for nothing but a docstring, `pass`, `...` or a bare `return`."""
    return all(
        isinstance(statement, ast.Pass)
        or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        or (
            isinstance(statement, ast.Return) and (statement.value is None or isinstance(statement.value, ast.Constant))
        )
        for statement in function.body
    )


def uncalled_checks(tree: ast.Module) -> list[Function]:
    """Functions of a module that lead to a check and that nothing in it calls, test functions aside."""
    functions = functions_of(tree)
    checking = {name for name, function in functions.items() if holds_check(function)}
    while True:
        more = {
            name for name, function in functions.items() if name not in checking and _names_used(function) & checking
        }
        if not more:
            break
        checking |= more
    # a name that a function uses in its own body alone is called by nobody
    used: set[str] = set()
    for statement in top_level(tree.body):
        if isinstance(statement, Function):
            used |= _names_used(statement) - {statement.name}
        elif not isinstance(statement, ast.If | ast.Try | ast.With):
            used |= _names_used(statement)
        else:
            used |= _names_used(_without_body(statement))
    return [
        function
        for name, function in functions.items()
        if name in checking and name not in used and not is_test_name(name)
    ]


def _without_body(statement: ast.If | ast.Try | ast.With) -> ast.AST:
    """The part of a block that is not one of its statements."""
    if isinstance(statement, ast.If):
        return statement.test
    return ast.Tuple([item.context_expr for item in statement.items] if isinstance(statement, ast.With) else [])


def _names_used(node: ast.AST) -> set[str]:
    return {name.id for name in ast.walk(node) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Load)}


def imported_modules(tree: ast.AST) -> set[str]:
    """The top names of the modules that it imports."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").split(".")[0])
    return names - {""}


def _names_called_only(tree: ast.AST) -> set[str]:
    """Names of functions by convention that tests call and use in no other way."""
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    called = {id(node) for node in calls if isinstance(node, ast.Name)}
    used = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    otherwise = {node.id for node in used if id(node) not in called}
    return {node.id for node in used if not node.id[:1].isupper()} - otherwise


def _names_as_functions(tree: ast.AST) -> set[str]:
    """The names that tests call, or hand to a function of their own."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    own = {node.name for node in ast.walk(tree) if isinstance(node, Function)}
    handed = [part for call in calls if _called_name(call) in own for part in call.args]
    return {_called_name(call) for call in calls} | {part.id for part in handed if isinstance(part, ast.Name)}


def replaced_names(tree: ast.AST, imports: Collection[str]) -> set[str]:
    """What tests replace in modules, such as `builtins.input`: by a patch, a `setattr` or an assignment; and what
    programs read of their surroundings, where the tests speak of it.
    """
    names = {READ[node.attr] for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in READ}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {ast.unparse(target) for target in targets if isinstance(target, ast.Attribute)}
        elif isinstance(node, ast.Call) and _called_name(node) in ("patch", "object", "dict", "setattr", "delattr"):
            texts = [part.value for part in node.args[:2] if isinstance(part, ast.Constant)]
            owners = [ast.unparse(part) for part in node.args[:1] if isinstance(part, ast.Name | ast.Attribute)]
            names.add(".".join(map(str, [*owners, *texts][: 1 + len(owners)])))
    known = ({*imports, *sys.stdlib_module_names, "__main__"} - CODE_MODULES) | {"__main__"}
    dotted = {name for name in names if DOTTED.fullmatch(name) and name.split(".")[0] in known}
    return dotted - {"sys.stdout", "sys.stderr"}


def plain_calls(
    tests: Iterable[str], names: Collection[str]
) -> list[tuple[str, list[Any], dict[str, Any], Any]] | None:
    """(function, arguments, named arguments, expected value) of tests that are all `assert f(1, key="a") == [2]`: one
    of these names, called with literals, compared with a literal. None where one of them is more than that.
    """
    calls = []
    for test in tests:
        body = ast.parse(test).body
        comparison = body[0].test if len(body) == 1 and isinstance(body[0], ast.Assert) else None
        if not isinstance(comparison, ast.Compare) or len(comparison.ops) != 1:
            return None
        call = comparison.left
        if not isinstance(comparison.ops[0], ast.Eq) or not isinstance(call, ast.Call):
            return None
        if not isinstance(call.func, ast.Name) or call.func.id not in names:
            return None
        try:
            arguments = [ast.literal_eval(argument) for argument in call.args]
            named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg}
            expected = ast.literal_eval(comparison.comparators[0])
        except (ValueError, TypeError, SyntaxError):
            return None
        if len(named) < len(call.keywords):
            return None
        calls.append((call.func.id, arguments, named, expected))
    return calls


@dataclass(frozen=True)
class Suite:
    """What the source of tests shows."""

    free: frozenset[str]  # names that it uses and does not define
    called: frozenset[str]  # the first name that each statement calls; none where it defines something
    imports: frozenset[str]  # modules, by their top names
    callables: frozenset[str]  # names that it calls, or hands to a function of its own
    functions: frozenset[str]  # of these, by convention, functions: it uses them in no other way
    replaced: frozenset[str]  # such as `builtins.input`: what it puts something else into
    num_results: int  # that it gives at least
    why_unscorable: str  # why it can judge nothing; "" where it can

    def expected_names(self, known: Collection[str] = ()) -> set[str]:
        """The names that the code must have; where all are built in, those that the statements call."""
        return expected_names(self.free, self.called, known)


@functools.lru_cache(maxsize=1 << 14)
def read_suite(tests: str) -> Suite:
    """What is to be known of tests before they run."""
    tree = ast.parse(tests)
    bound: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
    free = {name for name in _names_used(tree) - bound if not hasattr(builtins, name) and name not in MODULE_NAMES}
    defines = any(isinstance(node, Function | ast.ClassDef) for node in tree.body)
    called = set() if defines else {name for statement in tree.body for name in _called_names(statement)[:1]}
    imports = imported_modules(tree)
    return Suite(
        frozenset(free),
        frozenset(called),
        frozenset(imports),
        frozenset(_names_as_functions(tree)),
        frozenset(_names_called_only(tree)),
        frozenset(replaced_names(tree, imports)),
        num_results(tree),
        _why_unscorable(tests, tree),
    )


MODULE_NAMES = frozenset(("__file__", "__name__", "__doc__"))


def _called_names(statement: ast.stmt) -> list[str]:
    """The functions a statement calls by name, the outermost first."""
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
    return [call.func.id for call in calls if isinstance(call.func, ast.Name)]


def _why_unscorable(tests: str, tree: ast.Module) -> str:
    if not tree.body:
        return "the tests are empty" if not tests.strip() else "the tests are only comments"
    return "" if holds_check(tree) else "nothing in the tests can fail: they hold no assertion"


@functools.lru_cache(maxsize=1 << 14)
def prepared_suite(text: str, is_one_test: bool = False) -> PreparedSuite:
    """A test program, compiled; one that only a compiler refuses raises what the compiler said. Of a program that is
    one test, nothing but assertions, none needs to be recorded.
    """
    tree = ast.parse(text)
    uncalled = {function.name: holds_assertion(function) for function in uncalled_checks(tree)}
    others = [node for node in tree.body if not (isinstance(node, Function) and node.name in uncalled)]
    candidates = [name for name, function in functions_of(tree).items() if _takes_candidate(function, tree)]
    is_plain = bool(tree.body) and all(
        isinstance(node, ast.Assert) and not is_always_true(node.test) for node in tree.body
    )
    known: dict[str, Any] = {
        "holds_check": holds_check(tree),
        "is_one_test": is_one_test,
        "is_plain": is_one_test and is_plain,
        "tests": [name for name, function in functions_of(tree).items() if is_test_function(function)],
        "placeholders": [name for name, function in functions_of(tree).items() if _is_placeholder(function)],
        "classes": [node.name for node in top_level(tree.body) if isinstance(node, ast.ClassDef)],
        "uncalled": uncalled,
        "candidates": candidates,
        "least": num_results(tree),
        "has_assertions": holds_assertion(ast.Module(others, [])),
        "uses_pytest": _uses_pytest(tree, candidates),
    }
    try:
        code = compiled(tree if known["is_plain"] else AssertionRecorder().visit(tree))
    except SyntaxError as error:
        code = raising(error)
    return PreparedSuite(code=code, **known)


def compiled(tree: ast.Module) -> types.CodeType:
    """The code of tests, with its assertions also where this interpreter itself runs without (`python -O`)."""
    code: types.CodeType = compile(tree, "<test>", "exec", dont_inherit=True, optimize=0)
    return code


def raising(error: Exception) -> types.CodeType:
    """Code that raises this error."""
    return compiled(ast.parse(f"raise {type(error).__name__}({str(error)!r})"))


def _takes_candidate(function: Function, tree: ast.Module) -> bool:
    """True for a test whose only parameter is the code's function: one that it calls and that no fixture gives."""
    names = _parameters(function)
    if not is_test_name(function.name) or len(names) != 1 or function.decorator_list or names[0] in functions_of(tree):
        return False
    return names[0] == "candidate" or any(names[0] in _called_names(statement) for statement in function.body)


def _parameters(function: Function) -> list[str]:
    """The parameters that somebody must give."""
    signature = function.args
    positional = [*signature.posonlyargs, *signature.args]
    needed = [*positional[: len(positional) - len(signature.defaults)]]
    needed += [
        parameter
        for parameter, default in zip(signature.kwonlyargs, signature.kw_defaults, strict=True)
        if default is None
    ]
    return [parameter.arg for parameter in needed]


def _uses_pytest(tree: ast.Module, candidates: Collection[str]) -> bool:
    """True where tests are pytest's to run: by its marks and fixtures, or as methods of a class without a base.
    Functions that only use `pytest.raises` and its like are called as they are.
    """
    functions, defined = (
        functions_of(tree),
        [node for node in ast.walk(tree) if isinstance(node, Function | ast.ClassDef)],
    )
    tests = [function for name, function in functions.items() if is_test_name(name) and name not in candidates]
    classes = [node for node in top_level(tree.body) if isinstance(node, ast.ClassDef) and node.name.startswith("Test")]
    return (
        any(PYTEST_DECORATOR.search(ast.unparse(decorator)) for node in defined for decorator in node.decorator_list)
        or not PYTEST_SETUP.isdisjoint(functions)
        or any(isinstance(node, ast.Name) and node.id == "pytestmark" for node in ast.walk(tree))
        or any(_parameters(test) for test in tests)
        or any(num_results(node) for node in classes if "TestCase" not in ast.unparse(ast.Tuple(node.bases)))
    )


PYTEST_SETUP = frozenset(("setup_module", "teardown_module", "setup_function", "teardown_function"))
PYTEST_DECORATOR = re.compile(r"\b(?:fixture|mark)\b")


class AssertionRecorder(ast.NodeTransformer):
    """Every assertion becomes a recorded one that does not stop the rest, every test function a recorded test."""

    def __init__(self) -> None:
        self.num_inside = 0  # functions and classes around a node
        self.num_tries = 0

    def visit_Assert(self, node: ast.Assert) -> Any:
        """Replace an assertion by a call that records its outcome; one that is always true is dropped."""
        if self.num_tries:
            return _within("__tried__", node)
        return ast.copy_location(ast.Pass(), node) if is_always_true(node.test) else _within("__log__", node)

    def visit_Expr(self, node: ast.Expr) -> Any:
        """A bare call such as `numpy.testing.assert_allclose(...)` is an assertion too."""
        self.generic_visit(node)
        return _within("__tried__" if self.num_tries else "__log__", node) if is_asserting_call(node) else node

    def visit_With(self, node: ast.With) -> Any:
        """`with pytest.raises(...)` is one as a whole."""
        self.generic_visit(node)
        if not any(is_asserting_context(item) for item in node.items):
            return node
        return _within("__tried__" if self.num_tries else "__log__", node)

    def visit_Try(self, node: ast.Try) -> Any:
        """Treat assertions inside `try` as steps of the test around them."""
        self.num_tries += 1
        self.generic_visit(node)
        self.num_tries -= 1
        return node

    def _visit_scope(self, node: Function | ast.ClassDef) -> Any:
        tries, self.num_tries = self.num_tries, 0
        self.num_inside += 1
        is_test = isinstance(node, Function) and is_test_function(node)
        must_reach = holds_assertion(node)
        self.generic_visit(node)
        self.num_inside -= 1
        self.num_tries = tries
        if is_test:  # a method is a test of its class's framework
            name = "" if self.num_inside else node.name
            context = ast.withitem(_call("__test__", ast.Constant(must_reach), ast.Constant(name)))
            node.body = [ast.copy_location(ast.With(items=[context], body=node.body), node)]
            ast.fix_missing_locations(node)
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _visit_scope


def _within(context: str, node: ast.stmt) -> ast.stmt:
    recorded = ast.With(items=[ast.withitem(_call(context))], body=[node])
    return ast.fix_missing_locations(ast.copy_location(recorded, node))


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])
