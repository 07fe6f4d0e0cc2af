"""The lab in a real browser: every experiment draws what the package computes, by keyboard, at every width."""

from pathlib import Path

import pytest

from tests.support.browsing import MISSING, opened_page
from tests.support.lab_visit import READY, settle, until
from whet.pages.lab.page import experiment_named, experiments

pytestmark = [pytest.mark.browser, pytest.mark.skipif(bool(MISSING), reason=MISSING)]
PAGE = Path(__file__).parents[3] / "docs" / "lab.html"
NAMES = ["groups", "clip", "rare", "noise", "bias", "kl", "gae", "preference", "bandit"]


def visit(page, state, address=None):
    """Open the lab in that state and wait for its charts."""
    page.goto("about:blank")
    page.goto(f"{address or PAGE.as_uri()}#{state}")
    until(page, READY)
    settle(page)


def drawn(page):
    """What the charts hold: (title, series) each."""
    series = "line => [line.name, line.x, line.y]"
    held = f"(each, place) => [each.title, whet.lab.stage().charts[place].spec.series.map({series})]"
    return page.evaluate(f"whet.lab.stage().plan.map({held})")


def expected(name, **given):
    experiment = experiment_named(name)
    charts = experiment.table(experiment.settings(given)).record()["charts"]
    return [
        [each["title"], [[line["name"], line["x"], line["y"]] for line in each["spec"]["series"]]] for each in charts
    ]


@pytest.mark.parametrize("name", NAMES)
def test_each_experiment_draws_its_default_and_asks_for_nothing(name):
    assert [each.name for each in experiments()] == NAMES
    with opened_page() as (page, complaints, addresses):
        visit(page, f"{name}&compare=no")
        assert drawn(page) == expected(name)
        assert page.locator(".experiment.shown canvas").count() == len(expected(name))
        assert page.locator(".experiment.shown h2").inner_text() == experiment_named(name).title
        assert complaints == [] and {each.split("#")[0] for each in addresses} <= {PAGE.as_uri(), "about:blank"}


@pytest.mark.parametrize(
    ("name", "control", "key", "given"),
    [
        ("groups", "group_size", "ArrowRight", {"group_size": "16"}),
        ("clip", "ppo_clip.high", "ArrowRight", {"ppo_clip.high": "0.28"}),
        ("rare", "high", "Home", {"high": "0.1"}),
        ("noise", "spread", "ArrowLeft", {"spread": "0.03"}),
        ("kl", "shift", "End", {"shift": "2.5"}),
        ("gae", "lam", "End", {"lam": "1"}),
        ("preference", "factor", "ArrowRight", {"factor": "3"}),
    ],
)
def test_a_slider_moved_by_keyboard_draws_the_table_of_its_value(name, control, key, given):
    with opened_page() as (page, complaints, _):
        visit(page, f"{name}&compare=no")
        before = drawn(page)
        slider = page.locator(f".experiment.shown input[data-control='{control}']")
        slider.focus()
        page.keyboard.press(key)
        settle(page)
        assert drawn(page) == expected(name, **given) != before
        (said,) = given.values()
        assert slider.get_attribute("aria-valuetext") == said
        assert f"&{control}={said}" in page.evaluate("decodeURIComponent(location.hash)")
        page.reload()
        until(page, READY)
        assert drawn(page) == expected(name, **given), "the address holds the state"
        assert complaints == []


def test_controls_follow_the_rule_and_keep_the_focus():
    with opened_page() as (page, complaints, _):
        visit(page, "clip")
        select = page.locator(".experiment.shown select[data-control='rule']")
        select.focus()
        select.select_option("cap")
        settle(page)
        assert page.locator("input[data-control='cap.ceiling']").count() == 1
        assert page.locator("input[data-control='ppo_clip.low']").count() == 0
        assert page.evaluate("document.activeElement.dataset.control") == "rule"
        assert drawn(page) == expected("clip", rule="cap") and complaints == []


def test_two_settings_are_compared_in_one_chart_and_two_methods_side_by_side():
    with opened_page() as (page, complaints, _):
        visit(page, "clip&compare=yes&b.rule=cap")
        ((_, series),) = drawn(page)
        first, second = expected("clip")[0][1], expected("clip", rule="cap")[0][1]
        sides = ((first, "ppo_clip"), (second, "cap"))
        assert series == [[f"{name}, {rule}", x, y] for each, rule in sides for name, x, y in each]
        visit(page, "rare&compare=yes&b.high=0.5")
        names = [name for name, _, _ in drawn(page)[0][1]]
        assert names == ["high 0.28", "high 0.2, as low", "no edge", "high 0.5"], "what both share is drawn once"
        visit(page, "bandit")
        titles = [title for title, _ in drawn(page)]
        assert titles.count("Right completions, by prompt") == 2 and titles.count("Expected reward") == 1
        other = experiment_named("bandit").compared["method"]
        assert drawn(page)[0][1][1] == expected("bandit", method=other)[0][1][0]
        page.locator(".experiment.shown button.compare").click()
        settle(page)
        assert drawn(page) == expected("bandit") and "compare=no" in page.evaluate("location.hash")
        page.locator(".experiment.shown button.back").click()
        settle(page)
        assert page.evaluate("location.hash") == "#bandit" and complaints == []


def test_a_run_plays_step_by_step_and_ends_with_the_whole_curve():
    with opened_page() as (page, complaints, _):
        visit(page, "rare")
        page.locator(".experiment.shown button.play").click()
        until(page, "document.querySelector('.experiment.shown .actions .soft').textContent >= 'step 3'")
        known = page.evaluate("whet.lab.stage().charts[0].spec.series[0].y.filter(each => each !== null).length")
        assert 0 < known < 25
        until(page, "document.querySelector('.experiment.shown button.play').textContent === 'Play'")
        assert drawn(page) == expected("rare") and complaints == []


def test_a_setting_that_a_rule_refuses_is_told():
    with opened_page() as (page, complaints, _):
        visit(page, "groups")
        page.locator("select[data-control='baseline']").select_option("pass_at_k")
        page.locator("select[data-control='pattern']").select_option("graded")
        settle(page)
        assert "0 or 1" in page.locator(".experiment.shown .state").inner_text()
        assert drawn(page) == [] and complaints == []


def test_a_strange_address_falls_on_the_defaults():
    with opened_page() as (page, complaints, _):
        visit(page, "nothing&group_size=abc&<script>=1")
        assert drawn(page) == expected("groups")
        visit(page, "groups&group_size=1e99&scale=nope")
        assert drawn(page) == expected("groups", group_size="16") and complaints == []


@pytest.mark.parametrize("width", [400, 900, 2000])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_sticks_out(width, scheme):
    with opened_page(width, color_scheme=scheme) as (page, complaints, _):
        for name in NAMES:
            visit(page, name)
            seen = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
            assert seen[0] <= seen[1], name
        assert complaints == []


def test_every_control_has_a_name_and_readers_without_scripts_get_the_text():
    with opened_page() as (page, _, _):
        for name in NAMES:
            visit(page, name)
            unnamed = (
                "[...document.querySelectorAll('.shown input, .shown select')].filter(each => !each.labels.length)"
            )
            assert page.evaluate(f"{unnamed}.length") == 0
    with opened_page(java_script_enabled=False) as (page, _, _):
        page.goto(PAGE.as_uri())
        assert page.locator(".experiment h2 >> visible=true").count() == len(NAMES)
        assert page.locator(".controls >> visible=true").count() == 0
