"""What `make site` does to the pages on their way from the repository to site/; mkdocs.yml names this file.

The pages are written for a reader of the repository. Here README.md becomes the home page, the navigation is read from
docs/README.md, pages and programs outside docs/ that some page links to come along, and Markdown as code hosts read it
becomes Markdown as MkDocs reads it.
"""

from __future__ import annotations

import html
import json
import posixpath
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
HOME, CONTENTS = "README.md", "docs/README.md"
MOVED = {HOME: "index.md", CONTENTS: "pages.md", "docs/lab.html": "sliders.html"}  # lab.md is lab.html on the site
SHOWN = (".py", ".toml", ".ipynb")  # what a page may link to outside docs/, besides Markdown; shown as a page
FENCE = re.compile(r"^ *(```+)")
COMMENT = re.compile(r"<!--.*?-->", re.S)
LINK = re.compile(r"(?:\[(?P<name>[\w-]+\.md))?\]\((?P<target>[^)\s#]+)")
CODE = re.compile(r"(`+)(?:.+?)\1", re.S)
ROW = re.compile(r"^\| \[[^\]]+\]\(([^)]+)\) \| (.*) \|$")


def on_config(config: Any) -> Any:
    """The navigation, from the tables of docs/README.md."""
    linked_sources.cache_clear()
    config.nav = navigation((ROOT / CONTENTS).read_text("utf-8"))
    return config


def on_files(files: Any, config: Any) -> Any:
    """The pages of docs/, and what they link to elsewhere in the repository."""
    from mkdocs.structure.files import File, InclusionLevel

    listed = dict(entries((ROOT / CONTENTS).read_text("utf-8")))
    for source in sorted({*MOVED, *linked_sources()}):
        path, into = ROOT / source, site_path(source)
        if path.suffix in SHOWN:
            file = File.generated(config, into, content=as_page(path))
        else:
            file = File.generated(config, into, abs_src_path=str(path))
        file.inclusion = InclusionLevel.INCLUDED if source in {*MOVED, *listed} else InclusionLevel.NOT_IN_NAV
        files.append(file)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """The text of a page as MkDocs reads it; the question that docs/README.md says it answers describes it."""
    sources = {site_path(source): source for source in {*MOVED, *linked_sources()}}
    source = sources.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    if question := dict(entries((ROOT / CONTENTS).read_text("utf-8"))).get(source):
        page.meta["description"] = question
    page.meta["hide"] = {HOME: ["navigation"], "docs/lab.md": ["toc"]}.get(source, [])
    return site_markdown(markdown, source)


def on_page_content(content: str, page: Any, config: Any, files: Any) -> str:
    """The page of the lab shows the lab."""
    if page.file.src_uri == "lab.md":
        lab = f'<iframe class="lab" title="The lab" src="{MOVED["docs/lab.html"]}"></iframe>'
        content = re.sub(r"(</h1>)", rf"\1\n{lab}", content, count=1)
    return content


def navigation(contents: str) -> list[Any]:
    """Headings `Kind` or `Kind: part` and the links below them, as MkDocs takes them."""
    kinds: dict[str, dict[str, list[str]]] = {}
    for line in contents.splitlines():
        if line.startswith("## "):
            kind, _, part = line[3:].partition(": ")
            pages = kinds.setdefault(kind, {}).setdefault(part, [])
        elif row := ROW.match(line):
            pages.append(site_path(posixpath.normpath(posixpath.join("docs", row[1]))))
    listed: list[Any] = [{"Home": MOVED[HOME]}]
    for kind, parts in kinds.items():
        if len(parts) == 1:
            listed.append({kind: [page for pages in parts.values() for page in pages if page != MOVED[HOME]]})
        else:
            listed.append({kind: [{part[:1].upper() + part[1:]: pages} for part, pages in parts.items()]})
    listed[-1][next(iter(listed[-1]))].append(MOVED[CONTENTS])
    return listed


