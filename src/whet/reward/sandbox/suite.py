"""What a test suite holds, read from its source: what can fail in it, and which of its functions nobody calls.

Runs inside the sandbox's own processes too: only the standard library may be imported here.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import re
import sys
import types
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

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
        decided = [is_always_true(each) for each in node.values]
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
            count += sum(isinstance(each, Function) and is_test_function(each) for each in node.body)
        else:
            count += num_results(node)
    return count


def is_plain(tree: ast.Module) -> bool:
    """True for assertions and nothing else."""
    return bool(tree.body) and all(isinstance(each, ast.Assert) and not is_always_true(each.test) for each in tree.body)


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


def is_empty(function: Function) -> bool:
    """True for a placeholder: nothing but a docstring, `pass`, `...` or a bare `return`."""
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


def without_functions(tree: ast.Module, names: Collection[str]) -> ast.Module:
    """The module without these functions, as far as they stand at its top."""
    body = [node for node in tree.body if not (isinstance(node, Function) and node.name in names)]
    return ast.Module(body, tree.type_ignores)


def _without_body(statement: ast.If | ast.Try | ast.With) -> ast.AST:
    """The part of a block that is not one of its statements."""
    if isinstance(statement, ast.If):
        return statement.test
    return ast.Tuple([item.context_expr for item in statement.items] if isinstance(statement, ast.With) else [])


def _names_used(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)}


def imported_modules(tree: ast.AST) -> set[str]:
    """The top names of the modules that it imports."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").split(".")[0])
    return names - {""}


def expected_names(tests: str, known: set[str]) -> set[str]:
    """The names that tests use and nobody defines; where all are built in, the first one each statement calls."""
    return names_expected(outline(tests), known)


def names_expected(tests_outline: Mapping[str, Any], known: set[str]) -> set[str]:
    """The same, from the outline of the tests."""
    free = set(tests_outline["free"]) - known
    return free if free or tests_outline["called"] is None else set(tests_outline["called"])


def outline(tests: str) -> dict[str, Any]:
    """What is to be known of a suite before it runs: names it uses and does not define, names that its statements
    call (None where it defines something), modules it imports.
    """
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
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    free = {name for name in used - bound if not hasattr(builtins, name) and name not in MODULE_NAMES}
    called = {name for statement in tree.body for name in _called_names(statement)[:1]}
    defines = any(isinstance(node, Function | ast.ClassDef) for node in tree.body)
    imports = imported_modules(tree)
    return {
        **{"free": sorted(free), "called": None if defines else sorted(called), "imports": sorted(imports)},
        **{"callables": sorted(_names_as_functions(tree)), "replaced": sorted(replaced_names(tree, imports))},
        "functions": sorted(_names_called_only(tree)),
    }


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


def compiled(tree: ast.Module) -> types.CodeType:
    """The code of tests, with its assertions also where this interpreter itself runs without (`python -O`)."""
    code: types.CodeType = compile(tree, "<test>", "exec", dont_inherit=True, optimize=0)
    return code


def compiled_checks(tests: Iterable[str]) -> list[types.CodeType | None]:
    """The code of each test that is assertions and nothing else; None for others."""
    codes: list[types.CodeType | None] = []
    for tree in map(ast.parse, tests):
        codes.append(None)
        with contextlib.suppress(SyntaxError):  # what only a compiler finds
            codes[-1] = compiled(tree) if is_plain(tree) else None
    return codes


MODULE_NAMES = frozenset(("__file__", "__name__", "__doc__"))


def _called_names(statement: ast.stmt) -> list[str]:
    """The functions a statement calls by name, the outermost first."""
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
    return [call.func.id for call in calls if isinstance(call.func, ast.Name)]


def why_unscorable(tests: str) -> str:
    """Why a suite can judge nothing, as far as its source shows it; "" where it can."""
    tree = ast.parse(tests)
    if not tree.body:
        return "the tests are empty" if not tests.strip() else "the tests are only comments"
    if not holds_check(tree):
        return "nothing in the tests can fail: they hold no assertion"
    return ""
