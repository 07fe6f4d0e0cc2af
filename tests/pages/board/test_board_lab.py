"""The lab on the board: tables computed for whatever is asked, within bounds."""

import json
import urllib.error
import urllib.request

import pytest

from tests.support.browsing import MISSING, opened_page
from tests.support.lab_visit import READY, settle, until
from whet.pages.board import lab
from whet.pages.board.board_app import Board
from whet.pages.board.board_server import BoardServer
from whet.pages.lab.page import experiment_named, experiments


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    server = BoardServer(Board(tmp_path_factory.mktemp("runs")))
    server.start()
    yield server.address
    server.stop()


def answer(address, path):
    try:
        with urllib.request.urlopen(address + path, timeout=120) as found:
            return found.status, json.loads(found.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_the_experiments_and_a_table_between_the_stops(address):
    status, listed = answer(address, lab.API)
    assert status == 200 and listed == json.loads(json.dumps([each.record() for each in experiments()]))
    status, table = answer(address, f"{lab.API}/groups?group_size=5&scale=none&pattern=one_right")
    assert status == 200
    advantage = next(each for each in table["charts"][0]["spec"]["series"] if each["name"] == "advantage")
    assert advantage["y"] == [0.8, -0.2, -0.2, -0.2, -0.2]
    experiment = experiment_named("groups")
    given = {"group_size": "5", "scale": "none", "pattern": "one_right"}
    assert table == json.loads(json.dumps(experiment.table(experiment.settings(given)).record()))


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("groups?group_size=1e9", "from 2 to 32"),
        ("groups?group_size=nan", "from 2 to 32"),
        ("groups?group_size=2.5", "whole"),
        ("bandit?steps=1000000", "from 5 to 100"),
        ("bandit?method=nope", "method"),
        ("groups?what=1", "no setting"),
        ("..%2Fgroups", "no such page"),
        ("nope", "did you mean 'noise'"),
    ],
)
def test_what_is_out_of_bounds_is_refused_in_one_line(address, path, said):
    status, found = answer(address, f"{lab.API}/{path}")
    assert status in (404, 422) and said in found["error"] and "\n" not in found["error"]


@pytest.mark.browser
@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_a_slider_halts_between_the_stops_and_the_package_answers(address):
    with opened_page() as (page, complaints, addresses):
        page.goto(f"{address}/lab#kl")
        until(page, READY)
        slider = page.locator(".experiment.shown input[data-control='shift']")
        slider.focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_timeout(200)
        settle(page)
        shift = slider.get_attribute("aria-valuetext")
        assert 0.5 < float(shift) < 1 and f"shift={shift}" in page.evaluate("location.hash")
        held = page.evaluate("whet.lab.stage().charts.map(each => each.spec.series.map(line => line.y))")
        experiment = experiment_named("kl")
        charts = experiment.table(experiment.settings({"shift": shift})).record()["charts"]
        assert held == [[line["y"] for line in each["spec"]["series"]] for each in charts]
        seen = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert seen[0] <= seen[1] and complaints == []
        assert all(each.startswith(address) for each in addresses)
