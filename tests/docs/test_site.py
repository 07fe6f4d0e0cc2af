"""The site is built from the pages as they are, strictly, and reads without a network."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.browsing import MISSING, opened_page

ROOT = Path(__file__).parents[2]


def load_hooks() -> ModuleType:
    specification = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "theme" / "hooks.py")
    assert specification and specification.loader
    hooks = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(hooks)
    return hooks


HOOKS = load_hooks()


def test_every_page_of_docs_is_in_the_navigation():
    contents = (ROOT / "docs" / "README.md").read_text("utf-8")
    listed = [source for source, _ in HOOKS.entries(contents)]
    pages = {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} - {"docs/README.md"}
    assert len(listed) == len(set(listed)), "a page stands in the contents twice"
    assert pages - set(listed) == set(), "write a row in docs/README.md"
    kinds = [next(iter(each)) for each in HOOKS.navigation(contents)]
    assert kinds == ["Home", "Tutorials", "How-to", "Reference", "Explanation", "Studies", "Change whet"]


def test_navigation_of_a_table():
    first = "## A: x\n| [R](../README.md) | q? |\n| [b.md](b.md) | q |\n"
    contents = f"{first}## A: y\n| [c](c.md) | q |\n## B\n| [d](../d.md) | q |\n"
    assert HOOKS.navigation(contents) == [
        {"Home": "index.md"},
        {"A": [{"X": ["index.md", "b.md"]}, {"Y": ["c.md"]}]},
        {"B": ["d.md", "pages.md"]},
    ]


def test_markdown_of_the_site():
    text = (
        "Took <!--=file/key-->1.2<!--/--> s, see [data.md](data.md#files), [home](../README.md), [lab](lab.html#a),\n"
        "[code](../examples/lora.py), [web](https://arxiv.org) and `[x](../y.md)`.\n\n"
        "- one\n  - two\n\n    ```text\n    <!-- stays -->\n    ```\n"
    )
    assert HOOKS.site_markdown(text, "docs/models.md") == (
        "Took 1.2 s, see [Data](data.md#files), [home](index.md), [lab](sliders.html#a),\n"
        "[code](examples/lora.py.md), [web](https://arxiv.org) and `[x](../y.md)`.\n\n"
        "- one\n    - two\n\n        ```text\n        <!-- stays -->\n        ```\n"
    )
    assert HOOKS.site_markdown("[data](docs/data.md)", "README.md") == "[data](data.md)"
    assert HOOKS.site_markdown("[up](../docs/data.md)", "examples/README.md") == "[up](../data.md)"


class Fetched(HTMLParser):
    """What a browser would fetch from elsewhere to show a page."""

    def __init__(self) -> None:
        super().__init__()
        self.foreign: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        source = values.get("href") if tag == "link" else values.get("src")
        if source and re.match(r"(https?:)?//", source):
            self.foreign.append(source)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    pytest.importorskip("material", reason="needs the docs extra: pip install -c constraints.txt -e '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.mark.slow
def test_the_site_builds_strictly_and_fetches_nothing(site):
    pages = sorted(site.rglob("*.html"))
    assert {"index.html", "lab.html", "sliders.html", "pages.html"} <= {page.name for page in pages}
    assert len(pages) > 50
    for page in pages:
        text = page.read_text("utf-8")
        fetched = Fetched()
        fetched.feed(text)
        assert not fetched.foreign, page.name
        assert "<!--=" not in text and "&lt;!--" not in text, page.name
    assert "sliders.html" in (site / "lab.html").read_text("utf-8")
    assert "36.0%" in (site / "index.html").read_text("utf-8"), "a marked number is shown"


@pytest.mark.browser
@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_the_site_is_searched_as_files(site):
    with opened_page() as (page, complaints, addresses):
        page.goto((site / "index.html").as_uri())
        page.get_by_placeholder("Search").click()
        page.keyboard.type("unscorable samples", delay=20)
        page.wait_for_selector(".md-search-result__link", timeout=20_000)
        found = page.eval_on_selector_all(".md-search-result__link", "links => links.map(link => link.href)")
        assert any("rewards.html" in link for link in found)
        page.goto((site / "lab.html").as_uri())
        page.frame_locator("iframe.lab").get_by_text("Groups and advantages").first.wait_for()
        assert addresses and all(address.startswith(("file:", "data:", "blob:")) for address in addresses)
        assert not complaints
