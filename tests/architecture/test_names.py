"""Words that must not appear: methods where none is chosen, vague names, left-over notes, other machines."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from tests.support.source_tree import (
    FUNCTIONS,
    ROOT,
    Module,
    comments,
    docstring_nodes,
    name_words,
    package_modules,
    text_files,
    words_of,
    write_tree,
)

# Who chooses a method may name it; what trains with one (the loop, the loss, the trainers) never does.
NAMED_HERE = (
    "objective/presets/",
    "tools/pipelines/",
    "tools/studies/",
    "tools/advice/",
    "settings/",  # defaults per method, and what other packages call their settings
)
EXAMPLES_HERE = (
    "api/migration.py",
    "api/training.py",
    "cli/__init__.py",
    "cli/train.py",
    "cli/plan.py",
    "cli/runs.py",
    "cli/text.py",
    "__init__.py",
)  # docstrings and help texts may show a real command

VAGUE_FUNCTIONS = ("compute_", "get_", "do_", "handle_")
VAGUE_CLASSES = ("Manager", "Helper")
VAGUE_MODULES = {"util", "utils", "helper", "helpers", "misc"}
SHORT_WORDS = {"adv", "agg", "cfg", "est", "ctl"}

NOTE = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
MACHINE_PATH = re.compile(r"(?<![\w./~-])(/(?:root|work)(?![\w-])|/(?:home|Users)/\w+|[A-Z]:\\Users\\\w+)")
URL_HOST = re.compile(r"\b[a-z][a-z+]*://(?:[\w.:-]+@)?([\w.-]*\w)")
MIRROR = re.compile(
    r"(?i)(?<![\w.-])("
    r"(?:[\w-]+\.)*(?:artifactory|nexus|devpi|mirrors?|registry|hf-mirror|pypi|pythonhosted)(?:\.[\w-]+)*"
    r"\.(?:com|org|net|io|dev|cn|edu|ai)"
    r"|(?:ghcr|docker|quay)\.io"
    r"|(?:[\w-]+\.){2,}(?:internal|corp|lan|intranet)"
    r"|10(?:\.\d{1,3}){3}|(?:192\.168|172\.(?:1[6-9]|2\d|3[01]))(?:\.\d{1,3}){2}"
    r")(?![\w(-])"
)
# What each of these holds, in small letters: texts and lines without any of it are passed over.
SUSPECT = ("://", "/ro" + "ot", "/wo" + "rk", "/home/", "/users/", "\\users\\", "artifactory", "nexus", "devpi")
SUSPECT += ("mirror", "registry", "pypi", "pythonhosted", "ghcr.", "docker.", "quay.")
SUSPECT += (".internal", ".corp", ".lan", ".intranet", "10.", "192.168", "172.")
# Where a link may lead. A new host is a decision, so it is written down here.
HOSTS = {
    *("arxiv.org", "doi.org", "github.com", "huggingface.co", "pytorch.org", "docs.pytorch.org", "www.apache.org"),
    *(
        "www.w3.org",
        "www.arxiv.org",
        "docs.python.org",
        "example.com",
        "example.org",
        "localhost",
        "127.0.0.1",
        "proxy",
    ),
}


def method_words(names: Iterable[str]) -> set[tuple[str, ...]]:
    """Each method's name as the words an identifier would be made of."""
    return {tuple(name_words(name.replace(".", "").replace(" ", "_").replace("-", "_"))) for name in names}


