"""A bandit that learns under a preset: prompts with a few completions each, real advantages, losses and updates.

Four prompts of rising difficulty; a policy is a softmax over the completions of each. The first token chooses a
completion, the rest of it is forced, so that lengths matter and nothing else. Completions are drawn by numbers that
depend on the seed alone: two methods meet the same luck.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from whet.objective import PRESETS, Memory, Objective, RunSetting, check_setting, step_totals, title
from whet.pages.lab import experiment as lab
from whet.types import Extras, TokenBatch, WhetError

START = (0.5, 0.2, 0.05, 0.02)  # probability of each prompt's right completion at the start
# of every prompt: what each completion earns and how many tokens it has; the first is right
REWARDS = (1.0, 0.0, 0.0, 0.0, 0.0)
LENGTHS = (6, 2, 6, 6, 16)
KINDS = {"right": (0,), "wrong, short": (1,), "wrong, long": (4,)}
BUDGET = 16
CRITIC_RATE = 0.3
# what the toy has beside rewards; a method that needs more is not offered
SUPPLIED = frozenset(
    {"old_logp", "behavior_logp", "ref_logp", "greedy_reward", "prompt", "parts", "value", "segment", "entropy"}
    | {"divergence", "max_new_tokens", "finished"}
)
LIMIT = 360  # updates of one table, at most: steps times updates times seeds


@dataclass(frozen=True)
class BanditRun:
    """What happened, before each step and after the last."""

    right: tuple[tuple[float, ...], ...]  # [steps + 1][prompt], probability of the right completion
    kinds: tuple[tuple[float, ...], ...]  # [steps + 1][kind], mean probability over the prompts
    entropy: tuple[float, ...]
    length: tuple[float, ...]


class BanditPolicy:
    """Logits of each prompt's completions and, for methods with a critic, values of its states."""

    def __init__(self, rate: float) -> None:
        others = len(REWARDS) - 1
        start = torch.tensor([[p, *[(1 - p) / others] * others] for p in START], dtype=torch.float64)
        self.reference = start.log()
        self.logits = start.log().requires_grad_()
        # before the first token a state is a prompt, after it a completion as well
        self.first = torch.zeros(len(START), dtype=torch.float64, requires_grad=True)
        self.later = torch.zeros(start.shape, dtype=torch.float64, requires_grad=True)
        self._rate, self._count = rate, 0
        self._mean, self._square = torch.zeros_like(start), torch.zeros_like(start)

    def logp(self) -> Tensor:
        """The log-probability of each arm, per prompt."""
        return torch.log_softmax(self.logits, -1)

    def descend(self, loss: Tensor) -> None:
        """One step of Adam on the logits: Kingma and Ba 2014 (1412.6980), algorithm 1, with its usual numbers.

        Written out: torch.optim takes seconds to import, and a page waits for them.
        """
        (gradient,) = torch.autograd.grad(loss, self.logits)
        self._count += 1
        self._mean = 0.9 * self._mean + 0.1 * gradient
        self._square = 0.999 * self._square + 0.001 * gradient**2
        mean, square = self._mean / (1 - 0.9**self._count), self._square / (1 - 0.999**self._count)
        self.logits = (self.logits - self._rate * mean / (square.sqrt() + 1e-8)).detach().requires_grad_()

    def correct(self, error: Tensor) -> None:
        """One step of the critic down its error."""
        first, later = torch.autograd.grad(error, (self.first, self.later))
        self.first = (self.first - CRITIC_RATE * first).detach().requires_grad_()
        self.later = (self.later - CRITIC_RATE * later).detach().requires_grad_()

    def on_tokens(self, logp: Tensor, batch: TokenBatch, arm: Tensor) -> Tensor:
        """[N, T]: log-probabilities of completions on their first tokens; the others are forced."""
        first = logp[_prompt(batch), arm][:, None]
        return torch.cat([first, torch.zeros(len(arm), BUDGET - 1, dtype=torch.float64)], 1)

    def value(self, batch: TokenBatch, arm: Tensor) -> Tensor:
        """[N, T]: what the critic expects, of the prompt at the first token and of the arm at the later ones."""
        prompt = _prompt(batch)
        later = self.later[prompt, arm][:, None].expand(-1, BUDGET - 1)
        return torch.cat([self.first[prompt][:, None], later], 1)


def _prompt(batch: TokenBatch) -> Tensor:
    assert batch.prompt is not None
    return batch.prompt


def trained(objective: Objective, steps: int, group_size: int, updates: int, rate: float, seed: int) -> BanditRun:
    """Train a fresh policy and say what became of it."""
    draw, policy = random.Random(seed), BanditPolicy(rate)
    memory: Memory = {}
    states = [policy.logp().detach()]
    for _ in range(steps):
        memory = _step(objective, policy, draw, memory, group_size, updates)
        states.append(policy.logp().detach())
    chances = [state.exp() for state in states]
    lengths = torch.tensor(LENGTHS, dtype=torch.float64)
    return BanditRun(
        tuple(tuple(chance[:, 0].tolist()) for chance in chances),
        tuple(tuple(float(chance[:, list(arms)].sum(1).mean()) for arms in KINDS.values()) for chance in chances),
        tuple(float(-(chance * state).sum(1).mean()) for chance, state in zip(chances, states, strict=True)),
        tuple(float((chance @ lengths).mean()) for chance in chances),
    )


