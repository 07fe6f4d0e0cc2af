"""Samples and review in headless Chromium: search, filters, colours, marking by keyboard, and what needs the token."""

import shutil

import pytest

from tests.pages.board.test_board_samples import SAMPLES, board_over, line, review_row, tokens, written
from whet.pages.review import read_review

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright (pip install playwright)")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium (Debian: apt-get install chromium)"),
]


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(params=[400, 1400])
def page(browser, request):
    context = browser.new_context(viewport={"width": request.param, "height": 900})
    opened, troubles = context.new_page(), []
    opened.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: troubles.append(str(error)))
    opened.troubles = troubles
    yield opened
    assert opened.evaluate("document.documentElement.scrollWidth") <= request.param, "wider than the window"
    context.close()


@pytest.fixture
def board(tmp_path):
    hostile = "<script>document.title = 'taken'</script><b>x</b>"
    samples = [*SAMPLES, line(4, "d", 1.0, f"one {hostile}"), line(4, "d", 0.0, "two")]
    long = ["an ", hostile, "three", "\u202e", "end", "\n"]
    row = tokens(4, 0, pieces=long, action=[2, 1, 3], advantage=[1.0, -1.0, 0.5, 0.0, 0.25], weight=[1.0, 0.0, 2, 1, 1])
    row |= {"logp": [-1.0, -2.0, -3.0, 0.0, -0.1], "gap": [0.0, 0.1, -0.1, 0.0, 0.0], "left_out": 3}
    rows = [review_row(place, "high" if place < 2 else "low") for place in range(4)]
    address = written(tmp_path / "run", samples, [row], rows)
    with board_over(tmp_path) as served:
        served.run, served.folder = served.address + address, tmp_path / "run"
        yield served


def test_search_and_filters(page, board):
    page.goto(f"{board.run}/samples")
    assert page.locator(".row").count() == 8
    page.fill("input[name=search]", "nine")
    page.press("input[name=search]", "Enter")
    page.wait_for_url("**/samples?search=nine*")
    assert page.locator(".row").count() == 3 and "low=" not in page.url
    page.select_option("select[name=part]", "exact")
    page.fill("input[name=low]", "0.4")
    page.click("text=Show")
    page.wait_for_url("**low=0.4*")
    assert page.locator(".row").count() == 2 and "2 of 8 samples" in page.inner_text(".verdict")
    page.click("text=Clear")
    page.wait_for_url("**/samples")
    assert page.locator(".row").count() == 8 and page.troubles == []


def test_tokens_are_coloured_and_told(page, board):
    page.goto(f"{board.run}/samples?from=4&sort=oldest")
    page.click(".row >> nth=0")
    page.wait_for_selector("#token-text span")
    kinds = [each.get_attribute("class") for each in page.query_selector_all("#token-text span")]
    assert kinds == ["token high-4", "token low-4", "token read", "token high-2", "token", "token high-1"]
    assert page.title() != "taken" and page.locator("#token-text b").count() == 0
    assert "-1" in page.get_attribute("#scale", "aria-label") and "3 more tokens" in page.inner_text("#token-note")
    page.focus("#token-text")
    page.keyboard.press("ArrowRight")
    assert 'token 1 of 6: "an ", advantage 1, weight 1, log-prob -1' in page.inner_text("#token-value")
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert "<U+202E>" in page.inner_text("#token-value")
    page.hover("#token-text span >> nth=2")
    assert "not chosen by the policy" in page.inner_text("#token-value")
    page.select_option("#colour", "weight")
    kinds = [each.get_attribute("class") for each in page.query_selector_all("#token-text span")]
    assert kinds == ["token", "token stopped", "token read", "token high-4", "token", "token"]
    page.select_option("#colour", "logp")
    assert page.query_selector("#token-text span >> nth=3").get_attribute("class") == "token low-4"
    assert page.locator(".siblings .sample").count() == 2 and page.troubles == []


def test_marking_by_keyboard_lasts(page, board):
    page.goto(f"{board.run}/review#token={board.token}")
    page.keyboard.press("j")
    page.keyboard.press("h")
    page.wait_for_selector(".sample[data-id=id0][data-mark=hacked]")
    page.keyboard.press("n")
    page.keyboard.type("a <b>trick</b> \u202e")
    page.keyboard.press("Enter")
    page.keyboard.press("j")
    page.keyboard.press("g")
    page.wait_for_selector(".sample[data-id=id1][data-mark=good]")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("w")
    page.wait_for_selector(".sample[data-id=id2][data-mark=wrong]")
    page.keyboard.press("k")
    page.keyboard.press("g")  # again: taken back
    page.wait_for_selector(".sample[data-id=id1]:not([data-mark])")
    assert page.inner_text("#steps option") == "100 (2 of 4)"
    assert page.inner_text("#marked") == "2 of 4 marked" and "agrees with 1 of 2" in page.inner_text("#verdict")
    assert page.inner_text("#counts td[data-end=high][data-count=hacked]") == "1"
    page.reload()
    assert page.get_attribute(".sample[data-id=id0]", "data-mark") == "hacked"
    assert page.input_value(".sample[data-id=id0] .note input") == "a <b>trick</b> \u202e"
    assert page.get_attribute(".sample[data-id=id2] button[value=wrong]", "aria-pressed") == "true"
    assert [row["mark"] for row in read_review(board.folder)] == ["hacked", None, "wrong", None]
    assert page.troubles == []


def test_without_the_token_nothing_is_kept_until_it_is_given(page, board):
    page.goto(f"{board.run}/review")
    page.click(".sample[data-id=id0] button[value=good]")
    page.wait_for_selector("#token-form:not([hidden])")
    assert "needs the token" in page.inner_text("#trouble") and not (board.folder / "marks.jsonl").exists()
    assert page.get_attribute(".sample[data-id=id0]", "data-mark") is None
    page.fill("#token", board.token)
    page.press("#token", "Enter")
    page.click(".sample[data-id=id0] button[value=good]")
    page.wait_for_selector(".sample[data-id=id0][data-mark=good]")
    assert (board.folder / "marks.jsonl").exists() and page.inner_text("#trouble") == ""
