"""Weights, exclusion, and time limits that hold on the main thread and off it."""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.commands import finished
from whet.limit import Overrun, limited
from whet.reward.call import as_reward
from whet.reward.combine import Gate, RewardPart
from whet.reward.failure import PartialFailure, RewardFailure
from whet.reward.score import Failures, TooManyFailures, num_unscorable, score
from whet.types import Prompt, Sample, StopReason, WhetError

PROMPTS = [Prompt(f"p{i}", (), text="q", answer=str(i)) for i in range(3)]


def sample(completion: str) -> Sample:
    return Sample(torch.tensor([1]), torch.tensor([True]), torch.zeros(1), (0, 0), StopReason.END, completion)


SAMPLES = [sample("a"), sample("bb"), sample("ccc")]


def length(completion: str) -> float:
    return len(completion)


def unreadable(completion: str) -> float | None:
    return None if completion == "bb" else 1.0


unreadable.__module__ = "whet.reward.answer"  # as one of the package's own


def part(function: Any, weight: Any = 1.0, name: str | None = None, **more: Any) -> RewardPart:
    return RewardPart(as_reward(function, name), weight, **more)


def run(*parts: RewardPart, timeout: float = 5.0, on_error: Any = "stop") -> list[Sample]:
    return score(PROMPTS, SAMPLES, parts, timeout, on_error)


def test_parts_are_named_and_summed_by_weight() -> None:
    scored = run(part(length), part(lambda completions: [1, 0, 1], -0.5, "batched", penalty=True))
    assert [dict(one.parts) for one in scored] == [
        {"length": 1.0, "batched": 1.0},
        {"length": 2.0, "batched": 0.0},
        {"length": 3.0, "batched": 1.0},
    ]
    assert [one.reward for one in scored] == [0.5, 2.0, 2.5]
    assert [one.completion for one in scored] == ["a", "bb", "ccc"]
    assert SAMPLES[0].reward is None


def test_a_scored_sample_is_the_same_but_for_its_scores() -> None:
    played = replace(sample("a"), environment=object(), episode="e", metrics={"depth": 2.0}, role="white")
    scored = played.scored({"p": 1.0}, 0.5, {"column": 3})
    expected = replace(played, parts={"p": 1.0}, reward=0.5, extra={"column": 3}, environment=None)
    assert vars(scored) == vars(expected) and type(scored) is Sample
    assert played.reward is None and played.environment is not None
    with pytest.raises(FrozenInstanceError):
        scored.reward = 1.0  # type: ignore[misc]


def test_a_reward_of_your_own_is_checked_too() -> None:
    class Own:
        name = "own"

        def __call__(self, prompts: Sequence[Prompt], samples: Sequence[Sample]) -> list[float | None]:
            return [float("nan") if one.completion == "bb" else 2.0 for one in samples]

    scored = run(RewardPart(Own()), part(length), on_error="exclude")
    assert [one.reward for one in scored] == [None, None, None]
    with pytest.raises(RewardFailure, match=r"'own' returned nan.*'p1', completion 'bb'"):
        run(RewardPart(Own()))


def test_none_from_a_function_leaves_its_part_out_of_the_sum() -> None:
    maybe = part(lambda completion: None if completion == "bb" else 1.0, name="maybe")
    scored = run(part(length), maybe)
    assert [one.reward for one in scored] == [2.0, 2.0, 4.0] and scored[1].parts == {"length": 2.0}
    scored = run(maybe, part(length, 0.0))
    assert [one.reward for one in scored] == [1.0, None, 1.0], "what has no weight has no say"


