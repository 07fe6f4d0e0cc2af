"""A pipeline's page in a browser: it follows the pipeline, and its charts are live."""

import pytest

from tests.pages.board.test_pipeline_and_evals import made_pipeline, summary
from tests.support.browsing import MISSING, opened_page
from whet.pages.board.board_app import Board
from whet.pages.board.board_server import BoardServer
from whet.pages.pipeline_page import write_pipeline_page

pytestmark = [pytest.mark.browser, pytest.mark.skipif(bool(MISSING), reason=MISSING)]


def test_the_page_of_a_pipeline_is_written_anew_when_it_goes_on(tmp_path):
    address = made_pipeline(tmp_path / "p", status="interrupted")
    server = BoardServer(Board(tmp_path))
    server.start()
    try:
        with opened_page(900) as (page, complaints, _):
            page.goto(server.address + address)
            page.locator(".stream.on").wait_for()
            assert page.locator("figure.is-live canvas").count() == 1
            assert page.locator(".eyebrow .status").inner_text() == "interrupted"
            page.wait_for_timeout(1500)  # the watcher has seen how it was
            write_pipeline_page(tmp_path / "p", summary("finished"))
            page.locator(".eyebrow .status.finished").wait_for(timeout=15_000)
            page.locator("figure.is-live canvas").wait_for()
            assert complaints == []
    finally:
        server.stop()