def named_methods(package: Path, methods: set[tuple[str, ...]], pieces: set[str]) -> list[str]:
    """Where a method is named although none is chosen there: identifiers, strings, docstrings, comments and file names.

    `pieces` are the names of rules (a clip rule may carry the word of a method); they are no methods.
    """
    complaints = []
    starts: dict[str, list[tuple[str, ...]]] = {}
    for method in methods:
        starts.setdefault(method[0], []).append(method)

    @cache  # a name is used many times
    def named_in(text: str) -> set[tuple[str, ...]]:
        words = [word for token in re.findall(r"\w+", text) if token not in pieces for word in name_words(token)]
        return {
            method
            for at, word in enumerate(words)
            for method in starts.get(word, ())
            if tuple(words[at : at + len(method)]) == method
        }

    for module in package_modules(package):
        inside = module.path.relative_to(package).as_posix()
        if inside.startswith(NAMED_HERE):
            continue
        told = _told_to_users(module) if inside in EXAMPLES_HERE else set()
        texts = [(line, text) for line, text in words_of(module).identifiers if text not in pieces]
        texts += [(node.lineno, node.value) for node in words_of(module).strings if _position(node) not in told]
        texts += [(line, text) for line, text, _ in comments(module.text)]
        for line, text in [(1, module.path.stem), *texts]:
            complaints += [
                f"{module.at(line)} names the method {'_'.join(method)!r} in {text.strip()[:60]!r}"
                for method in named_in(text)
            ]
    return complaints


def _told_to_users(module: Module) -> set[tuple[int, int]]:
    """Where docstrings and `help=` texts stand."""
    tree = module.tree
    texts = docstring_nodes(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "help":
            texts |= {part for part in ast.walk(node.value) if isinstance(part, ast.Constant)}
    return {_position(node) for node in texts}


def _position(node: ast.Constant) -> tuple[int, int]:
    return node.lineno, node.col_offset


def vague_names(package: Path) -> list[str]:
    """Names that say nothing, or not enough."""
    complaints = []
    for module in package_modules(package):
        if VAGUE_MODULES & set(module.name.split(".")):
            complaints.append(f"{module.place}: name a module after what it holds")
        for line, name, kind in words_of(module).bound:
            if kind == "function" and not name.endswith("__") and name.lstrip("_").startswith(VAGUE_FUNCTIONS):
                complaints.append(f"{module.at(line)} defines {name}: name what it is, or what it does")
            elif kind == "class" and name.endswith(VAGUE_CLASSES):
                complaints.append(f"{module.at(line)} defines {name}: name what it is")
            if short := SHORT_WORDS & set(name_words(name)):
                complaints.append(f"{module.at(line)} names something {name}: write {', '.join(short)} out")
    return complaints


# Words of a private dialect, and the field's word for each. As whole words of identifiers, file names and prose.
DIALECT = {
    "reply": "completion",
    "replies": "completions",
    "cast": "models",
    "wish": "spec",
    "harvest": "rollout batch",
    "exam": "evaluator",
    "mend": "fix",
    "mends": "fixes",
    "lag": "staleness",
    "teller": "printer",
    "told": "summary",
    "pupil": "policy",
    "lessons": "dataset",
}


def private_words(package: Path) -> list[str]:
    """Names of a private dialect; a word that the outside world uses (a column, a format) stands in a string only."""
    complaints = []
    for module in package_modules(package):
        for line, name, _ in [(1, module.path.stem, "module"), *words_of(module).bound]:
            for word in DIALECT.keys() & set(name_words(name)):
                complaints.append(f"{module.at(line)} names something {name}: the field says {DIALECT[word]!r}")
    return complaints


def repeated_classes(package: Path) -> list[str]:
    """Class names with more than one meaning, private ones too: a reader who greps finds one thing."""
    places: dict[str, list[str]] = {}
    for module in package_modules(package):
        for line, name, kind in words_of(module).bound:
            if kind == "class":
                places.setdefault(name.lstrip("_"), []).append(module.at(line))
    return [f"{name} is defined in {' and '.join(found)}" for name, found in sorted(places.items()) if len(found) > 1]


def left_over_notes(root: Path) -> list[str]:
    """Notes to oneself: in the comments of Python files, anywhere in other text."""
    complaints = []
    for place, text in text_files(root):
        if place.endswith((".json", ".jsonl")) or not NOTE.search(text):
            continue
        lines = comments_of(place, text) if place.endswith(".py") else list(enumerate(text.splitlines(), 1))
        complaints += [f"{place}:{line} is left over: {said.strip()}" for line, said in lines if NOTE.search(said)]
    return complaints


def comments_of(place: str, text: str) -> list[tuple[int, str]]:
    docstrings = [(node.lineno, str(node.value)) for node in docstring_nodes(ast.parse(text, place))]
    return [(line, said) for line, said, _ in comments(text)] + docstrings


def commented_out_code(root: Path) -> list[str]:
    """Comments that stand alone and are Python: single lines, and whole blocks."""
    complaints = []
    for place, text in text_files(root):
        if not place.endswith(".py"):
            continue
        block: list[tuple[int, str]] = []
        lines = text.splitlines()
        for line, _, alone in [*comments(text), (0, "", True)]:
            if not alone:
                continue
            if block and line != block[-1][0] + 1:
                whole = "\n".join(said for _, said in block)
                hits = [at for at, said in block if looks_like_code(said)]
                if hits or (len(block) > 1 and looks_like_code(whole)):
                    complaints.append(f"{place}:{(hits or [block[0][0]])[0]} is commented-out code; delete it")
                block = []
            if line:
                block.append((line, lines[line - 1].strip().removeprefix("#").removeprefix(" ")))
    return complaints


def looks_like_code(comment: str) -> bool:
    """Conservative: whole statements only, and none that a sentence or a formula could be."""
    text = comment.strip()
    try:
        body = ast.parse(text + (" pass" if text.endswith(":") else "")).body
    except (SyntaxError, ValueError):
        return False
    return any(_is_statement(node) for node in body)


def _is_statement(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call | ast.Await | ast.Yield)
    if isinstance(node, ast.Return):
        return not isinstance(node.value, ast.Name | None)
    if isinstance(node, ast.AnnAssign):
        return node.value is not None
    simple = (ast.Assign, ast.AugAssign, ast.Import, ast.ImportFrom, ast.Raise, ast.Assert, ast.Delete)
    compound = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.ClassDef, *FUNCTIONS)
    return isinstance(node, (*simple, *compound))


