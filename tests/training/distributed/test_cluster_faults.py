"""What breaks on a cluster: the run goes on with what is left, or ends with its cause; nothing is lost or repeated."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

import whet
from tests.training.distributed.test_ray_cluster import SMALL, marked, weights_digest  # noqa: F401  (marked: no process is left)
from whet.training.distributed.ray_cluster import demo_cluster
from whet.types import RunFailed

pytestmark = pytest.mark.cluster


def prompt_ids(folder: Path) -> list[tuple[int, str, str]]:
    """(step, prompt, completion) of every sample of a run."""
    lines = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    return sorted((each["step"], each["prompt_id"], each["completion"]) for each in lines)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The run in one process."""
    return whet.train(method="grpo", folder=str(tmp_path_factory.mktemp("alone") / "run"), console=False, **SMALL)


def workers_of(mark: str, name: str) -> list[int]:
    """Processes of Ray workers whose environment has the mark, which hold an object: actors."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and mark in (folder / "environ").read_text():
                command = (folder / "cmdline").read_text()
                if command.startswith("ray::") and name in command:
                    found.append(int(folder.name))
        except OSError:
            continue
    return found


class KillOnce:
    """Kills an actor with -9 after the first step."""

    def __init__(self, kill) -> None:
        self.kill, self.done = kill, []

    def stepped(self, report, samples):
        if not self.done:
            self.done.append(self.kill())


def test_an_engine_that_is_killed_costs_nothing_but_time(tmp_path, undisturbed, caplog):
    def kill():
        (victim, *_) = workers_of(f"WHET_TEST={os.getpid()}", "_WorkerHost")
        os.kill(victim, signal.SIGKILL)
        return victim

    killer = KillOnce(kill)
    run = whet.train(
        method="grpo", folder=str(tmp_path / "run"), scale={"engines": 2}, callbacks=[killer], console=False, **SMALL
    )
    assert killer.done and "its process ended" in caplog.text
    assert prompt_ids(run.folder) == prompt_ids(undisturbed.folder)
    assert weights_digest(run) == weights_digest(undisturbed)


@pytest.mark.parametrize(
    ("how", "cause"),
    [("hangs", "no answer for 60 seconds"), ("token", "of a vocabulary of"), ("nan", "not finite")],
)
def test_an_engine_that_hangs_or_sends_garbage_is_replaced(tmp_path, undisturbed, caplog, how, cause):
    import dataclasses

    from whet.rollout.torch_engine import TorchEngine

    broken = tmp_path / "broken"

    class BadEngine(TorchEngine):
        def generate(self, requests, sampling):
            samples = super().generate(requests, sampling)
            if self._version != 1 or broken.exists():
                return samples
            broken.touch()
            if how == "hangs":
                time.sleep(3600)
            first = samples[0]
            change = {"tokens": first.tokens + 10**6 * first.action}
            if how == "nan":
                change = {"behavior_logp": first.behavior_logp * float("nan")}
            return [dataclasses.replace(first, **change), *samples[1:]]

    whet.register("engine", BadEngine, name=f"bad_{how}")
    run = whet.train(
        method="grpo",
        folder=str(tmp_path / "run"),
        sampling={"engine": f"bad_{how}"},
        scale={"engines": 2, **({"timeout": 60} if how == "hangs" else {})},
        console=False,
        **SMALL,
    )
    assert broken.exists() and cause in caplog.text
    assert prompt_ids(run.folder) == prompt_ids(undisturbed.folder)
    assert weights_digest(run) == weights_digest(undisturbed)


def test_a_reward_worker_that_leaks_is_started_again_and_its_batch_scored(tmp_path, undisturbed, caplog):
    leaked = tmp_path / "leaked"
    file = tmp_path / "mine.py"
    file.write_text(
        textwrap.dedent(
            f"""
            import time
            from pathlib import Path
            from whet.reward.find import BUILTIN

            held = []

            def exact_answer(prompt, completion, answer):
                if not Path({str(leaked)!r}).exists():
                    Path({str(leaked)!r}).touch()
                    held.append(bytearray(b"x") * 1_500_000_000)
                    time.sleep(2)
                return float(completion.strip().split()[-1:] == [str(answer)])
            """
        )
    )
    alone = whet.train(method="grpo", reward=f"{file}:exact_answer", folder=str(tmp_path / "a"), console=False, **SMALL)
    leaked.unlink()
    scale = {"reward_workers": 2, "reward_memory": 1.5}
    run = whet.train(
        method="grpo", reward=f"{file}:exact_answer", folder=str(tmp_path / "b"), scale=scale, console=False, **SMALL
    )
    assert leaked.exists() and "one that holds more than 1.5 GiB ends itself" in caplog.text
    assert weights_digest(run) == weights_digest(alone)
    rows = json.loads((run.folder / "run.json").read_text())["processes"]
    assert sum(each["restarts"] for each in rows) == 1


def test_a_node_that_is_killed_leaves_the_run_to_the_other(tmp_path, undisturbed, caplog):
    with demo_cluster(1, 2) as (address, cluster):
        node = cluster.add_node(num_cpus=2)
        killer = KillOnce(lambda: cluster.remove_node(node, allow_graceful=False))
        run = whet.train(
            method="grpo",
            folder=str(tmp_path / "run"),
            scale={"engines": 2, "address": address},
            callbacks=[killer],
            console=False,
            **SMALL,
        )
    assert killer.done
    assert prompt_ids(run.folder) == prompt_ids(undisturbed.folder)
    assert weights_digest(run) == weights_digest(undisturbed)


def test_a_full_object_store_slows_the_run_and_does_not_end_it(tmp_path, undisturbed):
    import numpy
    import ray

    with demo_cluster(1, 3) as (address, _):
        ray.init(address=address, log_to_driver=False)
        try:
            held = [ray.put(numpy.zeros(2**24, dtype=numpy.uint8)) for _ in range(20)]  # 320 MB into 256 MB
            run = whet.train(
                method="grpo",
                folder=str(tmp_path / "run"),
                scale={"engines": 2, "address": address},
                console=False,
                **SMALL,
            )
            assert len(held) == 20
        finally:
            ray.shutdown()
    assert weights_digest(run) == weights_digest(undisturbed)


DRIVER = """
import sys, whet
run = whet.train(method="grpo", folder=sys.argv[1], steps=200, batch={"prompts_per_step": 8, "group_size": 4},
                 eval={"prompts": 0}, report={"save_every": 1, "samples_per_step": 8}, scale={"engines": 2},
                 console=False)