def entries(contents: str) -> Iterator[tuple[str, str]]:
    """(source, question it answers) of every row."""
    for line in contents.splitlines():
        if row := ROW.match(line):
            yield posixpath.normpath(posixpath.join("docs", row[1])), re.sub(r"[`\[\]]|\(.*?\)", "", row[2])


@cache
def linked_sources() -> set[str]:
    """Files outside docs/ that a page links to, and what those link to."""
    found: set[str] = set()
    todo = [HOME, *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
    while todo:
        source = todo.pop()
        if not source.endswith(".md"):
            continue
        for target in targets((ROOT / source).read_text("utf-8"), source):
            if not target.startswith("docs/") and target not in found | {HOME} and target.endswith((".md", *SHOWN)):
                found.add(target)
                todo.append(target)
    return found


def targets(text: str, source: str) -> list[str]:
    """The files that a page links to, as paths from the root."""
    links = (link["target"] for link in LINK.finditer(CODE.sub("", text)) if "://" not in link["target"])
    return [posixpath.normpath(posixpath.join(posixpath.dirname(source), link)) for link in links]


def site_path(source: str) -> str:
    """Where a file of the repository is among the sources of the site."""
    if source in MOVED:
        return MOVED[source]
    if source.startswith("docs/"):
        return source.removeprefix("docs/")
    path = Path(source)
    if path.name == "README.md":
        return f"{path.parent.as_posix()}/index.md"
    return source.lower() if path.suffix == ".md" else f"{source}.md"


def site_markdown(text: str, source: str) -> str:
    """The page at `source`, written for MkDocs: links and titles of the site, lists indented by four, no comments."""
    here = posixpath.dirname(site_path(source))

    def moved(match: re.Match[str]) -> str:
        if "://" in match["target"]:
            return match[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match["target"]))
        name = f"[{title(target)}" if match["name"] else ""
        return f"{name}]({posixpath.relpath(site_path(target), here or '.')}"

    def prose(lines: list[str]) -> str:
        plain = COMMENT.sub("", "\n".join(indented(line) for line in lines))
        return outside_code(plain, lambda part: LINK.sub(moved, part))

    return "\n".join(
        prose(lines) if not fenced else "\n".join(indented(line, by=lines[0]) for line in lines)
        for fenced, lines in parts(text)
    )


def title(source: str) -> str:
    """The heading of a page, for links that say no more than its file."""
    return (ROOT / source).read_text("utf-8").split("\n", 1)[0].removeprefix("# ")


def parts(text: str) -> Iterator[tuple[bool, list[str]]]:
    """(whether it is a fenced block, lines), in order."""
    lines: list[str] = []
    fence = ""
    for line in text.splitlines():
        mark = FENCE.match(line)
        if not fence and mark:
            yield False, lines
            fence, lines = mark[1], [line]
        elif fence and mark and mark[1].startswith(fence) and line.strip() == mark[1]:
            yield True, [*lines, line]
            fence, lines = "", []
        else:
            lines.append(line)
    yield bool(fence), lines


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Change what is not inline code."""
    done, start = [], 0
    for code in CODE.finditer(text):
        done += [change(text[start : code.start()]), code[0]]
        start = code.end()
    return "".join([*done, change(text[start:])])


def indented(line: str, by: str | None = None) -> str:
    """What belongs to an item of a list is indented by two or three here, and by four for MkDocs."""
    model = line if by is None else by
    depth = len(model) - len(model.lstrip(" "))
    return " " * (4 * (depth // 2) - depth) + line if depth > 1 else line


def as_page(path: Path) -> str:
    """A program or a notebook as a page."""
    if path.suffix == ".ipynb":
        cells = json.loads(path.read_text("utf-8"))["cells"]
        shown = (cell_text(cell["cell_type"], "".join(cell["source"])) for cell in cells)
        return "\n\n".join(shown)
    language = {".py": "python", ".toml": "toml"}[path.suffix]
    return f"# {html.escape(path.name)}\n\n````{language}\n{path.read_text('utf-8').rstrip()}\n````\n"


def cell_text(kind: str, text: str) -> str:
    return text if kind == "markdown" else f"```python\n{text}\n```"
