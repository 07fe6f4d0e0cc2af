"""Who may read and write, what a hostile run folder can do to the pages, and what every answer carries."""

import asyncio
import http.client
import json
import shutil
from contextlib import contextmanager
from typing import ClassVar
from urllib.parse import urlsplit

import pytest

pytest.importorskip("fastapi")
from tests.support.made_runs import MadeRun, make_comparison
from whet.pages.board import board_server
from whet.pages.board.access import BoardAccess, Refusal
from whet.pages.board.board_app import Board, BoardRequest, json_response
from whet.pages.board.board_server import BoardServer
from whet.pages.board.files import folder_id, found_folders

TOKEN = "a-token-for-tests"
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\x1b[31m\u202eevil\u2066{{7*7}}</script>"


class Writing:
    """A family of pages that writes."""

    written: ClassVar[list] = []

    @classmethod
    def add_routes(cls, app, board):
        def write(request: BoardRequest):
            cls.written.append(request.values())
            return json_response({"done": True})

        app.post("/api/test/write", write)


@contextmanager
def served(folder, host="127.0.0.1", families=()):
    board = Board(folder, token=TOKEN)
    server = BoardServer(board, host)
    before = board_server.FAMILIES
    board_server.FAMILIES = (*before, *families)
    try:
        server.start()
        yield server
    finally:
        board_server.FAMILIES = before
        server.stop()


def ask(server, path, method="GET", body=None, **headers):
    place = urlsplit(server.address)
    connection = http.client.HTTPConnection("127.0.0.1", place.port, timeout=30)
    connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    response = connection.getresponse()
    content = response.read().decode("utf-8", "replace")
    connection.close()
    return response, content


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("access") / "runs"
    MadeRun(folder / "good").step(12).finish()
    with served(folder, families=(Writing,)) as found:
        yield found


def run_id(server, place="good"):
    return folder_id("run", place)


@pytest.mark.parametrize("path", ["/", "/nowhere", "/api/runs", "/api/nowhere", "/run/{run}", "/compare?runs={run}"])
def test_every_answer_is_locked_down(server, path):
    response, _ = ask(server, path.format(run=run_id(server)))
    policy = response.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "Access-Control-Allow-Origin" not in response.headers


def test_pages_hold_no_inline_script_or_style(server):
    for path in ("/", f"/run/{run_id(server)}", f"/compare?runs={run_id(server)}", "/evals"):
        response, page = ask(server, path)
        assert response.status == 200
        scripts = page.split("<script")[1:]
        assert all(each.startswith((" src=", ' type="application/json"')) for each in scripts)
        assert "<style" not in page and " style=" not in page and " onclick" not in page


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8300", "0.0.0.0", "127.0.0.1.evil.example", "", "[::"])
def test_other_names_for_this_machine_get_nothing(server, host):
    for path in ("/", "/api/runs", "/events"):
        response, content = ask(server, path, Host=host)
        assert response.status in (400, 403) and "good" not in content


def test_requests_of_other_sites_pages_are_refused(server):
    response, content = ask(server, "/api/runs", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors")
    assert response.status == 403 and "good" not in content
    assert ask(server, "/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate")[0].status == 200  # a link
    assert ask(server, "/api/runs", Sec_Fetch_Site="same-origin", Sec_Fetch_Mode="cors")[0].status == 200


JSON = {"Content_Type": "application/json"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({**JSON}, 401),
        ({**JSON, "X_Whet_Token": "wrong"}, 401),
        ({**JSON, "Authorization": "Basic " + TOKEN}, 401),
        ({**JSON, "Cookie": f"whet_board={TOKEN}"}, 401),
        ({**JSON, "X_Whet_Token": TOKEN, "Origin": "http://evil.example"}, 403),
        ({**JSON, "X_Whet_Token": TOKEN, "Origin": "null"}, 403),
        ({**JSON, "X_Whet_Token": TOKEN, "Sec_Fetch_Site": "cross-site"}, 403),
        ({**JSON, "X_Whet_Token": TOKEN, "Sec_Fetch_Site": "same-site"}, 403),
        ({"Content_Type": "text/plain", "X_Whet_Token": TOKEN}, 415),
        ({"Content_Type": "application/x-www-form-urlencoded", "X_Whet_Token": TOKEN}, 415),
        ({**JSON, "X_Whet_Token": TOKEN, "Host": "evil.example"}, 403),
        ({**JSON, "X_Whet_Token": TOKEN}, 200),
        ({**JSON, "Authorization": f"Bearer {TOKEN}"}, 200),
    ],
)
def test_writing_needs_the_token_and_no_other_site(server, headers, status):
    Writing.written.clear()
    response, _ = ask(server, "/api/test/write", "POST", json.dumps({"a": 1}), **headers)
    assert response.status == status and Writing.written == ([{"a": 1}] if status == 200 else [])


def test_bodies_are_bounded_and_must_be_objects(server):
    headers = {**JSON, "X_Whet_Token": TOKEN}
    assert ask(server, "/api/test/write", "POST", "[1]", **headers)[0].status == 400
    assert ask(server, "/api/test/write", "POST", "x" * (2 << 20), **headers)[0].status == 413
    assert ask(server, "/api/runs", "POST", "{}", **headers)[0].status == 404


@pytest.mark.parametrize(
    "path",
    [
        "/run/..%2f..%2fetc%2fpasswd",
        "/run/good",
        "/run/%2e%2e",
        "/static/x/..%2fserver.py",
        "/static/0/board.js",
        "/static/..%2f..%2fserver.py/board.js",
        "/run/" + "a" * 5000,
        "/compare?runs=../good",
    ],
)
def test_made_up_ids_and_paths_lead_nowhere(server, path):
    response, content = ask(server, path)
    assert response.status == 404 and "import" not in content and "root:" not in content


def test_only_numbers_within_bounds_are_taken(server):
    at = f"/api/run/{run_id(server)}/charts?keys=main"
    assert ask(server, f"{at}&points=99999999")[0].status == 200
    for wrong in ("points=x", "from=nan", "to=inf", "from=1e999"):
        response, content = ask(server, f"{at}&{wrong}")
        assert response.status == 400 and "expected" in json.loads(content)["error"]


def test_links_out_of_the_folder_are_not_followed(tmp_path):
    outside = MadeRun(tmp_path / "outside").step(3)
    inside = MadeRun(tmp_path / "runs" / "inside").step(3)
    (tmp_path / "runs" / "linked").symlink_to(outside.folder)
    assert [each.place for each in found_folders(tmp_path / "runs").values()] == ["inside"]
    secret = tmp_path / "secret"
    secret.write_text('{"step": 7, "metrics": {"secret": 1.0}, "title": "secret"}\n')
    for name in ("metrics.jsonl", "run.json", "report.html"):
        (inside.folder / name).unlink(missing_ok=True)
        (inside.folder / name).symlink_to(secret)
    with served(tmp_path / "runs") as server:
        for path in ("/", "/run/{}", "/run/{}/report", "/api/run/{}/series?names=secret"):
            response, content = ask(server, path.format(run_id(server, "inside")))
            assert response.status == 200 and '"secret": {"x": [7' not in content and ">secret<" not in content


def test_hostile_text_is_text(tmp_path):
    summary = {"title": HOSTILE, "objective": [HOSTILE], "facts": {HOSTILE: HOSTILE}, "command": HOSTILE}
    run = MadeRun(tmp_path / "runs" / "bad <b>&", **summary).step(3, health=(f"odd: {HOSTILE}",), text=HOSTILE)
    config = run.folder / "config.toml"
    config.write_text(config.read_text().replace("whetstone", "</script><script>alert(3)</script>"))
    lines = (run.folder / "metrics.jsonl").read_text().replace('"odd"', json.dumps(HOSTILE))
    (run.folder / "metrics.jsonl").write_text(lines)
    make_comparison(tmp_path / "runs" / "compare")
    with served(tmp_path / "runs") as server:
        run_at = run_id(server, "bad <b>&")
        for path in ("/", f"/run/{run_at}", f"/compare?runs={run_at}", "/evals"):
            response, page = ask(server, path)
            assert response.status == 200, page
            assert "<script>alert" not in page and "<img src=x" not in page and "bad <b>" not in page
        _, found = ask(server, f"/api/run/{run_at}/charts?keys={'main'}")
        assert "main" in json.loads(found)["charts"]


def test_a_report_of_somebody_elses_runs_in_an_origin_of_its_own(tmp_path):
    run = MadeRun(tmp_path / "runs" / "run").step(1)
    (run.folder / "report.html").write_text("<script>fetch('/api/runs')</script>")
    with served(tmp_path / "runs") as server:
        response, _ = ask(server, f"/run/{run_id(server, 'run')}/report")
    policy = response.headers["Content-Security-Policy"]
    assert policy.startswith("sandbox allow-scripts;") and "same-origin" not in policy and "connect-src" not in policy


def test_from_elsewhere_reading_needs_the_token_too(tmp_path):
    MadeRun(tmp_path / "runs" / "good").step(2)
    with served(tmp_path / "runs", host="0.0.0.0") as server:
        for path in ("/", "/api/runs", "/events", "/static/0/board.js"):
            response, content = ask(server, path)
            assert response.status == 401 and "good" not in content
        assert ask(server, "/?token=wrong")[0].status == 401
        response, _ = ask(server, f"//evil.example/x?token={TOKEN}&page=2")
        assert response.status in (303, 404) and not response.headers.get("Location", "/").startswith("//")
        response, _ = ask(server, f"/?token={TOKEN}&page=2")
        assert response.status == 303 and response.headers["Location"] == f"/?page=2#token={TOKEN}"
        cookie = response.headers["Set-Cookie"]
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
        assert ask(server, "/", Cookie=cookie.split(";")[0])[0].status == 200
        assert ask(server, "/", Cookie=cookie.split(";")[0], Host="evil.example")[0].status == 403
        # a cookie alone does not write
        headers = {**JSON, "Cookie": cookie.split(";")[0]}
        assert ask(server, "/api/nowhere", "POST", "{}", **headers)[0].status == 404
        with pytest.raises(Refusal):
            server.access.check_write({"host": "127.0.0.1", "content-type": "application/json"})


def test_names_of_this_machine_are_known_only_where_others_are_let_in():
    open_to_all = BoardAccess("0.0.0.0", 8300, TOKEN, ("mine.example",))
    open_to_all.check_host({"host": "Mine.example:8300"})
    open_to_all.check_host({"host": "[2001:db8::7]:8300"})
    with pytest.raises(Refusal):
        open_to_all.check_host({"host": "other.example"})
    with pytest.raises(Refusal):
        BoardAccess("127.0.0.1", 8300, TOKEN, ("mine.example",)).check_host({"host": "mine.example"})


def test_the_watcher_numbers_what_comes_changes_and_goes(tmp_path):
    run = MadeRun(tmp_path / "a").step(1)
    board = Board(tmp_path)
    watcher = board.watcher
    watcher.notice()
    assert watcher.since(0) == []
    run.step(1)
    watcher.notice()
    (change,) = watcher.since(0)
    assert change.kind == "run" and change.values["id"] == folder_id("run", "a") and change.values["step"] == 2
    other = MadeRun(tmp_path / "b")
    watcher.notice()
    (came,) = watcher.since(change.number)
    assert came.kind == "runs" and came.values == {"count": 2}
    other.step(1)
    watcher.notice()
    (change,) = watcher.since(came.number)
    assert change.kind == "run" and change.values["id"] == folder_id("run", "b") and change.values["step"] == 1
    shutil.rmtree(tmp_path / "a")
    watcher.notice()
    gone = [each.values for each in watcher.since(change.number) if each.kind == "run"]
    assert gone == [{"id": folder_id("run", "a"), "status": "deleted"}]
    before = watcher.number
    watcher.notice()
    assert watcher.number == before


def test_a_stream_tells_what_was_missed_and_leaves_nothing_behind(tmp_path):
    run = MadeRun(tmp_path / "a").step(1)
    board = Board(tmp_path)
    board.watcher.notice()
    run.step(1)
    board.watcher.notice()

    async def listen():
        events = board.watcher.events(0)
        first, second = await anext(events), await anext(events)
        assert board.watcher.num_listeners == 1
        await events.aclose()
        return first, second

    first, second = asyncio.run(listen())
    assert "event: hello" in first and "event: run" in second and '"step": 2' in second
    assert board.watcher.num_listeners == 0