def _step(
    objective: Objective, policy: BanditPolicy, draw: random.Random, memory: Memory, group_size: int, updates: int
) -> Memory:
    """Collect groups worth training on, then update on all of them several times."""
    old = policy.logp().detach()
    prompts, arms = _collected(objective, old.exp().tolist(), draw, group_size)
    if not prompts:
        return memory
    batch, arm = _batch(prompts, arms, policy, old, group_size)
    with torch.no_grad():
        batch, memory = objective.advantage(batch, memory)
    now = objective.tuned(memory)
    totals = step_totals(batch, BUDGET)
    metrics: dict[str, float] = {}
    for update in range(updates):
        logp = policy.logp()
        on_tokens = policy.on_tokens(logp, batch, arm)
        seen = now.surveyed(batch, on_tokens.detach())
        loss = now.loss(seen, on_tokens, totals, _extras(logp, batch, policy))
        policy.descend(loss.value)
        if "value" in now.needs():
            policy.correct(now.critic_loss(batch, policy.value(batch, arm), totals).value)
        if update == updates - 1:
            metrics = {**loss.metrics, "entropy": float(-(old.exp() * old).sum(1).mean())}
    return objective.learned(memory, metrics, batch.num_sequences)


def _collected(
    objective: Objective, chances: Sequence[Sequence[float]], draw: random.Random, group_size: int
) -> tuple[list[int], list[list[int]]]:
    """A group for each prompt; where the method draws again for groups it leaves out, other prompts take their place.

    Every seed draws the same numbers whatever the method, as many as one round needs.
    """
    prompts: list[int] = []
    arms: list[list[int]] = []
    again = random.Random(draw.random())
    for turn in range(objective.keep.most_rounds if objective.keep.refills else 1):
        source = draw if turn == 0 else again
        for prompt, chance in enumerate(chances):
            drawn = source.choices(range(len(chance)), chance, k=group_size)
            if len(prompts) < len(chances) and objective.keep([REWARDS[arm] for arm in drawn], 0):
                prompts.append(prompt)
                arms.append(drawn)
        if len(prompts) == len(chances):
            break
    return prompts, arms


def _batch(
    prompts: list[int], arms: list[list[int]], policy: BanditPolicy, old: Tensor, group_size: int
) -> tuple[TokenBatch, Tensor]:
    arm = torch.tensor([choice for drawn in arms for choice in drawn])
    prompt = torch.tensor(prompts).repeat_interleave(group_size)
    action = torch.arange(BUDGET) < torch.tensor(LENGTHS)[arm][:, None]
    reward = torch.tensor(REWARDS, dtype=torch.float64)[arm]
    batch = TokenBatch(
        torch.zeros_like(action).long(),
        action,
        torch.arange(len(prompts)).repeat_interleave(group_size),
        reward,
        prompt=prompt,
        parts=reward[:, None],
        part_weight=torch.ones(len(reward), 1, dtype=torch.float64),
        finished=torch.ones(len(reward), dtype=torch.bool),
        greedy_reward=torch.tensor(REWARDS, dtype=torch.float64)[old.argmax(1)][prompt],
        segment=action.long() - 1,
        max_new_tokens=BUDGET,
    )
    sampled = policy.on_tokens(old, batch, arm)
    entropy = torch.zeros_like(sampled)
    entropy[:, 0] = -(old.exp() * old).sum(1)[prompt]
    return (
        replace(
            batch,
            behavior_logp=sampled,
            old_logp=sampled,
            ref_logp=policy.on_tokens(policy.reference, batch, arm),
            value=policy.value(batch, arm).detach(),
            entropy=entropy,
        ),
        arm,
    )


def _extras(logp: Tensor, batch: TokenBatch, policy: BanditPolicy) -> Extras:
    """What whole distributions say, on the first tokens; after them nothing is left to chance."""

    def on_first(column: Tensor) -> Tensor:
        rest = torch.zeros(batch.num_sequences, BUDGET - 1, dtype=torch.float64)
        return torch.cat([column[_prompt(batch)][:, None], rest], 1)

    chance = logp.exp()
    return Extras(
        entropy=on_first(-(chance * logp).sum(1)), divergence=on_first((chance * (logp - policy.reference)).sum(1))
    )


def allowed_updates(objective: Objective, group_size: int, updates: int) -> tuple[int, str]:
    """How many updates per step the method takes, the wanted number if it does, and why otherwise."""
    refused = ""
    for count in dict.fromkeys((updates, 1, 2)):
        try:
            check_setting(objective, RunSetting(group_size, count), {})
            return count, refused
        except WhetError as error:
            refused = refused or str(error)
    raise WhetError(refused)


