"""The board in a real browser: it follows a run as it goes on, at every width, by keyboard, light and dark."""

import re
import shutil
import time
from contextlib import contextmanager

import pytest

from tests.support.made_runs import MadeRun, make_comparison, make_evaluation, make_pipeline, report
from whet.pages.board.board_app import Board
from whet.pages.board.board_server import BoardServer
from whet.pages.board.files import folder_id
from whet.record.run_folder import locked

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium (Debian: apt-get install chromium)"),
]
pytest.importorskip("fastapi")
playwright_api = pytest.importorskip("playwright.sync_api")
WAIT = 30_000  # milliseconds
HOSTILE = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>\u202e"


@pytest.fixture(scope="module")
def browser():
    with playwright_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@contextmanager
def board_over(folder):
    server = BoardServer(Board(folder, token="a-token"))
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def watched(browser, **settings):
    """A page whose complaints are collected: there must be none."""
    context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **settings})
    page = context.new_page()
    page.set_default_timeout(WAIT)
    complaints = []
    page.on(
        "console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None
    )
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: None if "127.0.0.1" in request.url else complaints.append(request.url))
    page.complaints = complaints
    yield page
    context.close()


def until(page, expression):
    """The page's own policy forbids it to evaluate text, so it is asked again and again from outside."""
    end = time.monotonic() + WAIT / 1000
    while not page.evaluate(expression):
        assert time.monotonic() < end, expression
        page.wait_for_timeout(100)


def last_of(page, key):
    return page.locator(f'figure[data-key="{key}"] .last').inner_text()


def test_a_run_that_goes_on_is_followed_without_losing_the_zoom(browser, tmp_path):
    run = MadeRun(tmp_path / "live", total=200).step(40)
    with locked(run.folder), board_over(tmp_path) as server, watched(browser) as page:
        page.goto(server.address)
        row = page.locator(f'tr[data-run="{folder_id("run", "live")}"]')
        assert "running" in row.inner_text() and "40 / 200" in row.inner_text()
        run.step(1)
        until(page, "document.querySelector('tr[data-run]').innerText.includes('41 / 200')")
        row.locator("a").click()
        page.wait_for_selector("figure[data-key=entropy] canvas")
        assert "running" in page.locator(".eyebrow").inner_text()
        before = last_of(page, "entropy")
        # zoom by keyboard: all charts follow, and stay there while the run goes on
        chart = page.locator("figure[data-key=entropy] .plot")
        chart.focus()
        page.keyboard.press("+")
        page.wait_for_selector("#reset:not([hidden])")
        zoomed = "JSON.stringify(document.querySelector('figure[data-key=main]').chart.zoom)"
        until(page, f"{zoomed} !== 'null'")
        kept = page.evaluate(zoomed)
        run.step(30, health=("KL runaway: the KL is 3.2 nats: it left its reference; raise objective.kl.beta.",))
        until(page, "[...document.querySelectorAll('.tile')].some(t => t.innerText.includes('71'))")
        until(page, "document.querySelector('[data-live=health]').innerText.includes('KL runaway')")
        assert page.evaluate(zoomed) == kept
        page.locator("#reset").click()
        until(page, "document.querySelector('figure[data-key=entropy]').chart.data.columns[0].at(-1) === 71")
        assert last_of(page, "entropy") != before
        run.finish()
        until(page, "document.querySelector('.eyebrow .status').textContent === 'finished'")
        assert page.complaints == []