def other_machines(root: Path) -> list[str]:
    """Absolute paths of somebody's machine, package indexes and mirrors, and links to hosts nobody decided on."""
    complaints = []
    for place, text in text_files(root):
        for number, line in enumerate(text.splitlines() if _is_suspect(text) else (), 1):
            if not _is_suspect(line):
                continue
            found = [f"the machine path {path}" for path in MACHINE_PATH.findall(line)]
            found += [f"the host {host}" for host in MIRROR.findall(line)]
            found += [f"the host {host}, which is not in HOSTS" for host in URL_HOST.findall(line) if not _public(host)]
            complaints += [f"{place}:{number} has {each}" for each in dict.fromkeys(found)]
    return complaints


def _is_suspect(text: str) -> bool:
    small = text.lower()
    return any(mark in small for mark in SUSPECT)


def _public(host: str) -> bool:
    return host in HOSTS or host.endswith((".test", ".invalid", ".example"))


def rows_and_pieces() -> tuple[set[tuple[str, ...]], set[str]]:
    """The methods' names and titles, and the names of the rules they are made of."""
    from whet.objective import AXES, PRESETS

    kinds = [kind for known in AXES.values() for kind in known.items()]
    pieces = {name for name, _ in kinds} | {kind.__name__ for _, kind in kinds}
    # `echo` is a method, and what every command prints with
    return method_words([*PRESETS, *(preset.title for preset in PRESETS.values())]) - {("echo",)}, pieces


def test_methods_are_named_where_one_is_chosen_only():
    methods, pieces = rows_and_pieces()
    assert ("grpo",) in methods and "ppo_clip" in pieces
    assert not (found := named_methods(ROOT / "src" / "whet", methods, pieces)), "\n".join(found)


def test_names_say_what_they_name():
    assert not (found := vague_names(ROOT / "src" / "whet")), "\n".join(found)


def test_names_are_the_fields_own():
    assert not (found := private_words(ROOT / "src" / "whet")), "\n".join(found)


def test_a_class_name_has_one_meaning():
    assert not (found := repeated_classes(ROOT / "src" / "whet")), "\n".join(found)


