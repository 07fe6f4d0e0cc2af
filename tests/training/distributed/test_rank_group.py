"""Ranks before and beside their collectives: who they are, that they agree, and that they hear of one another's end."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import pytest
import torch

import whet
from tests.support.commands import started
from tests.support.for_every import for_every
from tests.support.rank_launching import HERE, end, free_port, said, start_ranks
from whet.training.distributed.launch import Launch, launched, rank_environment, refuse_idle_ranks, run_rank
from whet.training.distributed.rank_group import Heartbeat, Post, RankGroup, disagreement, meet
from whet.types import RunFailed, WhetError

SCENES = str(HERE / "rank_group_scenes.py")
FULL = rank_environment(1, 2, "127.0.0.1", 29500, 1, 2)


def test_a_process_without_a_launcher_is_alone():
    assert launched({}) == Launch()
    assert launched({"WORLD_SIZE": "1", "RANK": "0"}) == Launch()
    assert launched(FULL) == Launch(1, 2, 1, 2, "127.0.0.1", 29500)


@for_every(
    [
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is 2 and RANK is not set"),
        ({"RANK": "1"}, "RANK is 1 and WORLD_SIZE is not set"),
        ({**FULL, "RANK": "2"}, "RANK is 2 and WORLD_SIZE 2: ranks go from 0 to 1"),
        ({**FULL, "RANK": "one"}, "RANK is 'one' in the environment, not a number"),
        ({**FULL, "WORLD_SIZE": "-2"}, "WORLD_SIZE is '-2' in the environment, not a number"),
        ({**FULL, "MASTER_ADDR": ""}, "WORLD_SIZE is 2 and MASTER_ADDR is not set"),
        ({**FULL, "MASTER_PORT": "99999"}, "MASTER_PORT is 99999; give a free port"),
        ({**FULL, "LOCAL_RANK": "2"}, "LOCAL_RANK 2, LOCAL_WORLD_SIZE 2, WORLD_SIZE 2 do not fit"),
    ]
)
def test_half_a_launcher_is_one_clear_line(environment, line):
    with pytest.raises(WhetError, match=line) as found:
        launched(environment)
    assert "\n" not in str(found.value)
    assert "torchrun" in str(found.value) or "free port" in str(found.value)


def test_more_ranks_than_rows_are_refused():
    refuse_idle_ranks(3, 3, "rows per step", "batch.rows_per_step")
    with pytest.raises(WhetError, match=r"^4 ranks and 3 rows per step: 1 of them .* start 3 or fewer, or raise batch"):
        refuse_idle_ranks(4, 3, "rows per step", "batch.rows_per_step")


def test_what_differs_is_named_with_the_ranks():
    same = {"torch": "2.13", "seed": "0"}
    assert disagreement([same, same, same], "fix") == ""
    assert disagreement([same, {"torch": "2.13"}], "fix") == ""  # a rank that does not know
    found = disagreement([same, {**same, "torch": "2.11"}, same], "install one")
    assert found == "the ranks do not agree: torch is 2.13 on ranks 0, 2, 2.11 on rank 1; install one"


def test_a_rank_hears_why_another_ended_and_not_its_own_words():
    for failed, cause in ((0, "rank 0: out of memory"), (1, None)):
        post = Post(torch.distributed.HashStore(), "run/", rank=1, size=2)
        heart = Heartbeat(post, timeout=60)
        heart.has_reported = True
        post.fail(failed, "out of memory")
        heart._listen()
        assert heart.cause == cause and post.has("heard/1") == (failed == 0)


class Keeper:
    """A store whose process can be gone."""

    def __init__(self):
        self.store, self.is_gone = torch.distributed.HashStore(), False

    def clone(self):
        return self

    def __getattr__(self, name):
        if self.is_gone:
            raise torch.distributed.DistNetworkError("Broken pipe")
        return getattr(self.store, name)


@for_every([(False, ""), (False, "log"), (True, "log")])
def test_where_the_first_rank_is_lost_unwatched_another_says_so(watched, log):
    from whet.api import ranks
    from whet.api.training_session import _output_in_log

    keeper, launch = Keeper(), Launch(1, 2, 1, 2)
    group = RankGroup(launch, Post(keeper, "run/", rank=1, size=2), timeout=0.2)
    keeper.set("run/versions/verdict", "")
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr("whet.training.distributed.rank_group.meet", lambda *_: group)
        patch.setattr(ranks, "_silent", False)
        output = _output_in_log(Path(folder), group, True) if log else contextlib.nullcontext()
        with pytest.raises(RunFailed, match="rank 0 is gone"), ranks.join_ranks(launch, 60), output:
            group.is_first_watched = watched
            keeper.is_gone = True
            group.hand_out("checkpoint")
        assert ranks.is_silent() == watched


def test_the_environment_of_a_rank_is_set_while_it_runs(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    assert run_rank(FULL, lambda: os.environ["RANK"]) == "1"
    assert "RANK" not in os.environ
    with pytest.raises(WhetError, match="RANK is 5"):
        run_rank({**FULL, "RANK": "5"}, lambda: None)


def test_a_rank_waits_for_the_others_as_long_as_its_settings_say(tmp_path, monkeypatch):
    """Where the first one was killed before it kept a meeting point, nothing else ends the others."""

    def nobody(launch, patience=600.0):
        raise WhetError(f"found nobody in {patience:g} s")

    monkeypatch.setattr("whet.training.distributed.rank_group.meet", nobody)
    for name, value in FULL.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "own.toml").write_text("[scale]\ntimeout = 100\n")
    (tmp_path / "config.toml").write_text("[scale]\ntimeout = 110\n")
    for start, seconds in (
        (partial(whet.train, "grpo", scale={"timeout": 90}), 90),
        (partial(whet.train, "grpo", scale={"timeout": 2}), 60),  # they start side by side, not at once
        (partial(whet.train, "grpo", config=tmp_path / "own.toml"), 100),
        (partial(whet.train, "grpo", config=tmp_path / "none.toml"), 600),  # refused once all ranks can hear of it
        (partial(whet.train, "grpo", scale={"timeout": "long"}), 600),
        (partial(whet.resume, tmp_path), 110),
    ):
        with pytest.raises(WhetError, match=f"found nobody in {seconds} s"):
            start(console=False)


def test_a_rank_that_finds_nobody_says_one_line(capfd):
    with pytest.raises(WhetError, match=r"rank 1 found nobody at 127.0.0.1:\d+ in 0.2 s; start rank 0 there"):
        meet(Launch(1, 2, 1, 2, "127.0.0.1", free_port()), 0.2)
    assert capfd.readouterr().err == ""  # and not torch's stack


def test_a_port_in_use_is_one_line_before_anything_is_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for name, value in rank_environment(0, 2, "127.0.0.1", port, 0, 2).items():
            monkeypatch.setenv(name, value)
        with pytest.raises(WhetError, match=rf"^port {port} of 127.0.0.1 is in use .* give another MASTER_PORT"):
            whet.train("grpo", folder="run", console=False)
    assert not Path("run").exists()


def test_ranks_agree_or_raise_the_same_line_everywhere(tmp_path):
    port = free_port()
    ranks = [
        started(SCENES, "agreeing", folder=tmp_path, **rank_environment(rank, 2, "127.0.0.1", port, rank, 2))
        for rank in range(2)
    ]
    assert [rank.wait(240) for rank in ranks] == [0, 0], [rank.stdout + rank.stderr for rank in ranks]
    both = [
        "given run 0",
        "given ['rank 0', 'rank 1']",
        "given run 1",
        "given ['rank 0', 'rank 1']",
        "raised the ranks do not agree: seed is 0 on rank 0, 1 on rank 1; give the same",
        "raised the ranks do not agree: torch is 2.0 on rank 0, 2.1 on rank 1; install the same packages everywhere",
    ]
    assert ranks[1].stdout.splitlines() == both
    assert ranks[0].stdout.splitlines() == [*both, "raised rank 1: the tape is torn"]


@pytest.mark.slow
def test_a_process_that_nothing_interrupts_is_ended_with_its_last_words(tmp_path):
    ranks = start_ranks(2, [sys.executable, SCENES, "standing_still"], tmp_path)
    try:
        assert ranks[1].wait(240) == 9
        began = time.monotonic()
        assert ranks[0].wait(60) == 1
        assert time.monotonic() - began < 30
    finally:
        end(ranks)
    assert said(tmp_path, 0).startswith("last words: rank 1: no sign of life for 2 s"), said(tmp_path, 0)
    assert "in step 7" in said(tmp_path, 0)
