"""The report in a real browser: it renders, nothing overflows, nothing is fetched, no script runs."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import whet

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
]

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium (Debian: apt-get install chromium)"),
]


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("browser") / "run"
    few = {
        "batch": {"prompts_per_step": 2, "group_size": 4},
        "eval": {"prompts": 8},
        "model": {"threads": 1},
    }
    return whet.train("grpo", steps=4, folder=str(folder), config=few, console=False).report


def browse(page: Path, profile: Path, *words: str) -> str:
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", *words, page.resolve().as_uri()]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


@pytest.mark.parametrize("width", [420, 1200])
def test_it_renders_and_nothing_sticks_out(report, tmp_path, width):
    # measured by the browser itself: a page that carries the report in a frame and writes down its sizes
    probe = tmp_path / "probe.html"
    content = report.read_text()
    measure = """<script>addEventListener('load', () => { const root = document.documentElement;
      document.title = JSON.stringify({width: root.scrollWidth, seen: innerWidth, charts:
      [...document.querySelectorAll('svg')].filter(s => s.getBoundingClientRect().height > 20).length,
      loaded: performance.getEntriesByType('resource').length}) })</script>"""
    assert "Content-Security-Policy" in content  # no script runs in the report itself; only the probe measures
    probe.write_text(re.sub(r"<meta http-equiv=.Content-Security-Policy.[^>]*>", "", content) + measure)
    html = browse(probe, tmp_path / "profile", f"--window-size={width},1200", "--dump-dom")
    sizes = json.loads(re.search(r"<title>(\{.*?\})</title>", html)[1])
    assert sizes["width"] <= sizes["seen"] and sizes["charts"] >= 8 and sizes["loaded"] == 0


def test_a_screenshot_is_not_blank(report, tmp_path):
    shot = tmp_path / "shot.png"
    browse(report, tmp_path / "profile", "--window-size=1200,1600", f"--screenshot={shot}")
    assert shot.stat().st_size > 40_000
