"""Held-out checks and frames: they find a reward that is gamed, and leave one that is not in peace."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from whet.record.health.diagnosis import diagnosis
from whet.reward.call import as_reward
from whet.reward.checks import RewardChecks, frame_moves, frames
from whet.reward.combine import RewardPart
from whet.reward.find import find_reward
from whet.reward.score import score
from whet.training.assembly.rewards import build_checks
from whet.training.config import resolved
from whet.training.step_metrics import reward_company
from whet.types import Prompt, Sample, StepReport, StopReason, TokenBatch, WhetError

RIGHT = "<think>\n2 + 2 = 4.\n</think>\n<answer>4</answer>"


def sample(completion: str) -> Sample:
    return Sample(torch.tensor([1]), torch.tensor([True]), torch.zeros(1), (0, 0), StopReason.END, completion)


def asked(place: int = 0) -> Prompt:
    return Prompt(f"p{place}", (), text="2 + 2?", answer="4")


def anywhere(prompt: Prompt, completion: str) -> float:
    """A reward that is easily fooled."""
    return float("4" in completion)


def polite(prompt: Prompt, completion: str) -> float:
    return float("please" in completion)


def test_frames_keep_the_answer_and_change_the_rest() -> None:
    found = frames(RIGHT)
    assert found["the answer alone"] == "<answer>4</answer>" and found["another mark"].endswith("\\boxed{4}")
    assert found["nothing around the answer"] == RIGHT and "2 + 2 = 4" not in found["a plain sentence"]
    assert frames("so \\boxed{4}, I hope")["the answer alone"] == "\\boxed{4}"
    assert frames("no answer here") == {}


@pytest.mark.parametrize("name", ["exact_answer", "math_answer"])
def test_rewards_that_compare_answers_do_not_move_with_the_frame(name: str) -> None:
    reward = find_reward(name)
    completions = [RIGHT, "so \\boxed{4}, I hope", "<answer>5</answer>"]
    moves, framed = frame_moves([asked()] * 3, [sample(each) for each in completions], reward)
    assert moves == [] and framed == 3


def test_a_reward_that_reads_the_frame_moves() -> None:
    moves, framed = frame_moves([asked()], [sample("please take <answer>4</answer>")], as_reward(polite))
    assert framed == 1 and {move.frame for move in moves} == set(frames(RIGHT))
    assert all(move.score == 1 and move.framed_score == 0 for move in moves)


def scored(completions: list[str], reward: Any) -> tuple[list[Prompt], list[Sample]]:
    prompts = [asked(place) for place in range(len(completions))]
    return prompts, score(prompts, [sample(each) for each in completions], [RewardPart(reward)], 5.0)


def test_held_out_disagreement_is_the_share_of_rewarded_replies_it_rejects() -> None:
    loose = as_reward(anywhere)
    checks = RewardChecks(loose, 1.0, 5.0, find_reward("exact_answer"), in_frames=True)
    checks(*scored([RIGHT, "4 or 5", "\\boxed{4} \\boxed{5}", "nothing"], loose))
    notes = checks.take_notes()
    assert notes["held_out_disagreement"] == pytest.approx(2 / 3)  # the last was not rewarded: nothing to check
    assert notes["frame_moves"] == 0.5  # "\\boxed{5}" alone no longer holds a 4; the first one does
    assert notes["frame_pays"] == 0.5
    assert notes["checks_scored"] == 3 + 3 + 2 * 4
    assert checks.take_notes() == {}


def test_checks_change_no_score_and_draw_by_text_alone() -> None:
    loose = as_reward(anywhere)
    checks = RewardChecks(loose, 0.3, 5.0, find_reward("exact_answer"))
    drawn = [checks.is_drawn(asked(place), sample(f"{RIGHT} {place}")) for place in range(1000)]
    assert 240 < sum(drawn) < 360
    assert drawn == [checks.is_drawn(asked(place), sample(f"{RIGHT} {place}")) for place in range(1000)]


def test_a_failing_check_is_no_failure_of_the_run() -> None:
    def breaks(prompt: Prompt, completion: str) -> float:
        raise ValueError("no")

    loose = as_reward(anywhere)
    checks = RewardChecks(loose, 1.0, 5.0, as_reward(breaks))
    checks(*scored([RIGHT], loose))
    assert "held_out_disagreement" not in checks.take_notes()


def config(**reward: Any) -> Any:
    return resolved("grpo", {"reward": reward})


def test_settings_of_checks_are_checked() -> None:
    parts = [RewardPart(find_reward("exact_answer"))]
    assert build_checks(config(), parts) is None
    built = build_checks(config(held_out="math_answer", check_share=0.5), parts)
    assert built is not None and built.share == 0.5 and not built.in_frames
    for settings, said in (
        ({"check_share": 0.5}, "reward.check_share has no effect"),
        ({"held_out": "exact_answer"}, "is the first part itself"),
        ({"held_out": "exact_anser"}, "did you mean 'exact_answer'"),
        ({"frame_check": True, "held_out_settings": {"a": 1}}, "held_out_settings has no effect"),
    ):
        with pytest.raises(WhetError, match=said):
            build_checks(config(**settings), parts)


def batch(reward: list[float], lengths: list[int], logp: list[float]) -> TokenBatch:
    action = torch.tensor([[place < length for place in range(max(lengths))] for length in lengths])
    return TokenBatch(
        tokens=torch.zeros_like(action, dtype=torch.long),
        action=action,
        group=torch.tensor([0, 0, 0, 1, 1, 1]),
        reward=torch.tensor(reward),
        ref_logp=torch.tensor(logp)[:, None] * action,
    )


def test_the_company_of_the_reward_is_measured_within_groups() -> None:
    found = reward_company(batch([0, 1, 2, 10, 11, 12], [1, 2, 3, 1, 2, 3], [-1, -2, -3, -9, -10, -11]))
    assert found["reward_length_correlation"] == pytest.approx(1)
    assert found["reward_reference_correlation"] == pytest.approx(-1)
    # between groups longer is better, within them it is not
    other = reward_company(batch([1, 1, 1, 9, 9, 9], [1, 2, 1, 8, 9, 7], [-1.0] * 6))
    assert other == {}
    unscored = batch([float("nan")] * 3 + [0, 1, 2], [5, 1, 9, 3, 2, 1], [-1, -1, -1, -1, -2, -3])
    assert reward_company(unscored)["reward_length_correlation"] == pytest.approx(-1)


def steps(metrics: list[dict[str, float]], tokens: list[int] | None = None) -> list[StepReport]:
    return [
        StepReport(
            number, number, {"samples": 8, "tokens": 8 * (tokens[number - 1] if tokens else 20)}, {"total": 0.5}, each
        )
        for number, each in enumerate(metrics, 1)
    ]


def names(found: tuple[str, ...]) -> set[str]:
    return {each.partition(":")[0] for each in found}


def test_health_says_when_a_check_fails_and_only_then() -> None:
    rising = [{"held_out_disagreement": value} for value in [0.02] * 6 + [0.1, 0.3, 0.4, 0.4, 0.4, 0.5]]
    assert "held-out disagreement" in names(diagnosis(steps(rising)))
    low = [{"held_out_disagreement": 0.05}] * 12
    assert "held-out disagreement" not in names(diagnosis(steps(low)))
    steady = [{"held_out_disagreement": 0.2}] * 12  # a verifier that is stricter from the start
    assert "held-out disagreement" not in names(diagnosis(steps(steady)))
    assert "reward follows the frame" in names(diagnosis(steps([{"frame_moves": 0.4, "frame_pays": 0.3}] * 9)))
    assert "reward follows the frame" not in names(diagnosis(steps([{"frame_moves": 0.02, "frame_pays": 0.0}] * 9)))
    longer = steps([{"reward_length_correlation": 0.8}] * 12, [20] * 6 + [60] * 6)
    assert "reward follows length" in names(diagnosis(longer))
    assert "reward follows length" not in names(diagnosis(steps([{"reward_length_correlation": 0.8}] * 12)))