def test_private_words_and_repeated_classes_are_found(tmp_path):
    files = {
        "whet/a.py": "class Exam: pass\nreply_width = 1\n",
        "whet/b.py": "class _Exam: pass\nexample = relay = 1\n",
    }
    package = write_tree(tmp_path, files) / "whet"
    assert [each.split(":")[0] for each in private_words(package)] == ["whet/a.py", "whet/a.py", "whet/b.py"]
    assert repeated_classes(package) == ["Exam is defined in whet/a.py:1 and whet/b.py:1"]


def test_nothing_is_left_over():
    assert not (found := left_over_notes(ROOT) + commented_out_code(ROOT)), "\n".join(found)


def test_no_other_machine_is_named():
    assert not (found := other_machines(ROOT)), "\n".join(found)


def test_the_real_tree_is_read():
    places = {place for place, _ in text_files(ROOT)}
    assert {"pyproject.toml", "src/whet/types.py"} <= places


METHODS, PIECES = method_words(["ppo", "dr_grpo", "grpo", "Dr. GRPO", "reinforce"]), {"ppo_clip", "PPOClip"}


@pytest.mark.parametrize(
    "line",
    [
        "if method == 'grpo': pass",
        "def grpo_loss(): pass",
        "class GRPOTrainer: pass",
        "DRGRPO = DrGRPO = 1",
        "names = {'dr_grpo': 1}",
        "text = f'{x} of PPO/loss'",
        "x.ppo = 1",
        "f(use_ppo=True)",
        "from a import b as ppo",
        "x = 1  # as in Dr. GRPO",
        "def f():\n    '''As REINFORCE does.'''",
    ],
)
def test_a_named_method_is_found(tmp_path, line):
    write_tree(
        tmp_path, {"whet/training/rl_trainer.py": line + "\n", "whet/objective/presets/group.py": "GRPO = 'grpo'\n"}
    )
    found = named_methods(tmp_path / "whet", METHODS, PIECES)
    assert found and all(each.startswith("whet/training/rl_trainer.py:") for each in found)


def test_a_file_named_after_a_method_is_found(tmp_path):
    write_tree(tmp_path, {"whet/training/grpo.py": "", "whet/training/grouped.py": ""})
    (complaint,) = named_methods(tmp_path / "whet", METHODS, PIECES)
    assert complaint.startswith("whet/training/grpo.py:1 ")


def test_examples_rules_and_longer_words_are_no_named_methods(tmp_path):
    example = "'''Try `whet train grpo`.'''\n"
    fine = {
        "whet/__init__.py": example,
        "whet/cli/__init__.py": f"{example}def f(a=Option('-a', help='grpo ' 'or ppo')):\n    '''whet train grpo'''\n",
        "whet/objective/clip.py": "class PPOClip:\n    '''reinforcement'''\n    name = 'ppo_clip'  # supports\n",
    }
    write_tree(tmp_path, fine)
    assert named_methods(tmp_path / "whet", METHODS, PIECES) == []
    branch = "if method == 'grpo':\n    ppo = 1\n"
    write_tree(tmp_path, {"whet/cli/__init__.py": branch, "whet/data/__init__.py": example})
    assert len(named_methods(tmp_path / "whet", METHODS, PIECES)) == 3


@pytest.mark.parametrize(
    "line",
    [
        "def compute_loss(): pass",
        "def _get_rows(): pass",
        "class A:\n    async def handle_it(self): pass",
        "def do_it(): pass",
        "class WeightManager: pass",
        "class RowHelper: pass",
        "adv = 1",
        "def f(cfg): pass",
        "import config as cfg",
        "self.agg_mode = 1",
        "for est in x: pass",
        "ctl: int = 3",
    ],
)
def test_a_vague_name_is_found(tmp_path, line):
    (complaint,) = vague_names(write_tree(tmp_path, {"whet/a.py": line + "\n"}) / "whet")
    assert complaint.startswith("whet/a.py:")