def test_tasks_with_a_reward_each() -> None:
    """TRL's pattern: every function returns None for the rows of other tasks."""

    def math_reward(completions, task, **_):  # type: ignore[no-untyped-def]
        return [float(len(text)) if kind == "math" else None for text, kind in zip(completions, task, strict=True)]

    def code_reward(completions, task, **_):  # type: ignore[no-untyped-def]
        return [10.0 if kind == "code" else None for kind in task]

    tasks = ["math", "code", "neither"]
    prompts = [Prompt(f"p{i}", (), text="q", meta={"task": task}) for i, task in enumerate(tasks)]
    parts = [part(math_reward), part(code_reward, 0.5)]
    scored = score(prompts, SAMPLES, parts, 5.0, "stop")
    assert [one.reward for one in scored] == [1.0, 5.0, None]
    assert [dict(one.parts) for one in scored] == [{"math_reward": 1.0}, {"code_reward": 10.0}, {}]
    assert [one.outcome for one in scored] == [1.0, 10.0, None]


def test_a_failure_is_not_a_row_of_another_task() -> None:
    def fails(completion: str) -> float:
        if completion == "bb":
            raise ValueError
        return 1.0

    scored = run(part(length), part(fails), on_error="exclude")
    assert [one.reward for one in scored] == [2.0, None, 4.0]


def test_a_reward_in_another_process_tells_what_does_not_apply_from_what_failed() -> None:
    class Remote:
        name, limits_itself, skips_none = "remote", True, True

        def __call__(self, prompts: Sequence[Prompt], samples: Sequence[Sample]) -> list[float | None]:
            raise PartialFailure("one was lost", [None, None, 1.0], [False, True, False])

    scored = run(part(length), RewardPart(Remote()), on_error="exclude")
    assert [one.reward for one in scored] == [1.0, None, 4.0]


def test_a_part_that_does_not_apply_shuts_the_gate_on_it_and_leaves_its_statistics() -> None:
    first = part(lambda completion: None if completion == "a" else float(len(completion)), name="first")
    gated = part(lambda completion: 5.0, name="gated", gate=Gate("first", 3.0, -1.0))
    assert [one.reward for one in run(first, gated)] == [-1.0, 1.0, 8.0]
    normed = [one.reward for one in run(RewardPart(first.reward, 1.0, normalise="batch"), part(length, 0.5))]
    assert normed[0] == 0.5 and normed[1] is not None and normed[2] is not None
    assert normed[1] - 1.0 == pytest.approx(-(normed[2] - 1.5)) and normed[1] < 1.0


def test_what_a_function_of_trls_asks_and_logs() -> None:
    seen = []

    def asks(completions, trainer_state, log_metric, log_extra, **_):  # type: ignore[no-untyped-def]
        seen.append((trainer_state.global_step, trainer_state.max_steps))
        log_metric("long", sum(len(text) > 1 for text in completions) / len(completions))
        log_extra("size", [len(text) for text in completions])
        return [1.0] * len(completions)

    def by_keyword(completions, **kwargs):  # type: ignore[no-untyped-def]
        kwargs["log_metric"]("long", 0.0)
        return [0.0] * len(completions)

    failures = Failures("stop")
    scored = score(PROMPTS, SAMPLES, [part(asks), part(by_keyword)], 5.0, failures, progress=0.25, steps=40)
    assert seen == [(10, 40)] and [dict(one.extra) for one in scored] == [{"size": 1}, {"size": 2}, {"size": 3}]
    assert failures.take_notes() == {"logged/long": pytest.approx(1 / 3)} and failures.take_notes() == {}

    def miscounts(completions, log_extra):  # type: ignore[no-untyped-def]
        log_extra("size", [1])
        return [1.0] * len(completions)

    with pytest.raises(RewardFailure, match="logged 1 values of 'size' for 3 samples"):
        run(part(miscounts))


def test_async_functions_wait_together() -> None:
    gate = []

    async def one_by_one(completion: str) -> float:
        gate.append(completion)
        while len(gate) < len(SAMPLES):  # ends only where all were started before the first is done
            await asyncio.sleep(0)
        return float(len(completion))

    async def together(completions, **_):  # type: ignore[no-untyped-def]
        await asyncio.sleep(0)
        return [1.0, None, 1.0]

    async def in_a_notebook() -> list[Sample]:
        return run(part(together))

    assert [one.reward for one in run(part(one_by_one), part(together))] == [2.0, 2.0, 4.0]
    assert [one.reward for one in asyncio.run(in_a_notebook())] == [1.0, None, 1.0]