def test_a_folder_that_is_deleted_half_written_or_newer_is_said(browser, tmp_path):
    run = MadeRun(tmp_path / "run", whet="99.0").step(12)
    with (run.folder / "metrics.jsonl").open("ab") as log:
        log.write(b'{"step": 13, "metr\n')
    run.step(1)
    with (run.folder / "metrics.jsonl").open("ab") as log:
        log.write(b'{"step": 14, "policy_version": 13, "cou')  # torn by a kill
    with board_over(tmp_path) as server, watched(browser) as page:
        page.goto(f"{server.address}/run/{folder_id('run', 'run')}")
        page.wait_for_selector("canvas")
        said = page.locator("#state").inner_text()
        assert "whet 99.0 wrote this run" in said and "1 line of metrics.jsonl could not be read" in said
        assert "13" in page.locator(".tiles").inner_text()
        shutil.rmtree(run.folder)
        page.wait_for_selector("#gone")
        assert page.locator("figure[data-key=entropy] canvas").count() == 1  # what was read stays
        page.goto(server.address)
        assert "no run in this folder yet" in page.locator("main").inner_text()
        MadeRun(tmp_path / "next").step(3)
        page.wait_for_selector("tr[data-run]")
        # the browser itself notes the page that is gone
        assert [each for each in page.complaints if "404" not in each] == []


def test_hostile_text_neither_runs_nor_shows_as_markup(browser, tmp_path):
    summary = {"title": HOSTILE, "objective": [HOSTILE], "facts": {"a": HOSTILE}, "command": HOSTILE}
    run = MadeRun(tmp_path / "bad <b>", **summary).step(5, health=(f"odd: {HOSTILE}",), text=HOSTILE)
    log = run.folder / "metrics.jsonl"
    log.write_text(log.read_text().replace('"odd": ', f'"<img src=x onerror=alert()>{chr(0x202E)}": '))
    with board_over(tmp_path) as server, watched(browser) as page:
        at = folder_id("run", "bad <b>")
        for path in ("/", f"/run/{at}", f"/compare?runs={at}"):
            page.goto(server.address + path)
            page.wait_for_timeout(500)
            if path.startswith("/run"):
                page.locator("#more summary").click()
                page.wait_for_selector("#more canvas")
            assert page.title() != "broken" and page.locator("main img").count() == 0
            assert page.locator("main script:not([type='application/json'])").count() == 0
        assert page.complaints == []


@pytest.fixture(scope="module")
def gallery(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gallery")
    ill = "KL runaway: the KL is 3.2 nats: the policy left its reference; raise objective.kl.beta."
    MadeRun(folder / f"a-very-long-name-{'x' * 80}").step(20, health=(ill,)).finish()
    make_comparison(folder / "compare")
    make_pipeline(folder / "pipe")
    make_evaluation(folder / "eval")
    with board_over(folder) as server:
        yield server


def addresses(server):
    runs = ",".join(each.id for each in server.board.found().values() if each.parent and each.kind == "run")
    found = {each.kind: each.id for each in server.board.found().values()}
    long = next(each.id for each in server.board.found().values() if "long-name" in each.place)
    return [
        "/",
        f"/run/{long}",
        f"/compare?runs={runs}",
        f"/comparison/{found['comparison']}",
        f"/pipeline/{found['pipeline']}",
        "/evals",
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1200, 2000])
def test_nothing_sticks_out_and_nothing_complains(browser, gallery, width, scheme):
    with watched(browser, viewport={"width": width, "height": 900}, color_scheme=scheme) as page:
        for path in addresses(gallery):
            page.goto(gallery.address + path)
            page.wait_for_timeout(400)
            sizes = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
            assert sizes[0] <= sizes[1], path
            dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (sum(map(int, re.findall(r"\d+", dark)[:3])) < 200) == (scheme == "dark")
        assert page.complaints == []