def test_a_vague_module_is_found_and_good_names_pass(tmp_path):
    names = (
        "def __get__(self): pass\ndef getter(): best = advantage = aggregate = table.get_text()\nclass Managed: pass\n"
    )
    fine = write_tree(tmp_path / "fine", {"whet/text.py": names})
    assert vague_names(fine / "whet") == []
    bad = write_tree(tmp_path / "bad", {"whet/utils.py": "", "whet/helpers/a.py": "", "whet/data/misc.py": ""})
    assert len(vague_names(bad / "whet")) == 3


def test_notes_are_found(tmp_path):
    note = "TO" + "DO"
    bad = {"a.py": f"x = 1  # {note}: later\n", "b.md": f"- {note} write\n", "c.py": f"'''{'FIX' + 'ME'}'''\n"}
    assert len(left_over_notes(write_tree(tmp_path / "bad", bad))) == 3
    fine = {"a.py": f"x = {note!r}\n", "b.md": f"{note}S and AXXXA\n"}
    assert left_over_notes(write_tree(tmp_path / "fine", fine)) == []


@pytest.mark.parametrize(
    "code",
    ["x = f(y)", "import torch", "return a + b", "print(x)", "if a > b:", "loss = call(\n#     a,\n# )", "raise X(y)"],
)
def test_commented_out_code_is_found(tmp_path, code):
    root = write_tree(tmp_path, {"a.py": f"y = 1\n# {code}\nz = 2\n"})
    (complaint,) = commented_out_code(root)
    assert complaint.startswith("a.py:2")


def test_comments_are_those_that_python_sees():
    tricky = (
        "a = '#' + \"it's\"  # one\nb = r'\\'#'\n# two\n"
        'c = """\n# in a \\""" string \' """  # three\n'
        "d = ('x'  # four\n'#')\n"
    )
    for text in (tricky, Path(__file__).read_text("utf-8")):
        seen = [
            token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type == tokenize.COMMENT
        ]
        assert len(seen) >= 4
        assert comments(text) == [
            (token.start[0], token.string.lstrip("#").strip(), not token.line[: token.start[1]].strip())
            for token in seen
        ]


def test_prose_is_no_code(tmp_path):
    prose = [
        "the mean of equal rewards is that reward; the rounded sum would leave noise",
        "return early",
        "note: because",
        "for example:",
        "type: ignore[attr-defined]",
        "why (and when)",
        "[N, T]",
        "x",
        "1 - exp(-u)",
    ]
    lines = "".join(f"# {said}\n\n" for said in prose) + "x = 1  # y = 2\n"
    assert commented_out_code(write_tree(tmp_path, {"a.py": lines})) == []


SCHEME = "https:" + "//"  # in pieces, here and below, so that this file passes its own check


@pytest.mark.parametrize(
    "said",
    [
        "see /ro" + "ot/.cache",
        "cd /wo" + "rk",
        "`/ho" + "me/ann/data`",
        "'/Us" + "ers/ann'",
        f"pip install -i {SCHEME}nex" + "us.acme.com/simple",
        "host py" + "pi.org",
        f"{SCHEME}10.0" + ".0.7:8080/x",
        "HF_ENDPOINT=hf-mir" + "ror.com",
        "cache.acme.inter" + "nal",
        f"{SCHEME}unknown" + ".place/a",
    ],
)
def test_another_machine_is_found(tmp_path, said):
    found = other_machines(write_tree(tmp_path, {"docs/a.md": f"first\n{said}\n"}))
    assert found and all(each.startswith("docs/a.md:2 ") for each in found)


def test_public_links_and_relative_paths_pass(tmp_path):
    said = (
        "https://arxiv.org/abs/2402.03300 and <https://github.com/a/work/b>, ./work, a/home/b, /workers, ~/work, "
        "http://user@127.0.0.1:9/x, version 10.2.1, torch 2.13.0, registry, mirror.py, registry.items()"
    )
    assert other_machines(write_tree(tmp_path, {"a.md": said, "b.bin": "\0 /ro" + "ot"})) == []