def test_none_from_a_built_in_makes_a_sample_unscorable_and_is_counted() -> None:
    scored = run(part(length), part(unreadable))
    assert [one.reward for one in scored] == [2.0, None, 4.0]
    assert scored[1].parts == {"length": 2.0}
    assert num_unscorable(scored) == 1


def test_refused_sums() -> None:
    with pytest.raises(WhetError, match="two rewards are called 'length'"):
        run(part(length), part(length))
    with pytest.raises(WhetError, match=r"every reward has weight 0 \(length\)"):
        run(part(length, 0.0))
    with pytest.raises(WhetError, match="'length' has weight nan"):
        part(length, float("nan"))
    with pytest.raises(WhetError, match="no reward is given"):
        run()
    with pytest.raises(WhetError, match="on_error is 'skip'; give one of tolerate, stop, exclude"):
        run(part(length), on_error="skip")
    with pytest.raises(WhetError, match="timeout is 0"):
        run(part(length), timeout=0)
    with pytest.raises(WhetError, match="not finite"):
        run(part(lambda completion: 1e308, 10.0, "big"))


def helper(text: str) -> float:
    return float(text.index("z"))  # THE LINE


def fragile(prompt: str, completion: str) -> float:
    return helper(completion) if completion == "bb" else 1.0


def line_of(mark: str) -> int:
    with open(__file__) as file:
        return next(number for number, line in enumerate(file, 1) if mark in line)


def test_an_exception_is_wrapped_with_the_users_line() -> None:
    with pytest.raises(RewardFailure) as caught:
        run(part(fragile))
    message = str(caught.value)
    assert "'fragile' raised ValueError: substring not found" in message
    assert f"{__file__}:{line_of('THE' + ' LINE')} " in message
    assert "prompt 'p1', completion 'bb'" in message
    assert "with reward.on_error=exclude" in message
    assert "\n" not in message and isinstance(caught.value.__cause__, ValueError)


def test_exclusion_leaves_out_the_sample_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        scored = run(part(fragile), part(length), on_error="exclude")
    assert [one.reward for one in scored] == [2.0, None, 4.0]
    assert scored[1].parts == {"length": 2.0} and num_unscorable(scored) == 1
    assert "failed on 1 of 3 samples" in caplog.text and "substring not found" in caplog.text


def test_a_failing_batched_call_names_its_first_sample_and_excludes_all_of_it() -> None:
    def batched(completions: list[str]) -> list[float]:
        raise KeyError("gone")

    with pytest.raises(RewardFailure, match=r"KeyError: 'gone'.*one call on 3 samples, the first: prompt 'p0'"):
        run(part(batched))
    assert num_unscorable(run(part(batched), part(length), on_error="exclude")) == 3


def test_mistakes_in_the_data_are_never_excluded() -> None:
    def asks(completion: str, colour: str) -> float:
        return 1.0

    with pytest.raises(WhetError, match="column 'colour'"):
        run(part(asks), on_error="exclude")


def test_a_list_of_the_wrong_length_is_a_failure_like_any_other() -> None:
    short = part(lambda completions: [1.0], name="short")
    with pytest.raises(RewardFailure, match="returned 1 scores for 3"):
        run(short, on_error="stop")
    assert all(sample.reward is None for sample in run(short, on_error="exclude"))


def test_exit_is_a_failure_and_an_interrupt_is_not() -> None:
    def leaves(completion: str) -> float:
        sys.exit("bye")

    def interrupted(completion: str) -> float:
        raise KeyboardInterrupt

    with pytest.raises(RewardFailure, match="SystemExit: bye"):
        run(part(leaves))
    with pytest.raises(KeyboardInterrupt):
        run(part(interrupted), on_error="exclude")


def loops(prompt: str, completion: str) -> float:
    while completion == "bb":
        pass
    return 1.0


def loops_and_catches(completion: str) -> float:
    while completion == "bb":
        try:
            time.sleep(0.01)
        except Exception:
            continue
    return 1.0


