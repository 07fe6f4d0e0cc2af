"""A real browser for tests of pages: Debian's chromium, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MISSING = (
    "needs chromium (Debian: apt-get install chromium)"
    if CHROMIUM is None
    else "needs playwright (pip install playwright)"
    if find_spec("playwright") is None
    else ""
)


@contextmanager
def opened_page(width: int = 1200, height: int = 900, **settings: Any) -> Iterator[tuple[Any, list[str], list[str]]]:
    """A fresh page, what its console complains about, and the addresses it asks for."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as player:
        browser = player.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        context = browser.new_context(viewport={"width": width, "height": height}, **settings)
        page = context.new_page()
        complaints: list[str] = []
        addresses: list[str] = []
        page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: (complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda asked: addresses.append(asked.url))
        try:
            yield page, complaints, addresses
        finally:
            browser.close()