@lru_cache(maxsize=1)
def offered() -> tuple[str, ...]:
    """The presets that need no more than the toy has."""
    names = []
    for name, preset in PRESETS.items():
        objective = preset.objective
        if preset.episodes or objective.keep.grows or not objective.needs() <= SUPPLIED:
            continue
        try:
            allowed_updates(objective, 8, 2)
        except WhetError:
            continue
        names.append(name)
    return tuple(names)


def _table(settings: lab.LabSettings) -> lab.LabTable:
    name, size = str(settings["method"]), int(lab.number(settings, "group_size"))
    steps, seeds = int(lab.number(settings, "steps")), int(lab.number(settings, "seeds"))
    objective = PRESETS[name].objective
    try:
        updates, refused = allowed_updates(objective, size, int(lab.number(settings, "updates")))
    except WhetError as error:
        return lab.LabTable(refused=str(error))
    steps = min(steps, LIMIT // (updates * seeds))
    rate = lab.number(settings, "rate")
    runs = [trained(objective, steps, size, updates, rate, seed) for seed in range(seeds)]
    places = list(range(steps + 1))

    def curve(label: str, series: Sequence[Sequence[float]], tone: int) -> dict[str, Any]:
        """The mean over seeds, and the span of them."""
        together = list(zip(*series, strict=True))
        mean = [sum(values) / len(values) for values in together]
        band = ([min(values) for values in together], [max(values) for values in together])
        return lab.line(label, places, mean, tone, band=band if seeds > 1 else None)

    title = PRESETS[name].title
    reward = [curve(title, [[sum(at) / len(at) for at in run.right] for run in runs], 0)]
    entropy = [curve(title, [run.entropy for run in runs], 0)]
    length = [curve(title, [run.length for run in runs], 0)]
    prompts = [
        curve(f"starts at {start:g}", [[at[index] for at in run.right] for run in runs], index)
        for index, start in enumerate(START)
    ]
    kinds = [
        curve(kind, [[at[index] for at in run.kinds] for run in runs], tone)
        for index, (kind, tone) in enumerate(zip(KINDS, (0, 1, 3), strict=True))
    ]
    share: dict[str, Any] = {"percent": True, "y_range": (0.0, 1.0), "steps": True}
    note = "mean and span over the seeds" if seeds > 1 else ""
    ends = [sum(run.right[-1]) / len(START) for run in runs]
    facts = [("reward at the end", f"{sum(ends) / len(ends):.3f}")]
    if refused:
        facts.append((f"updates per step: {updates}", refused))
    return lab.LabTable(
        (
            lab.LabChart("Expected reward", lab.chart_spec("step", "", reward, **share), note),
            lab.LabChart("Entropy", lab.chart_spec("step", "nats", entropy, steps=True, y_range=(0, None)), note),
            lab.LabChart("Expected length", lab.chart_spec("step", "tokens", length, steps=True), note),
            lab.LabChart(
                "Right completions, by prompt", lab.chart_spec("step", "", prompts, **share), title, overlay=False
            ),
            lab.LabChart("Kinds of completion", lab.chart_spec("step", "", kinds, **share), title, overlay=False),
        ),
        tuple(facts),
        "; ".join(objective.symbols(updates)),
    )


def experiment() -> lab.Experiment:
    """What the lab shows of it."""
    methods = offered()
    options = tuple((name, title(PRESETS[name].objective)) for name in methods)
    plain, other = _defaults(methods)
    return lab.Experiment(
        "bandit",
        "A bandit that learns",
        "What do two methods do with the same luck?",
        "Four prompts, from easy to hard; each has one right completion of 6 tokens and wrong ones of 2, 6 and 16. "
        "Press play and watch which prompts are solved first, how fast the entropy goes and what becomes of the long "
        "wrong completion. Smaller groups see the hard prompt's right completion less often; more updates per step "
        "make the clip rule matter.",
        (("Sutton and Barto, Reinforcement Learning, chapter 2.8", ""), ("Williams 1992", "")),
        (
            lab.Selector("method", "method", options, plain),
            lab.Slider("rate", "learning rate (Adam)", (0.03, 0.1), 0.1, log=True, reach=(0.01, 1.0)),
            lab.Slider("group_size", "completions per prompt, G", (8,), 8, whole=True, reach=(2, 32)),
            lab.Slider("updates", "updates per step", (1, 4), 4, whole=True, reach=(1, 8)),
            lab.Slider("steps", "steps", (30,), 30, whole=True, reach=(5, 100)),
            lab.Slider("seeds", "seeds", (3,), 3, whole=True, reach=(1, 5)),
        ),
        _table,
        compared={"method": other},
        plays=True,
        shared=("rate", "group_size", "updates", "steps", "seeds"),
    )


def _defaults(methods: Sequence[str]) -> tuple[str, str]:
    """Two that differ where it shows: a group method that divides by the spread, and one that takes no scale."""
    clipped = [name for name in methods if PRESETS[name].objective.clip.name == "ppo_clip"]
    first = next(name for name in clipped if PRESETS[name].objective.scale.name == "group_std")
    return first, next(name for name in clipped if PRESETS[name].objective.scale.name == "none")
