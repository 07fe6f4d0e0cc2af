"""What the pages say is so: names are documented, links lead somewhere, commands, settings and paths exist."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.support.markdown_pages import SHELLS, Page, commands, inline_code, links, page, pages
from tests.support.source_tree import FUNCTIONS, ROOT, Module, comments, package_modules, write_tree

PUBLIC = ("whet", "whet.objective")
REFRESH = "python -m whet.pages.methods"
OWN_PATH = re.compile(r"(?<![\w./~<-])((?:whet|tests|recipes|docs|examples|benchmarks)/[\w./*{},-]*[\w/*}])(?!\w*[<>])")

Resolve = Callable[[str, Mapping[str, Any]], object]
Parse = Callable[[list[str]], object]


def undocumented(package: Path, name: str) -> list[str]:
    """Public names of a module without a docstring; a constant needs a comment on its line or above it."""
    modules = {module.name: module for module in package_modules(package)}
    home = modules[name]
    public = next(ast.literal_eval(node.value) for node in home.tree.body if _binds(node, "__all__"))
    complaints = []
    for each in public:
        if each.startswith("__"):
            continue
        module = modules.get(_origin(home, each), home)
        node = next((node for node in reversed(module.tree.body) if _binds(node, each)), None)  # after its overloads
        if node is None:
            complaints.append(f"{home.place}: {each} is public but defined nowhere")
        elif not _documented(module, node):
            what = "docstring" if isinstance(node, (ast.ClassDef, *FUNCTIONS)) else "comment that says what it holds"
            complaints.append(f"{module.at(node.lineno)} {each} is public and has no {what}")
    return complaints


def _binds(node: ast.stmt, name: str) -> bool:
    if isinstance(node, (ast.ClassDef, *FUNCTIONS)):
        return node.name == name
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return any(getattr(target, "id", None) == name for target in targets)


def _origin(module: Module, name: str) -> str:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and node.module and any(alias.name == name for alias in node.names):
            return node.module
    return module.name


def _documented(module: Module, node: ast.stmt) -> bool:
    if isinstance(node, (ast.ClassDef, *FUNCTIONS)):
        return bool(ast.get_docstring(node))
    lines = range(node.lineno - 1, (node.end_lineno or node.lineno) + 1)
    said = [text for line, text, alone in comments(module.text) if line in lines and (alone == (line < node.lineno))]
    return any(not text.startswith(("type:", "noqa", "pragma")) for text in said)


def broken_links(root: Path) -> list[str]:
    """Relative links to files that do not exist."""
    complaints = []
    for each in pages(root):
        for line, target in links(each):
            file = target.split("#")[0].split("?")[0]
            if not file or re.match(r"[a-z][a-z+.-]*:", target):
                continue
            place = root / file.lstrip("/") if file.startswith("/") else each.path.parent / file
            if not place.exists():
                complaints.append(f"{each.place}:{line} links to {target}, which does not exist")
    return complaints


def missing_paths(root: Path) -> list[str]:
    """Paths of the project in inline code that do not exist; a pattern must match something."""
    complaints = []
    for each in pages(root):
        for line, code in inline_code(each):
            for path in OWN_PATH.findall(code):
                if not any(root.glob(path.rstrip("/"))):
                    complaints.append(f"{each.place}:{line} names {path}, which does not exist")
    return complaints


def headless_tables(root: Path) -> list[str]:
    """Rows of a table that no head stands over, which are shown as plain text."""
    complaints = []
    for each in pages(root):
        lines = dict(each.prose)
        for number, line in lines.items():
            starts = line.startswith("|") and not lines.get(number - 1, "").startswith("|")
            if starts and not re.fullmatch(r"\|[-:| ]+\|", lines.get(number + 1, "")):
                complaints.append(f"{each.place}:{number} is a row of a table without a head")
    return complaints


def wrong_settings(root: Path, resolve: Resolve) -> list[str]:
    """TOML blocks that do not parse or, where they name a method, do not resolve."""
    complaints = []
    for each in pages(root):
        for block in each.blocks:
            if block.language != "toml":
                continue
            try:
                values = tomllib.loads(block.text)
                if "method" in values:
                    resolve(str(values["method"]), values)
            except Exception as error:
                complaints.append(f"{each.place}:{block.line} has TOML that fails: {error}")
    return complaints


def wrong_commands(root: Path, parse: Parse) -> list[str]:
    """`whet ...` commands in shell blocks that the command line does not take."""
    complaints = []
    for each, line, words in shell_commands(root):
        if words[0] == "whet":
            try:
                parse(words[1:])
            except Exception as error:
                said = str(error) or type(error).__name__
                complaints.append(f"{each.place}:{line} `{' '.join(words)}` fails: {said}")
    return complaints


def wrong_targets(root: Path) -> list[str]:
    """`make X` in shell blocks without a target X; nothing to compare with where there is no Makefile yet."""
    if not (root / "Makefile").is_file():
        return []
    rules = re.findall(r"^([\w./%-]+(?: +[\w./%-]+)*) *:(?!=)", (root / "Makefile").read_text("utf-8"), re.M)
    targets = {target for rule in rules for target in rule.split()}
    complaints = []
    for each, line, words in shell_commands(root):
        if words[0] == "make":
            asked = [word for word in words[1:] if "=" not in word and not word.startswith("-")]
            unknown = sorted(set(asked) - targets)
            complaints += [f"{each.place}:{line} `make {word}`: the Makefile has no such target" for word in unknown]
    return complaints


def shell_commands(root: Path) -> list[tuple[Page, int, list[str]]]:
    return [
        (each, line, words)
        for each in pages(root)
        for block in each.blocks
        if block.language in SHELLS
        for line, words in commands(block)
    ]


@cache
def parsed_command(app: typer.Typer) -> Callable[[list[str]], tuple[str, dict[str, Any]]]:
    """A parser of the real command line that runs nothing: words -> (command, its values)."""
    group = typer.main.get_command(app)

    def recorder(name: str) -> Callable[..., tuple[str, dict[str, Any]]]:
        return lambda **values: (name, values)

    def silence(command: Any, name: str) -> None:
        inside = getattr(command, "commands", None)
        command.callback = recorder(name) if inside is None else None
        for own, each in (inside or {}).items():
            silence(each, f"{name} {own}".strip())

    silence(group, "")

    def parse(words: list[str]) -> tuple[str, dict[str, Any]]:
        if not words:
            return "", {}
        found = group.main(args=words, prog_name="whet", standalone_mode=False)
        return found if isinstance(found, tuple) else ("", {})  # --help and --version end early

    return parse


def resolve_config(method: str, *layers: Mapping[str, Any]) -> None:
    """The config as a run would take it, the changes to its row included."""
    from whet.objective import preset_named
    from whet.training.assembly.rewards import build_reward_parts
    from whet.training.assembly.rl import build_objective
    from whet.training.config import PolicyConfig, resolved

    config = resolved(method, *layers)
    if isinstance(config, PolicyConfig):
        needs_steps = "step_reward" in preset_named(method).objective.needs()
        build_objective(config, build_reward_parts(config, wanted=False) if needs_steps else ())


def check_command(words: list[str]) -> None:
    """Parse a command; a `train` with plain words must name a method and settings that exist, too."""
    from whet.api.inputs import mixed_source
    from whet.cli import app
    from whet.cli.options import environment_settings
    from whet.settings.layers import from_settings, read_toml

    name, values = parsed_command(app)(words)
    if name != "train" or values["method"].isupper() or values["imports"]:
        return  # a page with files of its own has a test that runs it
    given = {
        "model": {"name": values["model"]} if values["model"] else {},
        "data": {"source": mixed_source(values["data"])} if values["data"] else {},
        "reward": {"parts": [{"reward": reward} for reward in values["reward"] or ()]} if values["reward"] else {},
        **{key: values[key] for key in ("steps", "seed", "folder") if values[key] is not None},
        **environment_settings(values["env"], values["tool"], values["agent"]),
        "teacher": {"name": values["teacher"]} if values["teacher"] else {},
    }
    base = read_toml(ROOT / values["config"]) if values["config"] and (ROOT / values["config"]).is_file() else {}
    layer = {key: value for key, value in given.items() if value != {}}
    resolve_config(values["method"], base, layer, from_settings(values["settings"] or []))


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_are_documented(name):
    assert not (found := undocumented(ROOT / "src" / "whet", name)), "\n".join(found)


def test_the_page_of_methods_is_fresh():
    from whet.pages.methods import markdown_page

    written = ROOT / "docs" / "algorithms.md"
    assert written.is_file() and written.read_text("utf-8") == markdown_page("policy"), f"stale; refresh it:\n{REFRESH}"


def test_links_lead_to_files():
    assert not (found := broken_links(ROOT)), "\n".join(found)


def test_paths_in_the_docs_exist():
    assert not (found := missing_paths(ROOT)), "\n".join(found)


def test_tables_have_heads():
    assert not (found := headless_tables(ROOT)), "\n".join(found)


def test_ci_runs_the_readmes_commands_in_its_order():
    shown = list(dict.fromkeys(re.findall(r"^make [\w-]+", (ROOT / "README.md").read_text(), re.M)))
    run = re.findall(r"^make [\w-]+", (ROOT / ".ci" / "run").read_text(), re.M)
    assert run[0] == "make demo" and run[-1] == "make test"
    assert [command for command in shown if command in run] == run, "README.md shows others, or in another order"


def test_settings_in_the_docs_resolve():
    assert not (found := wrong_settings(ROOT, resolve_config)), "\n".join(found)


def test_commands_in_the_docs_parse():
    assert not (found := wrong_commands(ROOT, check_command)), "\n".join(found)


def test_make_targets_in_the_docs_exist():
    assert not (found := wrong_targets(ROOT)), "\n".join(found)


def test_an_undocumented_name_is_found(tmp_path):
    root = (
        "from whet.a import f, g, LIMIT, SIZE\n"
        "__version__ = '1'\n"
        "# what it holds\nHERE = 1\n"
        "__all__ = ['HERE', 'LIMIT', 'SIZE', '__version__', 'f', 'g', 'gone']\n"
    )
    named = 'def f():\n    """Says."""\ndef g(): pass\nSIZE = 2  # of it\nLIMIT = 3  # type: ignore\n'
    found = undocumented(write_tree(tmp_path, {"whet/__init__.py": root, "whet/a.py": named}) / "whet", "whet")
    assert [each.split(" ", 1)[1].split()[0] for each in found] == ["LIMIT", "g", "gone"]


def test_a_broken_link_is_found(tmp_path):
    text = (
        "[a](docs/b.md#part) [web](https://arxiv.org) [here](#part) `[code](gone.md)` ![c](docs/gone.png)\n"
        '<img src="gone.svg">\n\n[ref]: gone.txt\n```\n[in a block](gone.md)\n```\n'
    )
    found = broken_links(write_tree(tmp_path, {"README.md": text, "docs/b.md": "[up](../README.md) [x](README.md)"}))
    lines = ["README.md:1 links to docs/gone.png", "README.md:2 ", "README.md:4 ", "docs/b.md:1 links to README.md"]
    assert len(found) == 4 and all(each.startswith(line) for each, line in zip(found, lines, strict=True))


def test_a_missing_path_is_found(tmp_path):
    text = "`whet/a.py`, `tests/`, `python recipes/b*.py`, `recipes/<name>.toml`, `runs/whet/x` and whet/prose.py\n"
    root = write_tree(tmp_path, {"whet/a.py": "", "tests/b": "", "recipes/bc.py": "", "docs/a.md": text})
    assert missing_paths(root) == []
    write_tree(root, {"README.md": "see `whet/gone.py` and `tests/b/` and `recipes/c*.py`\n"})
    assert [each.split()[2] for each in missing_paths(root)] == ["whet/gone.py,", "recipes/c*.py,"]


def test_a_table_without_a_head_is_found(tmp_path):
    text = "| a | b |\n|---|---|\n| 1 | 2 |\n\n| 3 | 4 |\n```\n| in a block |\n```\n"
    (complaint,) = headless_tables(write_tree(tmp_path, {"README.md": text}))
    assert complaint.startswith("README.md:5 ")


@pytest.mark.parametrize(
    "text",
    [
        "method = ",
        'method = "gropo"',
        'method = "grpo"\nstepps = 3',
        'method = "grpo"\n[objective.clip]\nheight = 0.3',
        'method = "grpo"\n[batch]\ngroup_size = "many"',
    ],
)
def test_wrong_settings_are_found(tmp_path, text):
    fine = '```toml\nmethod = "grpo"\nsteps = 3\n[batch]\ngroup_size = 4\n```\n\n```toml\n[any]\nkey = 1\n```\n'
    assert wrong_settings(write_tree(tmp_path, {"README.md": fine}), resolve_config) == []
    write_tree(tmp_path, {"docs/a.md": f"# A\n```toml\n{text}\n```\n"})
    (complaint,) = wrong_settings(tmp_path, resolve_config)
    assert complaint.startswith("docs/a.md:3 ")


@pytest.mark.parametrize(
    "command",
    [
        "whet trian grpo",
        "whet train grpo --stepps 3",
        "whet train grpo --steps many",
        "whet train",
        "cd x && OMP_NUM_THREADS=1 .venv/bin/whet report",
        "python -m whet explain grpo extra",
        "whet train gropo",
        "whet train grpo --set batch.gruop_size=4",
        "whet train grpo \\\n  --set objective.clip.hihg=4",
        "$ whet nothing\nwhet is what it prints",
    ],
)
def test_a_wrong_command_is_found(tmp_path, command):
    root = write_tree(tmp_path, {"README.md": f"# A\n\n```bash\n{command}\n```\n"})
    (complaint,) = wrong_commands(root, check_command)
    assert complaint.startswith("README.md:4 ")


def test_right_commands_pass(tmp_path, capsys):
    text = (
        "whet\nwhet --version\nwhet train --help\n# whet nothing\nwhet train grpo  # a comment: it's fine\n"
        "whet train METHOD --folder runs/a 2> log.txt\n"
        "WHET=1 whet train grpo --set data.difficulty=2 \\\n  --steps 30\n"
        "whet eval runs/a --json | head -3; echo whet nothing\npip install whet\n"
        "whet sample runs/a 'What is 2 (two)?' -n 2\n"
    )
    session = "```console\n$ whet algorithms\nwhet nothing\n```\n```\nwhet nothing\n```\n"
    root = write_tree(tmp_path, {"README.md": f"```sh\n{text}```\n{session}"})
    assert wrong_commands(root, check_command) == []
    assert len([words for _, _, words in shell_commands(root) if words[0] == "whet"]) == 9


def test_a_missing_target_is_found(tmp_path):
    text = "```bash\nmake demo\nmake -j2 tset PYTHON=python3.12\n```\n"
    root = write_tree(tmp_path, {"README.md": text})
    assert wrong_targets(root) == []
    write_tree(root, {"Makefile": "BIN := x\n.PHONY: demo test\ndemo: a\n\techo\ntest lint: b\n"})
    assert wrong_targets(root) == ["README.md:3 `make tset`: the Makefile has no such target"]


def test_blocks_are_taken_apart(tmp_path):
    text = "a\n````md\n```bash\nwhet x\n```\n````\n  ```bash\n  whet y\n  ```\n"
    found = page(write_tree(tmp_path, {"a.md": text}) / "a.md", "a.md")
    assert [(block.language, block.line) for block in found.blocks] == [("md", 3), ("bash", 8)]
    assert found.prose == [(1, "a")] and commands(found.blocks[1]) == [(8, ["whet", "y"])]