def explodes(prompt: str, completion: str) -> float:
    if completion == "bb":
        re.match(r"(a+)+$", "a" * 40 + "b")
    return 1.0


def sleeps(completion: str) -> float:
    time.sleep(30 if completion == "bb" else 0)
    return 1.0


def in_worker(call: Callable[[], Any]) -> BaseException | None:
    caught: list[BaseException] = []

    def work() -> None:
        try:
            call()
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(10)
    return caught[0] if caught else None


@pytest.mark.parametrize("function", [loops, loops_and_catches, explodes, sleeps])
def test_endless_rewards_are_stopped_on_the_main_thread(function: Any) -> None:
    started = time.monotonic()
    with pytest.raises(RewardFailure) as caught:
        run(part(function), timeout=0.3)
    assert time.monotonic() - started < 10
    message = str(caught.value)
    assert f"'{function.__name__}' took longer than 0.3 s at {__file__}:" in message
    assert "prompt 'p1', completion 'bb'" in message and "reward.timeout" in message


@pytest.mark.parametrize("function", [loops, loops_and_catches, sleeps])
def test_endless_rewards_are_stopped_in_a_worker_thread(function: Any) -> None:
    started = time.monotonic()
    error = in_worker(lambda: run(part(function), timeout=0.3))
    assert time.monotonic() - started < 10
    assert isinstance(error, RewardFailure)
    assert f"'{function.__name__}' took longer than 0.3 s at {__file__}:" in str(error)
    assert "prompt 'p1', completion 'bb'" in str(error)


def test_a_stray_python_loop_does_not_burn_on() -> None:
    running: list[threading.Thread] = []

    def endless(completion: str) -> float:
        running.append(threading.current_thread())
        while True:
            pass

    assert isinstance(in_worker(lambda: run(part(endless), timeout=0.2)), RewardFailure)
    running[0].join(5)
    assert running[0].name == "whet-reward" and not running[0].is_alive()