"""


def test_a_killed_driver_leaves_no_process_and_a_run_that_goes_on(tmp_path):
    folder = tmp_path / "run"
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(folder)])
    while len(list((folder / "checkpoints").glob("step-*"))) < 1 and driver.poll() is None:
        time.sleep(0.2)
    driver.kill()
    driver.wait()
    until = time.monotonic() + 120
    while workers_of(f"WHET_TEST={os.getpid()}", "") and time.monotonic() < until:
        time.sleep(0.5)
    assert not workers_of(f"WHET_TEST={os.getpid()}", "")
    done = max(int(each.name.removeprefix("step-")) for each in (folder / "checkpoints").glob("step-*"))
    run = whet.resume(folder, steps=done + 1, console=False)
    found = prompt_ids(run.folder)
    assert {step for step, _, _ in found} == set(range(1, done + 2))
    by_step = [len([each for each in found if each[0] == step]) for step in range(1, done + 2)]
    assert by_step == [32] * (done + 1)
    prompts = [(step, prompt) for step, prompt, _ in found]
    assert len({prompt for _, prompt in prompts}) == 8 * (done + 1)  # none twice: fewer steps than an epoch


def test_a_trainer_rank_that_is_killed_ends_the_run_with_its_number(tmp_path):
    victims: list[int] = []

    def kill_a_rank():
        until = time.monotonic() + 200
        while time.monotonic() < until and not victims:
            time.sleep(0.5)
            if (tmp_path / "run" / "checkpoints").exists():
                ranks = workers_of(f"WHET_TEST={os.getpid()}", "_WorkerHost.call")
                if len(ranks) >= 2:
                    victims.append(max(ranks))
                    os.kill(victims[0], signal.SIGKILL)

    threading.Thread(target=kill_a_rank, daemon=True).start()
    with pytest.raises(RunFailed, match=r"rank [01]\b"):
        whet.train(
            method="grpo",
            folder=str(tmp_path / "run"),
            scale={"workers": 2, "timeout": 30},
            console=False,
            **{**SMALL, "steps": 400, "report": {"save_every": 1}},
        )
    assert victims