def test_everything_is_reached_by_keyboard(browser, gallery):
    with watched(browser, reduced_motion="reduce") as page:
        page.goto(gallery.address)
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Enter")
        assert page.evaluate("location.hash") == "#main"
        page.focus("#filter")
        page.keyboard.type("seed1")
        until(page, "document.querySelectorAll('tr[data-run]').length === 1")
        assert page.url.endswith("/?search=seed1") and "1 of" in page.locator("[data-live=shown]").inner_text()
        for _ in range(24):  # past the filters, links and heads; the button is disabled until runs are chosen
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.closest('.pick') !== null"):
                break
        page.keyboard.press("Space")
        assert page.locator("#compare").inner_text() == "Compare 1"
        page.keyboard.press("Tab")
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert page.evaluate("document.activeElement.tagName") == "A" and outline != "none"
        page.keyboard.press("Enter")
        page.wait_for_selector("figure[data-key=main] .plot")
        # every control of the page can be focused
        missed = page.evaluate(
            "[...document.querySelectorAll('main a, main button, main input, main select, main summary, main .plot')]"
            ".filter(e => e.checkVisibility() && (e.focus(), document.activeElement !== e)).length"
        )
        assert missed == 0
        page.focus("figure[data-key=main] .plot")
        page.keyboard.press("ArrowLeft")
        assert "reward" in page.locator("figure[data-key=main] .spoken").inner_text()
        assert page.complaints == []


def test_the_list_follows_its_runs_in_the_order_that_was_chosen(browser, tmp_path):
    runs = [MadeRun(tmp_path / name, started=1.79e9 + place).step(5) for place, name in enumerate(("one", "two"))]
    names = "[...document.querySelectorAll('tr[data-run] .name a')].map(each => each.textContent).join(' ')"
    with board_over(tmp_path) as server, watched(browser) as page:
        page.goto(server.address)
        page.wait_for_selector(".stream.on")
        assert page.evaluate(names) == "two one"
        page.locator("thead a", has_text="Run").click()
        until(page, f"{names} === 'one two'")
        page.wait_for_selector(".stream.on")
        assert page.locator("th[aria-sort=ascending]").inner_text().strip() == "Run"
        page.locator(".columns summary").click()
        page.locator("[data-column=seed]").check()
        until(page, "document.querySelectorAll('td[data-title=Seed]').length === 2")
        page.locator(".pick input").last.focus()
        runs[1].step(3).finish()
        until(page, "document.querySelector('.verdict').textContent === '1 finished, 1 interrupted.'")
        until(page, "document.querySelectorAll('tr[data-run] .status.finished').length === 1")
        assert page.evaluate("document.activeElement.value") == folder_id("run", "two"), "the focus stays where it was"
        MadeRun(tmp_path / "late").step(1)
        until(page, f"{names} === 'late one two'")
        page.goto(server.address)  # how a list looks is kept in the browser
        until(page, f"{names} === 'late one two' && document.querySelectorAll('td[data-title=Seed]').length === 3")
        page.goto(f"{server.address}/#token=a-token")
        page.locator("tr[data-run] .name a").first.click()
        page.locator(".noting summary").click()
        page.fill("[name=tags]", "baseline")
        page.locator("#notes button").click()
        until(page, "document.querySelector('[data-live=notes] .tag')?.textContent === 'baseline'")
        assert page.complaints == []


def test_many_tabs_leave_nothing_behind_and_come_back(browser, tmp_path):
    run = MadeRun(tmp_path / "run").step(2)
    with board_over(tmp_path) as server:
        watcher = server.board.watcher
        with watched(browser) as page:
            pages = [page.context.new_page() for _ in range(4)]
            for each in pages:
                each.goto(server.address)
                each.wait_for_selector(".stream.on")
            assert watcher.num_listeners >= 4
            for each in pages:
                each.close()
            until = time.monotonic() + 20
            while watcher.num_listeners and time.monotonic() < until:
                run.step(1)
                time.sleep(0.5)
            assert watcher.num_listeners == 0


def test_the_token_is_taken_from_the_address_and_kept_in_the_tab(browser, gallery):
    with watched(browser) as page:
        page.goto(f"{gallery.address}/#token=a-token")
        assert "token" not in page.url and page.evaluate("board.token()") == "a-token"
        page.goto(f"{gallery.address}/evals")
        assert page.evaluate("board.token()") == "a-token"


def test_what_was_made_is_what_a_run_records():
    assert report(3).step == 3 and "spread" not in report(3).metrics