def test_code_that_never_yields_the_interpreter_ends_the_process_off_the_main_thread(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
        import re, threading, torch
        from whet import limit
        from whet.reward.call import as_reward
        from whet.reward.combine import RewardPart
        from whet.reward.score import score
        from whet.types import Prompt, Sample, StopReason
        limit.GRACE_SECONDS = 0.3
        def explodes(completion):
            return re.match(r"(a+)+$", "a" * 40 + "b")
        sample = Sample(torch.tensor([1]), torch.tensor([True]), torch.zeros(1), (0, 0), StopReason.END, "a")
        arguments = ([Prompt("p", (), text="q")], [sample], [RewardPart(as_reward(explodes))], 0.2, "stop")
        thread = threading.Thread(target=score, args=arguments)
        thread.start()
        thread.join()
        print("survived")
    """)
    )
    ended = finished(str(program))
    assert ended.returncode == 1 and "survived" not in ended.stdout
    assert "Timeout (0:00:00.7" in ended.stderr and "in explodes" in ended.stderr


def test_a_batched_call_has_one_limit_and_a_timeout_can_be_excluded() -> None:
    def batched(completions: list[str]) -> list[float]:
        time.sleep(20)
        return [1.0] * len(completions)

    started = time.monotonic()
    scored = run(part(batched), part(length), timeout=0.2, on_error="exclude")
    assert time.monotonic() - started < 10
    assert num_unscorable(scored) == 3 and scored[2].parts == {"length": 3.0}


def test_a_swallowed_interruption_is_still_a_timeout() -> None:
    def swallows(completion: str) -> float:
        try:
            time.sleep(20)
        except BaseException:
            return 1.0
        return 0.0

    with pytest.raises(RewardFailure, match="took longer"):
        run(part(swallows), timeout=0.2)


def test_handler_and_timer_are_put_back() -> None:
    rung: list[int] = []
    earlier = signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
    try:
        handler = signal.getsignal(signal.SIGALRM)
        signal.setitimer(signal.ITIMER_REAL, 0.4)
        run(part(length))
        with pytest.raises(RewardFailure):
            run(part(loops), timeout=0.1)
        assert signal.getsignal(signal.SIGALRM) is handler and not rung
        left, interval = signal.getitimer(signal.ITIMER_REAL)
        assert 0 < left < 0.31 and interval == 0
        time.sleep(0.4)
        assert rung == [1]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier)


def test_limits_nest() -> None:
    def outer() -> str:
        with pytest.raises(Overrun):
            limited(lambda: time.sleep(5), 0.1)
        time.sleep(5)
        return "late"

    started = time.monotonic()
    with pytest.raises(Overrun):
        limited(outer, 0.3)
    assert 0.25 < time.monotonic() - started < 4
    assert limited(lambda: 7, 1.0) == 7


def flaky(failing: set[str]) -> Any:
    def breaks(completion: str) -> float:
        if completion in failing:
            raise ValueError(f"cannot read {completion}")
        return 1.0

    return breaks


def many(num_samples: int) -> tuple[list[Prompt], list[Sample]]:
    prompts = [Prompt(f"p{i}", (), text="q") for i in range(num_samples)]
    return prompts, [sample(f"r{i}") for i in range(num_samples)]


def test_few_failures_are_tolerated_and_many_stop_the_run_with_nothing_lost() -> None:
    prompts, samples = many(60)
    few = score(prompts, samples, [part(flaky({"r1", "r2", "r3"}))], 5.0)
    assert num_unscorable(few) == 3 and sum(one.reward == 1.0 for one in few) == 57
    bad = {f"r{i}" for i in range(20, 24)}
    with pytest.raises(TooManyFailures) as caught:
        score(prompts, samples, [part(length), part(flaky(bad))], 5.0)
    assert "'breaks' failed on 4 of the last 60 samples, more than 5%; the latest: " in str(caught.value)
    assert "cannot read r23" in str(caught.value) and "prompt 'p23'" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [one.reward is None for one in caught.value.samples] == [one.completion in bad for one in samples]
    assert caught.value.samples[20].parts == {"length": 3.0}
    assert num_unscorable(score(prompts, samples, [part(flaky(bad))], 5.0, "exclude")) == 4


def test_failures_are_remembered_from_call_to_call_and_judged_from_fifty_samples_on() -> None:
    failures = Failures()
    prompts, samples = many(20)
    always = [part(flaky({one.completion for one in samples[1:]}))]
    for _ in range(2):
        assert num_unscorable(score(prompts, samples, always, 5.0, failures)) == 19
    assert failures.counts == {"breaks": (38, 40)}
    with pytest.raises(TooManyFailures, match="failed on 57 of the last 60 samples"):
        score(prompts, samples, always, 5.0, failures)


def test_old_failures_leave_the_window() -> None:
    failures = Failures(most_share=0.1, least_samples=10, window=20)
    failures.note("r", [True] * 2 + [False] * 18, "why")
    assert failures.excess() is None
    failures.note("r", [True], "why not")
    assert failures.excess() is None  # one of the two old ones has left
    failures.note("r", [True, True], "again")
    assert "3 of the last 20" in str(failures.excess()) and "again" in str(failures.excess())
    failures.note("r", [False] * 20)
    assert failures.excess() is None and failures.counts == {"r": (5, 43)}


def test_one_reward_that_fails_is_not_diluted_by_another_that_works() -> None:
    prompts, samples = many(50)
    parts = [part(length), part(flaky({"r1", "r2", "r3"}))]
    with pytest.raises(TooManyFailures, match="'breaks' failed on 3 of the last 50"):
        score(prompts, samples, parts, 5.0, Failures())


def test_refused_policies() -> None:
    with pytest.raises(WhetError, match="tolerated share of failures is 2; give a share"):
        Failures(most_share=2)
    with pytest.raises(WhetError, match="last 10 samples, from 50 on"):
        Failures(window=10)
    with pytest.raises(WhetError, match="on_error is 'shrug'"):
        Failures("shrug")  # type: ignore[arg-type]


def test_a_stop_policy_raises_the_first_failure_itself() -> None:
    prompts, samples = many(3)
    with pytest.raises(RewardFailure, match="cannot read r1") as caught:
        score(prompts, samples, [part(flaky({"r1"}))], 5.0, Failures("stop"))
    assert not isinstance(caught.value, TooManyFailures)


def test_weights_follow_the_progress_and_parts_stay_raw() -> None:
    early = part(lambda completions: [1.0, 1.0, 0.0], ((0.0, 1.0), (0.5, 0.0)), "form")
    late = part(length, ((0.0, 0.0), (0.5, 1.0)), cap=(0.0, 2.0), gate=Gate("form", 1.0, otherwise=-1.0))

    def totals(progress: float) -> list[float | None]:
        scored = score(PROMPTS, SAMPLES, [early, late], 5.0, progress=progress)
        assert [dict(one.parts) for one in scored][2] == {"form": 0.0, "length": 3.0}
        return [one.reward for one in scored]

    assert totals(0.0) == [1.0, 1.0, 0.0]
    assert totals(0.25) == [1.0, 1.5, -0.5]
    assert totals(1.0) == [1.0, 2.0, -1.0]


def test_a_part_is_normalised_within_the_samples_of_one_prompt() -> None:
    prompts = [PROMPTS[0], PROMPTS[1], PROMPTS[0], PROMPTS[1]]
    samples = [sample(text) for text in ("a", "bbbbb", "ccc", "ddddd")]
    scored = score(prompts, samples, [part(length, normalise="group")], 5.0)
    assert [one.parts["length"] for one in scored] == [1.0, 5.0, 3.0, 5.0]
    assert [one.reward for one in scored] == pytest.approx([-(0.5**0.5), 0.0, 0.5**0.5, 0.0], abs=1e-5)


def test_a_reward_that_limits_itself_may_take_longer() -> None:
    class Slow:
        name = "slow"
        limits_itself = True
        prepared = False

        def prepare(self) -> None:
            self.prepared = True

        def __call__(self, prompts: Sequence[Prompt], samples: Sequence[Sample]) -> list[float | None]:
            time.sleep(0.15)
            return [float(self.prepared)] * len(samples)

    assert [one.reward for one in run(RewardPart(Slow()), timeout=0.05)] == [1.0, 1.0, 1.0]


def test_quick_calls_share_one_watchdog_and_slow_ones_renew_it(monkeypatch):
    """It starts a thread each time: one per call cost more than the calls."""
    from whet import limit

    started, ended = [], []
    monkeypatch.setattr(limit.faulthandler, "dump_traceback_later", lambda seconds, **_: started.append(seconds))
    monkeypatch.setattr(limit.faulthandler, "cancel_dump_traceback_later", lambda: ended.append(1))
    now = iter([0.0, 0.1, 0.2, 1.3, 1.4])
    monkeypatch.setattr(limit.time, "monotonic", lambda: next(now))
    with limit.watchdog(5.0) as renew:
        for _ in range(4):
            renew()
    assert started == [5.0 * 2 + limit.GRACE_SECONDS] * 2  # at 0.0 and at 1.3
    assert ended == [1]


def test_a_watchdog_that_another_one_ended_starts_again_with_the_next_call(monkeypatch):
    from whet import limit

    started = []
    monkeypatch.setattr(limit.faulthandler, "dump_traceback_later", lambda seconds, **_: started.append(seconds))
    with limit.watchdog(1.0) as renew:
        with limit.watchdog(2.0):
            pass
        renew()
    assert started == [12.0, 14.0, 12.0]


def test_the_share_of_failures_is_that_since_it_was_last_asked_also_after_a_restore() -> None:
    failures = Failures("exclude")
    assert failures.take_notes() == {}
    failures.note("mine", [False, True, False, False])
    assert failures.take_notes() == {"failed_rewards": 0.25} and failures.take_notes() == {}
    failures.note("mine", [False, False])
    assert failures.take_notes() == {}
    failures.note("mine", [True, True])
    again = Failures("exclude")
    again.restore(failures.state())
    assert again.take_notes() == {}
    again.note("mine", [True, False])
    assert again.take_notes() == {"failed_rewards": 0.5}
