"""A run for each health rule that it must speak about, and runs with the same numbers about which it must not."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from whet.record.log import EvalRecord
from whet.types import StepReport

Number = float | Callable[[int], float]
TOKENS = {
    "objective.clip": "ppo_clip",
    "objective.clip.high": 0.2,
    "objective.clip.low": 0.2,
    "objective.ratio": "token",
}
COMPLETIONS = {**TOKENS, "objective.ratio": "sequence", "objective.clip.high": 4e-4, "objective.clip.low": 3e-4}


@dataclass(frozen=True)
class Course:
    """What the steps of a run say; each number is constant or a function of the step."""

    reward: Mapping[str, Number] = field(default_factory=lambda: {"total": 0.4, "right": 0.4})
    metrics: Mapping[str, Number] = field(default_factory=dict)
    counts: Mapping[str, Number] = field(default_factory=dict)
    seconds: Number = 1.0
    settings: Mapping[str, Any] = field(default_factory=dict)
    evals: Sequence[tuple[int, dict[str, float]]] = ()
    eval_size: int = 500  # prompts of an evaluation
    steps: int = 30  # when it is looked at

    def reports(self, num_steps: int) -> list[StepReport]:
        def at(values: Mapping[str, Number], step: int) -> dict[str, float]:
            return {name: value(step) if callable(value) else value for name, value in values.items()}

        plain = {"samples": 100, "tokens": 2000, "truncated": 0, "unscorable": 0} if self.reward else {"rows": 8}
        return [
            StepReport(
                step,
                step - 1,
                {name: int(value) for name, value in at({**plain, **self.counts}, step).items()},
                at(self.reward, step),
                at(self.metrics, step),
                seconds=at({"train": self.seconds}, step),
            )
            for step in range(1, num_steps + 1)
        ]

    def evaluations(self) -> list[EvalRecord]:
        return [EvalRecord(step, "eval", result, 1.0, self.eval_size) for step, result in self.evals]


def after(step: int, before: float, later: float) -> Callable[[int], float]:
    return lambda now: before if now < step else later


def line(start: float, slope: float) -> Callable[[int], float]:
    return lambda step: start + slope * step


UNPAID = {"reward.parts": {"right": [0.0], "easy": [1.0]}, "objective.kl.beta": 0.04}


def two(right: Number, easy: Number) -> dict[str, Number]:
    """A reward of two parts."""

    def value(each: Number, step: int) -> float:
        return each(step) if callable(each) else each

    return {"right": right, "easy": easy, "total": lambda step: value(right, step) + value(easy, step)}


USUAL = {
    **{"steps": 200, "optimizer.warmup_steps": 80, "optimizer.epsilon": 1e-8, "optimizer.max_gradient_norm": 0.1},
    **{"optimizer.learning_rate": 1e-4, "optimizer.weight_decay": 0.1, "sampling.temperature": 1.2},
    **{"model.lora.rank": 64, "model.lora.alpha": 16.0, "objective.kl": "k3", "objective.kl.beta": 0.5},
    **{"objective.baseline": "gae", "objective.baseline.gamma": 0.99},
}
RISING = {"total": line(0.3, 0.02), "accuracy": line(0.3, 0.02)}
SOLVED = {"total": 1.0, "accuracy": 1.0}
FLAT = {"total": 0.4, "accuracy": 0.4}
PAIRS = {
    "loss": line(0.69, -0.01),
    "chosen_logp": line(-50, 0.3),
    "rejected_logp": line(-52, -0.3),
    "chosen_mean_logp": line(-1.0, 0.005),
    "rejected_mean_logp": line(-1.1, -0.005),
    "chosen_length": 50.0,
    "rejected_length": 48.0,
    "drift": lambda step: 0.3 * (step - 1),
    "margin": line(0.0, 0.06),
    "margin_square": lambda step: (0.06 * step) ** 2 + 0.1,
    "longer": 2.0,
    "longer_square": 104.0,
    "longer_margin": lambda step: 2 * 0.06 * step + 0.3,
    "accuracy": line(0.5, 0.01),
    "chosen_is_longer": 0.55,
    "alike": 0.0,
}
BETA = {"objective.score": "log_ratio", "objective.curve": "logistic", "objective.curve.beta": 0.1}


def pairs(settings: Mapping[str, Any] | None = None, evals: Sequence[Any] = (), **changes: Number) -> Course:
    return Course({}, {**PAIRS, **changes}, settings=settings or {}, evals=evals)


def rows(evals: Sequence[Any] = (), **metrics: Number) -> Course:
    return Course({}, {"loss": line(3, -0.05), **metrics}, evals=evals)


@dataclass(frozen=True)
class Case:
    """`ill` must be found, and `well`, which differ in why the same numbers are normal, must not."""

    ill: Course
    well: Mapping[str, Course]


FALLING = [(step, {"accuracy": 0.5 - 0.01 * step}) for step in range(0, 31, 5)]
SAME = [(step, {"accuracy": 0.3}) for step in range(0, 31, 10)]
CASES: dict[str, Case] = {
    "evaluation falls": Case(
        Course(evals=[(0, {"accuracy": 0.5}), (1, {"accuracy": 0.3}), (30, {"accuracy": 0.2})]),
        {
            "it stays": Course(evals=SAME),
            "it rises": Course(evals=[(0, {"accuracy": 0.3}), (30, {"accuracy": 0.5})]),
            "so few prompts": Course(evals=[(0, {"accuracy": 0.5}), (20, {"accuracy": 0.3})], eval_size=20),
            "nobody knows how many prompts": Course(evals=FALLING, eval_size=0),
        },
    ),
    "evaluation lags": Case(
        Course(RISING, evals=SAME),
        {
            "evaluation follows": Course(RISING, evals=[(0, {"accuracy": 0.3}), (20, {"accuracy": 0.5})]),
            "so few prompts": Course(RISING, evals=SAME, eval_size=40),
            "training gains little": Course({"total": line(0.3, 0.004)}, evals=SAME),
            "training gained since": Course({"total": lambda step: 0.3 + 0.02 * max(0, step - 10)}, evals=SAME[:2]),
            "another part pays": Course(two(0.3, line(0.0, 0.02)), evals=SAME),
        },
    ),
    "evaluated on training rows": Case(
        Course(settings={"run.overlap": "40 of 200 eval prompts are also trained on; what is measured there"}),
        {"none are": Course(settings={"run.data": "task:arithmetic (1024 prompts)"})},
    ),
    "slow decode path": Case(
        Course(settings={"run.device": "cuda, 16 threads", "run.decode_path": "fused decoder (layer 26 differs)"}),
        {
            "graphs": Course(settings={"run.device": "cuda, 16 threads", "run.decode_path": "CUDA graphs"}),
            "no GPU": Course(settings={"run.device": "cpu, 2 threads", "run.decode_path": "own cache (one reason)"}),
            "an engine of one's own": Course(settings={"run.device": "cuda", "run.decode_path": "the engine Mine"}),
        },
    ),
    "gold refused": Case(
        Course({"total": line(0.2, 0.01)}, {"agreed_groups": 0.5, "refused_majorities": 0.4}, {"prompts": 10}),
        {
            "the model is right": Course(FLAT, {"agreed_groups": 0.8, "refused_majorities": 0.1}, {"prompts": 10}),
            "few agree": Course(FLAT, {"agreed_groups": 0.02, "refused_majorities": 1.0}, {"prompts": 10}),
            "those that agree are right no more often": Course(
                {"total": 0.1, "accuracy": 0.1}, {"agreed_groups": 0.3, "refused_majorities": 0.9}, {"prompts": 10}
            ),
            "the policy turned wrong": Course(
                FLAT, {"agreed_groups": 0.3, "refused_majorities": after(12, 0.0, 0.8)}, {"prompts": 10}
            ),
            "the first were hardly refused": Course(
                {"total": lambda step: 0.5 if step < 8 else 0.3 if step < 45 else 0.64},
                {
                    "agreed_groups": 0.5,
                    "refused_majorities": lambda step: 0.05 if step < 8 else 0.6 if step < 45 else 0.35,
                },
                {"prompts": 10},
                steps=80,
            ),
            "it learned better": Course(
                {"total": after(16, 0.12, 0.6)},
                {"agreed_groups": 0.5, "refused_majorities": after(16, 0.8, 0.0)},
                {"prompts": 10},
                steps=40,
            ),
            "fewer are right than at first": Course(
                {"total": after(2, 0.9, 0.3), "accuracy": after(2, 0.9, 0.3)},
                {"agreed_groups": 0.4, "refused_majorities": 0.5},
                {"prompts": 10},
            ),
        },
    ),
    "identical completions": Case(
        Course({"total": 0.2}, {"agreed_groups": 1.0, "entropy": 0.7}),
        {
            "they are right": Course(SOLVED, {"agreed_groups": 1.0, "entropy": 0.7}),
            "the policy is sure": Course({"total": 0.2}, {"agreed_groups": 1.0, "entropy": 0.001}),
            "some differ": Course({"total": 0.2}, {"agreed_groups": 0.9, "entropy": 0.7}),
            "none agrees at times": Course({"total": 0.2}, {"agreed_groups": after(9, math.nan, 1.0), "entropy": 0.7}),
        },
    ),
    "few prompts": Case(
        Course(settings={"run.data": "rows.jsonl (1 prompts, 200 held out)"}),
        {
            "many": Course(settings={"run.data": "task:arithmetic difficulty 3 (1024 prompts, 200 held out)"}),
            "nobody knows": Course(settings={"run.data": "rows.jsonl (demonstrations)"}),
            "some twice": Course(settings={"run.data": "rows.jsonl (512 prompts, 400 different, 200 held out)"}),
        },
    ),
    "setting out of range": Case(
        Course(FLAT, settings={"optimizer.warmup_steps": 5000, "steps": 60}),
        {
            "it learns all the same": Course(RISING, settings={"optimizer.warmup_steps": 5000, "steps": 60}),
            "usual values": Course(FLAT, settings=USUAL),
            "a discount by turns": Course(
                FLAT, settings={"objective.baseline": "turn_return", "objective.baseline.gamma": 0.5}
            ),
        },
    ),
    "not a number": Case(
        Course(metrics={"loss": float("nan")}), {"an environment's own": Course(metrics={"env_x": float("nan")})}
    ),
    "entropy collapse": Case(
        Course(FLAT, {"entropy": after(6, 2.0, 0.1)}),
        {
            "the task is solved": Course(SOLVED, {"entropy": after(6, 2.0, 0.1)}),
            "the reward rises": Course(RISING, {"entropy": after(6, 2.0, 0.1)}),
            "it fell to a fifth": Course(FLAT, {"entropy": after(6, 2.0, 0.4)}),
        },
    ),
    "entropy explosion": Case(
        Course(FLAT, {"entropy": after(6, 0.5, 3.0)}),
        {
            "the reward rises": Course(RISING, {"entropy": after(6, 0.5, 3.0)}),
            "by less than a nat": Course(FLAT, {"entropy": after(6, 0.1, 0.9)}),
        },
    ),
    "entropy falls": Case(
        Course(RISING, {"entropy": after(6, 2.0, 0.5)}), {"a little": Course(RISING, {"entropy": after(6, 2.0, 1.2)})}
    ),
    "KL runaway": Case(
        Course(FLAT, {"kl": 11.0}),
        {
            "far, but no further than before": Course(FLAT, {"kl": 9.0}),
            "four times as far, and near": Course(FLAT, {"kl": after(28, 0.1, 0.9)}),
            "it grows slowly": Course(FLAT, {"kl": line(0.0, 0.02)}),
            "the reward rises with it": Course(RISING, {"kl": after(28, 0.1, 2.0)}),
            "a single step": Course(FLAT, {"kl": lambda step: 20.0 if step == 29 else 0.1}),
        },
    ),
    "clipping": Case(
        Course(FLAT, {"reweighted": 0.6}, settings=TOKENS),
        {
            "one update per step": Course(FLAT, {"reweighted": 0.0}, settings=TOKENS),
            "a narrow band around completions": Course(FLAT, {"reweighted": 0.95}, settings=COMPLETIONS),
            "a narrow band around tokens": Course(
                FLAT, {"reweighted": 0.95}, settings={**TOKENS, "objective.clip.high": 4e-4, "objective.clip.low": 3e-4}
            ),
            "a rule that weighs anew": Course(
                FLAT, {"reweighted": 1.0}, settings={"objective.clip": "soft_gate", "objective.ratio": "token"}
            ),
            "a third": Course(FLAT, {"reweighted": 0.3}, settings=TOKENS),
            "nobody knows the method": Course(FLAT, {"reweighted": 0.9}),
        },
    ),
    "clipped by design": Case(
        Course(FLAT, {"reweighted": 0.95}, settings=COMPLETIONS),
        {"clipping that means something": Course(FLAT, {"reweighted": 0.95}, settings=TOKENS)},
    ),
    "ratio drift": Case(
        Course(FLAT, {"ratio": 1.3}),
        {
            "one update per step": Course(FLAT, {"ratio": 1.0}),
            "now above, now below": Course(FLAT, {"ratio": lambda step: 1.3 if step % 2 else 0.7}),
            "a product of whole completions": Course(
                FLAT, {"ratio": 1.3}, settings={"objective.ratio": "sequence_product"}
            ),
            "a little": Course(FLAT, {"ratio": 1.04}),
        },
    ),
    "gradient spike": Case(
        Course(
            {"total": lambda step: {11: 5.0, 30: 50.0}.get(step, 0.4)},
            {"gradient_norm": lambda step: {11: 20.0, 30: 800.0}.get(step, 1.0)},
        ),
        {
            "the reward is as before": Course(metrics={"gradient_norm": after(30, 1.0, 20.0)}),
            "the steps before had no signal": Course(metrics={"gradient_norm": after(30, 0.0, 5.0)}),
            "five times": Course(metrics={"gradient_norm": after(30, 1.0, 5.0)}),
        },
    ),
    "no gradient": Case(
        Course(metrics={"gradient_norm": 0.0, "uniform_groups": 0.5}),
        {
            "nothing to learn": Course(metrics={"gradient_norm": 0.0, "uniform_groups": 1.0}),
            "one step": Course(metrics={"gradient_norm": lambda step: float(step != 29), "uniform_groups": 0.5}),
            "the schedule has ended": Course(
                metrics={"gradient_norm": 0.0, "uniform_groups": 0.5, "learning_rate": 0.0}
            ),
            "all pairs are learned": pairs(gradient_norm=0.0, loss=0.0),
        },
    ),
    "huge gradient": Case(
        Course(metrics={"gradient_norm": after(11, 1.0, 2000.0)}),
        {
            "it was so from the start": Course(metrics={"gradient_norm": 2000.0}),
            "a hundredfold": Course(metrics={"gradient_norm": after(11, 1.0, 100.0)}),
            "the run goes well": Course(RISING, {"gradient_norm": after(11, 1.0, 2000.0)}),
        },
    ),
    "surrogate near zero": Case(Course(metrics={"surrogate": 1e-4}), {"it is not": Course(metrics={"surrogate": 0.5})}),
    "no reward signal": Case(
        Course({"total": 0.0}, {"uniform_groups": 1.0}),
        {
            "the reward rises": Course(RISING, {"uniform_groups": 1.0}, steps=20),
            "one group differs": Course({"total": 0.0}, {"uniform_groups": 0.95}),
        },
    ),
    "batch too small": Case(
        Course(
            {"total": after(12, 0.8, 0.1)}, settings={"batch.group_size": 2, "batch.prompts_per_step": 16}, steps=40
        ),
        {
            "it learns": Course(RISING, settings={"batch.group_size": 2, "batch.prompts_per_step": 16}),
            "it holds": Course(FLAT, settings={"batch.group_size": 2, "batch.prompts_per_step": 16}),
            "the step is large": Course(
                {"total": after(12, 0.8, 0.1)}, settings={"batch.group_size": 8, "batch.prompts_per_step": 16}
            ),
        },
    ),
    "groups agree": Case(Course(SOLVED, {"uniform_groups": 0.9}), {"few do": Course(SOLVED, {"uniform_groups": 0.3})}),
    "flat reward": Case(
        Course(FLAT, {"kl": 1e-6}, steps=60),
        {
            "the policy moves, and it is early": Course(FLAT, {"kl": 0.01}, steps=140),
            "it rises": Course(RISING, steps=50),
            "near its top": Course({"total": 0.9, "accuracy": 0.9}, steps=50),
            "it rose and holds": Course({"total": after(6, 0.2, 0.75)}, steps=50),
            "evaluation rises": Course(
                FLAT, evals=[(step, {"accuracy": 0.3 + 0.01 * step}) for step in range(0, 60, 10)], steps=50
            ),
            "a game of two sides": Course({"total": 0.5}, {"uniform_groups": 0.4}, steps=60),
            "too noisy to tell": Course({"total": lambda step: 0.1 + 0.8 * (step % 2)}, steps=50),
        },
    ),
    "falling reward": Case(
        Course({"total": line(0.9, -0.02)}),
        {"it rises": Course(RISING), "it stays": Course(FLAT), "at its top": Course(SOLVED)},
    ),
    "little to gain": Case(Course({"total": 0.9}), {"much to gain": Course(FLAT)}),
    "failing rewards": Case(
        Course(FLAT, {"failed_rewards": 0.03}),
        {"one in a thousand": Course(FLAT, {"failed_rewards": 0.001}), "none": Course(FLAT)},
    ),
    "programs out of time": Case(
        Course(FLAT, {"code_timeouts": 5.0, "code_timeout_seconds": 5.0}),
        {"one in a hundred": Course(FLAT, {"code_timeouts": 1.0, "code_timeout_seconds": 1.0}), "none": Course(FLAT)},
    ),
    "unscorable completions": Case(Course(counts={"unscorable": 20}), {"a few": Course(counts={"unscorable": 5})}),
    "truncated completions": Case(
        Course(FLAT, counts={"truncated": 60}),
        {
            "the task is solved": Course(SOLVED, counts={"truncated": 60}),
            "fewer than half": Course(FLAT, counts={"truncated": 40}),
            "another limit ended them": Course(FLAT, counts={"truncated": 60, "ended_by_turns": 60}),
            "cut ones are paid": Course({"total": 0.7}, counts={"truncated": 60}),
            "the reward pays nobody": Course({"total": 0.0}, counts={"truncated": 60}),
            "it was not so at first": Course(FLAT, counts={"truncated": after(8, 0, 60)}),
        },
    ),
    "length collapse": Case(
        Course(FLAT, counts={"tokens": after(6, 4000, 400)}),
        {
            "the reward rises": Course(RISING, counts={"tokens": after(6, 4000, 400)}),
            "by half": Course(FLAT, counts={"tokens": after(6, 4000, 2000)}),
        },
    ),
    "length blow-up": Case(
        Course(FLAT, counts={"tokens": after(6, 2000, 20000)}),
        {
            "the accuracy grows with it": Course(RISING, counts={"tokens": after(6, 2000, 20000)}),
            "twice": Course(FLAT, counts={"tokens": after(6, 2000, 4000)}),
        },
    ),
    "repetition": Case(
        Course(metrics={"repetition": after(6, 0.1, 0.8)}),
        {
            "it was so from the start": Course(metrics={"repetition": 0.8}),
            "an accuracy rises": Course(RISING, {"repetition": after(6, 0.1, 0.8)}),
            "a little": Course(metrics={"repetition": after(6, 0.1, 0.4)}),
        },
    ),
    "sampler gap": Case(Course(metrics={"sampler_gap": 0.01}), {"rounding": Course(metrics={"sampler_gap": 1e-4})}),
    "stale rollouts": Case(
        Course(metrics={"staleness": 0.3, "versions_behind": 4.0}),
        {"it has hardly moved": Course(metrics={"staleness": 0.02, "versions_behind": 4.0})},
    ),
    "throughput loss": Case(
        Course(seconds=lambda step: 5.0 if step in range(13, 18) or step > 25 else 1.0),
        {
            "one slow step": Course(seconds=lambda step: 50.0 if step == 30 else 1.0),
            "completions became shorter": Course(counts={"tokens": after(20, 2000, 400)}),
            "a warm-up": Course(seconds=after(3, 60.0, 1.0)),
            "a little": Course(seconds=after(20, 1.0, 1.5)),
            "little by little": Course(seconds=line(1.0, 0.1)),  # half as quick as at first, not as a few steps ago
        },
    ),
    "time spent elsewhere": Case(
        Course(seconds=1000.0, settings={"run.seconds.save": 20_000.0}),
        {
            "a short run": Course(seconds=1.0, settings={"run.seconds.save": 100.0}),
            "little": Course(seconds=1000.0, settings={"run.seconds.save": 100.0}),
        },
    ),
    "dead experts": Case(
        Course(metrics={"dead_experts": after(6, 0.0, 0.3)}),
        {"from the start": Course(metrics={"dead_experts": 0.3})},
    ),
    "router drift": Case(
        Course(metrics={"router_drift_layers": 0.1}),
        {
            "experts are replayed": Course(metrics={"router_drift_layers": 0.1, "replayed_experts": 1.0}),
            "an older policy's": Course(metrics={"router_drift_layers": 0.1, "staleness": 0.01}),
            "a little": Course(metrics={"router_drift_layers": 0.01}),
        },
    ),
    "reward hacked": Case(
        Course(two(line(0.9, -0.02), line(0.1, 0.03))),
        {
            "the total falls with it": Course(two(line(0.9, -0.02), 0.1)),
            "a single part": Course({"right": line(0.9, -0.02), "total": 0.5}),
            "both rise": Course(two(line(0.1, 0.02), line(0.1, 0.03))),
        },
    ),
    "format farmed": Case(
        Course(two(0.1, after(6, 0.0, 1.0))),
        {
            "the first part moves too": Course(two(line(0.1, 0.01), after(6, 0.0, 1.0))),
            "the first part is often earned": Course(two(0.7, after(6, 0.0, 1.0))),
            "nothing was learned": Course(two(0.1, 1.0)),
        },
    ),
    "one part dominates": Case(
        Course(two(0.1, 0.5), {"easy_decides": 0.95, "right_decides": 0.05}),
        {
            "the first decides": Course(two(0.1, 0.5), {"easy_decides": 0.3, "right_decides": 0.7}),
            "the first part improves": Course(two(line(0.1, 0.01), 0.5), {"easy_decides": 0.95}),
            "the task is solved": Course(
                {**two(1.0, 0.5), "accuracy": 1.0}, {"easy_decides": 0.95, "right_decides": 0.0}
            ),
            "the first is only measured": Course(
                two(0.1, 0.5), {"easy_decides": 1.0, "right_decides": 0.0}, settings=UNPAID
            ),
        },
    ),
    "held-out disagreement": Case(
        Course(metrics={"held_out_disagreement": after(4, 0.0, 0.4)}),
        {
            "as much at the start": Course(metrics={"held_out_disagreement": 0.3}),
            "hardly any": Course(metrics={"held_out_disagreement": after(4, 0.0, 0.05)}),
        },
    ),
    "reward follows the frame": Case(
        Course(metrics={"frame_moves": 0.3, "frame_pays": 0.5}), {"few": Course(metrics={"frame_moves": 0.05})}
    ),
    "reward follows length": Case(
        Course(metrics={"reward_length_correlation": 0.8}, counts={"tokens": after(6, 2000, 6000)}),
        {
            "twice as long": Course(
                metrics={"reward_length_correlation": 0.8}, counts={"tokens": after(6, 2000, 4000)}
            ),
            "an accuracy rises": Course(
                RISING, {"reward_length_correlation": 0.8}, counts={"tokens": after(6, 2000, 5000)}
            ),
            "completions stay": Course(metrics={"reward_length_correlation": 0.8}),
            "no company": Course(metrics={"reward_length_correlation": 0.1}, counts={"tokens": after(6, 2000, 5000)}),
        },
    ),
    "members part": Case(
        Course(metrics={"learned_disagreement": after(4, 0.1, 0.3)}),
        {
            "they were apart": Course(metrics={"learned_disagreement": 0.3}),
            "hardly": Course(metrics={"learned_disagreement": after(4, 0.01, 0.03)}),
        },
    ),
    "critic misfit": Case(
        Course(FLAT, {"critic_explains": -0.2}),
        {
            "it learns": Course(FLAT, {"critic_explains": after(5, -1.0, 0.3)}),
            "nothing to explain": Course(SOLVED, {"critic_explains": -0.2}),
        },
    ),
    "malformed calls": Case(
        Course(counts={"tool_calls": 60, "malformed_calls": 40, "turns": 200}),
        {
            "a few": Course(counts={"tool_calls": 90, "malformed_calls": 10, "turns": 200}),
            "hardly anybody calls": Course(counts={"tool_calls": 0, "malformed_calls": 2, "turns": 100}),
        },
    ),
    "failing tools": Case(
        Course(counts={"tool_calls": 100, "tool_errors": 30, "tool_timeouts": 10, "turns": 200}),
        {"a few": Course(counts={"tool_calls": 100, "tool_errors": 10, "turns": 200})},
    ),
    "needless calls": Case(
        Course(FLAT, counts={"tool_calls": after(6, 100, 600), "turns": 200}),
        {
            "the reward rises": Course(RISING, counts={"tool_calls": after(6, 100, 600), "turns": 200}),
            "half as many more": Course(FLAT, counts={"tool_calls": after(6, 200, 300), "turns": 200}),
        },
    ),
    "failing environment": Case(
        Course(counts={"turns": 200, "failed_episodes": 10}),
        {"a single one": Course(counts={"turns": 200, "failed_episodes": 1})},
    ),
    "episodes cut off": Case(
        Course(FLAT, counts={"turns": 200, "ended_by_turns": 40, "truncated": 40}),
        {
            "the reward rises": Course(RISING, counts={"turns": 200, "ended_by_turns": 40, "truncated": 40}),
            "a few": Course(FLAT, counts={"turns": 200, "ended_by_turns": 10, "truncated": 10}),
        },
    ),
    "slow environment": Case(
        Course(counts={"turns": 200, "slow_environments": 1}), {"none is": Course(counts={"turns": 200})}
    ),
    "skipped updates": Case(
        Course(SOLVED, {"skipped_updates": 1.0}),
        {"none was": Course(SOLVED)},
    ),
    "reference mismatch": Case(
        pairs(drift=5.0), {"rounding": pairs(drift=lambda step: 0.1), "the same model": pairs()}
    ),
    "likelihood displacement": Case(
        pairs(chosen_logp=line(-30, -6.0), rejected_logp=line(-52, -9.0)),
        {
            "only the rejected falls": pairs(rejected_logp=line(-52, -5.0)),
            "a little": pairs(chosen_logp=line(-50, -0.01)),
        },
    ),
    "not learning": Case(
        replace(pairs(accuracy=0.5, margin=0.0, loss=0.693), steps=50),
        {"the loss falls": replace(pairs(margin=0.4, accuracy=0.8), steps=50)},
    ),
    "too easy": Case(pairs(accuracy=1.0), {"later": pairs(accuracy=after(15, 0.7, 1.0))}),
    "hardly different": Case(pairs(alike=0.3), {"a few": pairs(alike=0.05)}),
    "chosen is shorter": Case(
        pairs(chosen_is_longer=0.1, longer=-30.0),
        {"as often": pairs(), "only the share": pairs(chosen_is_longer=0.1)},
    ),
    "chosen is longer": Case(
        pairs(chosen_is_longer=0.9, longer=30.0),
        {
            "as often": pairs(),
            "only the tokens": pairs(longer=30.0),
            "they are the right ones": replace(
                pairs(chosen_is_longer=0.9, longer=30.0), reward={"total": 0.5, "exact_answer": 0.5}
            ),
        },
    ),
    "beta out of range": Case(
        pairs({**BETA, "objective.curve.beta": 0.001}),
        {
            "it is usual": pairs(BETA),
            "another unit": pairs({**BETA, "objective.score": "mean_logp", "objective.curve.beta": 2.0}),
        },
    ),
    "loss rises": Case(
        rows(loss=after(2, 1.0, 4.0)),
        {
            "it falls": rows(),
            "up and down": rows(loss=lambda step: 1 + 0.2 * (step % 3)),
            "twice the first, early": replace(rows(loss=after(2, 1.0, 2.5)), steps=9),
        },
    ),
    "overfitting": Case(
        rows([(step, {"loss": 3 + 0.05 * (step - 2) ** 2}) for step in range(0, 31)]),
        {
            "both fall": rows([(step, {"loss": 3 - 0.05 * step}) for step in range(0, 31)]),
            "a single evaluation": rows([(step, {"loss": 2.0 if step == 30 else 1.0}) for step in range(0, 31)]),
            "they do not part": rows([(step, {"loss": 1 + 0.02 * step}) for step in range(0, 31)]),
            "the training rises too": rows(
                [(step, {"loss": 1 + 0.01 * (step - 2) ** 2}) for step in range(0, 31)], loss=line(1.0, 0.1)
            ),
        },
    ),
    "answers get worse": Case(
        rows(
            [
                (0, {"loss": 1.09, "accuracy": 0.29}),
                (1, {"loss": 1, "accuracy": 0.1}),
                (30, {"loss": 0.7, "accuracy": 0.1}),
            ]
        ),
        {
            "within noise": rows([(0, {"loss": 1.09, "accuracy": 0.29}), (30, {"loss": 0.7, "accuracy": 0.27})]),
            "nothing is answered": rows([(0, {"loss": 1.09}), (30, {"loss": 0.7})]),
        },
    ),
    "swapped labels": Case(
        pairs(evals=[(0, {"pair_accuracy": 0.5}), (5, {"pair_accuracy": 0.02})], accuracy=0.98),
        {
            "held-out pairs are right": pairs(evals=[(5, {"pair_accuracy": 0.9})], accuracy=0.98),
            "a coin": pairs(evals=[(5, {"pair_accuracy": 0.5})], accuracy=0.98),
            "ten pairs": replace(pairs(evals=[(5, {"pair_accuracy": 0.02})], accuracy=0.98), eval_size=10),
            "another measure": pairs(evals=[(5, {"accuracy": 0.02})], accuracy=0.98),
            "nothing is learned": pairs(evals=[(5, {"pair_accuracy": 0.1})], accuracy=0.5),
            "the policy is ruined": pairs(
                evals=[(5, {"pair_accuracy": 0.02})], accuracy=0.98, chosen_logp=line(-10, -30)
            ),
        },
    ),
    "noisy labels": Case(
        pairs(evals=[(0, {"pair_accuracy": 0.9})], accuracy=0.62),
        {
            "both are alike": pairs(evals=[(0, {"pair_accuracy": 0.7})], accuracy=0.65),
            "so few pairs": replace(pairs(evals=[(0, {"pair_accuracy": 0.8})], accuracy=0.6), eval_size=20),
        },
    ),
    "guessing": Case(
        replace(rows(score=0.0, accuracy=0.5), counts={"rows": 150}),
        {
            "it knows": replace(rows(score=0.0, accuracy=0.8), counts={"rows": 150}),
            "few outcomes": replace(rows(score=0.0, accuracy=0.5, right_labels=0.5), counts={"rows": 120}),
            "few pairs": rows(score=0.0, accuracy=0.5),
        },
    ),
}
