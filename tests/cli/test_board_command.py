"""`whet board` as it is typed: what it prints, what it refuses, and how it ends."""

from __future__ import annotations

import importlib.util
import re
import signal
import socket
import time
import urllib.request

import pytest

from tests.support.commands import started
from tests.support.packages import needs
from whet.cli import _ending, app

pytestmark = needs("fastapi")


def ending(*words: str) -> tuple[int, str]:
    try:
        app(["board", *words], standalone_mode=False)
    except BaseException as error:
        return _ending(error)
    return 0, ""


def test_a_folder_that_is_not_there_is_one_line(tmp_path):
    code, line = ending(str(tmp_path / "none"))
    assert code == 2 and "no such folder" in line and "whet train" in line


def test_a_port_that_is_taken_is_one_line(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, line = ending(str(tmp_path), "--port", str(taken.getsockname()[1]))
    assert code == 2 and "cannot listen on 127.0.0.1" in line and "--port" in line


def test_a_missing_package_is_one_line_with_the_command(tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "uvicorn" else find(name, *rest)
    )
    code, line = ending(str(tmp_path))
    assert code == 2 and "pip install 'whet[board]'" in line


@pytest.mark.parametrize("port", ["-1", "65536", "nan"])
def test_ports_have_bounds(tmp_path, port):
    code, line = ending(str(tmp_path), "--port", port)
    assert code == 2 and "'--port'" in line


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_it_serves_until_it_is_interrupted(tmp_path, host):
    command = started("board", str(tmp_path), "--port", "0", "--host", host)
    until = time.monotonic() + 60
    while not (found := re.search(r"(read|open) +(http\S+)", command.stdout)):
        assert time.monotonic() < until and command.poll() is None, command.stderr
        time.sleep(0.1)
    assert ("lets other machines in" in command.stderr) == (host == "0.0.0.0")
    address = found[2]
    assert ("?token=" in address) == (host == "0.0.0.0")
    if host == "127.0.0.1":
        assert "There is no run in this folder yet" in urllib.request.urlopen(address, timeout=30).read().decode()
        assert re.search(r"write +http\S+#token=\S{20,}", command.stdout)
    command.send_signal(signal.SIGINT)
    assert command.wait(60) == 130 and "the board is closed" in command.stderr and "Traceback" not in command.stderr
