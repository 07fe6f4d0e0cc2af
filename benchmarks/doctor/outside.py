"""Faults and unusual healthy runs by an outsider: planned by someone who had read no rule of the doctor.

What was known when they were written: the issue that asked for them, the settings (docs/config.md), the names of the
faults that the corpus had, and what users of TRL, verl and OpenRLHF report. Not read: the rules, their tests, their
docs, the scripts that measure them. `FAULTS` says of every kind, in words, what the cause is and which other true
statements there are about such a run. `names` and `follows` translate that into rules; they were added after the runs
were committed and before any was measured, but for the two rules that came of it, "setting out of range" and "identical
completions".

`held` asks, as in kinds.py, whether the fault did what it does, by numbers of the run and never by a rule. The halves
are those of split_corpus.py: in turn, in the order of a hash of the names.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from catalogue import HEALTHY, HERE, RATE, PlannedRun, game, plant, rl, rows
from readings import evals_of, first, last, no_gain, series

from whet.data.tasks import TASKS
from whet.data.tasks.contrast import contrasts
from whet.data.tasks.item import gold_completion, items
from whet.settings.layers import merged

PLANTS = HERE / "outside_plants.py"
OUT = "OUT"  # stands for the folder of the corpus, until a run is trained
STEPS = 36
EVALUATED = {"prompts": 50, "every": 12}
Run = Mapping[str, Any]
Row = dict[str, Any]


@dataclass(frozen=True)
class Fault:
    """What is true of runs with one planted fault."""

    cause: str
    also_true: str
    criterion: str
    held: Callable[[Run], bool]
    names: str  # rules, as in kinds.py: they point at the fault itself
    follows: str  # rules: what they say is true of such a run as well


def finished(run: Run) -> bool:
    return run["status"] == "finished"


def flat(run: Run) -> bool:
    return finished(run) and no_gain(run)


def held_out_rose(run: Run) -> bool:
    losses = evals_of(run, "loss")
    return len(losses) > 1 and losses[-1] > 1.1 * losses[0]


def by_heart(run: Run) -> bool:
    """The training is all but solved; what is held out is not, and was better before."""
    losses = evals_of(run, "loss")
    if losses:
        return losses[-1] > 1.15 * min(losses)
    return last(series(run, "metrics/accuracy")) > 0.9 and max(evals_of(run, "accuracy"), default=1.0) < 0.85


def cut(run: Run) -> bool:
    return finished(run) and last(series(run, "counts/truncated")) > 0.8


def paid_for_nothing(run: Run) -> bool:
    return last(series(run, "reward/total")) > 0.8 and last(series(run, "seen/right")) < 0.6


FAULTS: dict[str, Fault] = {
    "some gold is wrong": Fault(
        "a part of the gold answers of the training rows is wrong",
        "the reward stays far below 1 while the evaluation, whose gold is right, is high; many groups agree on 0",
        "the training reward ends at most at what the right share allows",
        lambda run: finished(run) and last(series(run, "reward/total")) < 0.75,
        names="gold refused",
        follows="flat reward, no reward signal",
    ),
    "rewards out of order": Fault(
        "a batched reward returns its scores in another order than the completions",
        "nothing is learned; the reward is noise with respect to the completion",
        "right completions rise by less than 0.1",
        flat,
        names="",
        follows="flat reward, falling reward, KL runaway, entropy explosion, entropy collapse, no reward signal",
    ),
    "judge turns lenient": Fault(
        "the reward (a judge) pays for wrong completions, more of them with every step",
        "reward rises, rightness and evaluation do not; later all groups agree and nothing is learned",
        "the reward ends above 0.8, right completions below 0.6",
        paid_for_nothing,
        names="evaluation lags, held-out disagreement, reward hacked",
        follows="no reward signal",
    ),
    "parser refuses working": Fault(
        "the reward refuses right completions that show their working: its parser wants the bare answer",
        "the reward stays flat and low, the completions lose their working, nothing is learned",
        "right completions rise by less than 0.1",
        flat,
        names="gold refused",
        follows="flat reward, no reward signal, length collapse, entropy collapse",
    ),
    "reward always 1": Fault(
        "the reward is 1 for every completion: its check is always true",
        "all groups agree, there is no signal, nothing is learned",
        "every completion is paid, right ones rise by less than 0.1",
        lambda run: flat(run) and min(series(run, "reward/total")) > 0.99,
        names="no reward signal",
        follows="flat reward",
    ),
    "tie too strong": Fault(
        "the weight of the KL term is far too large for the policy to move",
        "nothing is learned; the reward is flat, the KL all but 0",
        "right completions rise by less than 0.1",
        flat,
        names="setting out of range",
        follows="flat reward",
    ),
    "warm-up too long": Fault(
        "the warm-up is many times longer than the run: the learning rate never arrives",
        "the learning rate is too low, the reward is flat, nothing is learned, the KL is all but 0",
        "right completions rise by less than 0.1",
        flat,
        names="setting out of range",
        follows="flat reward",
    ),
    "epsilon too large": Fault(
        "AdamW's epsilon is far larger than the gradients: updates are far smaller than the learning rate says",
        "the learning rate is too low for it, the reward is flat, nothing is learned, the KL is all but 0",
        "right completions rise by less than 0.1",
        flat,
        names="setting out of range",
        follows="flat reward",
    ),
    "gradient limit too small": Fault(
        "gradients are clipped to so small a norm that AdamW's epsilon swallows them",
        "every step is clipped; the reward is flat, nothing is learned, the learning rate is too low for it",
        "right completions rise by less than 0.1",
        flat,
        names="setting out of range",
        follows="flat reward",
    ),
    "adapter too weak": Fault(
        "LoRA's alpha is so small that the adapter cannot change the model",
        "the reward is flat, nothing is learned, the KL is all but 0, the learning rate is too low for it",
        "right completions rise by less than 0.1",
        flat,
        names="setting out of range",
        follows="flat reward",
    ),
    "weight decay too large": Fault(
        "weight decay shrinks the weights faster than anything is learned",
        "the reward falls or never rises, the KL grows, the entropy grows, the updates do harm",
        "right completions end below 0.3",
        lambda run: last(series(run, "seen/right")) < 0.3,
        names="setting out of range",
        follows="falling reward, flat reward, KL runaway, entropy explosion, entropy collapse, length collapse,"
        " length blow-up, truncated completions, no reward signal, repetition, not a number, huge gradient,"
        " gradient spike",
    ),
    "sampled too hot": Fault(
        "the temperature is so high that completions are garbled",
        "entropy is high, completions are cut at the limit, the reward is flat and near 0, nothing is learned",
        "right completions end below 0.3",
        lambda run: last(series(run, "seen/right")) < 0.3,
        names="setting out of range",
        follows="truncated completions, flat reward, no reward signal, entropy explosion, length blow-up, KL runaway",
    ),
    "one seed for all": Fault(
        "the sampler draws all completions of a prompt with the same seed",
        "all groups agree: no signal, no exploration; nothing is learned",
        "at most one completion of a group differs",
        lambda run: finished(run) and first(series(run, "seen/distinct")) < 0.25,
        names="identical completions",
        follows="no reward signal, flat reward, entropy collapse",
    ),
    "completions misrouted": Fault(
        "the sampler hands completions back to other prompts",
        "its log-probabilities are not the trainer's; the reward is flat and near chance, nothing is learned",
        "right completions rise by less than 0.1",
        no_gain,
        names="sampler gap",
        follows="ratio drift, stale rollouts, clipping, flat reward, falling reward, KL runaway,"
        " entropy explosion, no reward signal",
    ),
    "discount too short": Fault(
        "the discount forgets the reward within a few tokens: the early tokens learn nothing",
        "the reward is flat, nothing is learned; the critic has little to explain",
        "right completions rise by less than 0.1",
        flat,
        names="setting out of range",
        follows="flat reward, critic misfit, length collapse, entropy collapse, no reward signal",
    ),
    "filter leaves nothing": Fault(
        "completions are all cut at the token limit, and cut ones are left out of the loss",
        "too few tokens, no gradient, reward flat",
        "more than 80% of the completions are cut",
        cut,
        names="truncated completions, no gradient",
        follows="no reward signal, flat reward",
    ),
    "question is missing": Fault(
        "a mistake in the template leaves the question out: every prompt is the same text",
        "the reward is flat near chance, nothing is learned; all prompts are the same",
        "right completions end below 0.3",
        lambda run: last(series(run, "seen/right")) < 0.3,
        names="few prompts",
        follows="flat reward, no reward signal, entropy collapse",
    ),
    "stop string too early": Fault(
        "a stop string ends completions before their answer",
        "completions that show their working earn 0; the reward is flat and low, completions get shorter",
        "right completions rise by less than 0.1",
        flat,
        names="",
        follows="flat reward, no reward signal, length collapse, entropy collapse",
    ),
    "evaluates too often": Fault(
        "evaluation takes most of the time of the run",
        "the run is slow",
        "more than a third of the steps' time",
        lambda run: finished(run) and _eval_share(run) > 0.33,
        names="time spent elsewhere",
        follows="",
    ),
    "evaluated on training rows": Fault(
        "the evaluation rows are training rows",
        "the evaluation says nothing of other rows",
        "always",
        finished,
        names="evaluated on training rows",
        follows="",
    ),
    "evaluation is cut": Fault(
        "completions of the evaluation are cut at the token limit, as its questions need longer ones",
        "the training rises, the evaluation does not: it lags, it is other than the training",
        "the training ends above 0.7, the evaluation below 0.3",
        lambda run: last(series(run, "seen/right")) > 0.7 and evals_of(run, "accuracy")[-1] < 0.3,
        names="evaluation lags",
        follows="",
    ),
    "labels 35% wrong": Fault(
        "35% of the preference pairs have chosen and rejected swapped",
        "training accuracy stays low while held-out pairs are ordered well; the loss hardly falls",
        "training accuracy ends below 0.8",
        lambda run: finished(run) and last(series(run, "metrics/accuracy"), 15) < 0.8,
        names="noisy labels",
        follows="not learning, guessing",
    ),
    "pairs of other prompts": Fault(
        "chosen and rejected belong to other prompts than the one they stand beside",
        "nothing that holds for new pairs is learned: held-out accuracy stays near chance",
        "held-out pairs end below 0.7",
        lambda run: evals_of(run, "pair_accuracy")[-1:] < [0.7] and bool(evals_of(run, "pair_accuracy")),
        names="guessing, not learning",
        follows="overfitting, loss rises",
    ),
    "few rows, many passes": Fault(
        "there are far too few rows for so many passes: they are learned by heart",
        "the training is all but solved while what is held out gets worse; overfitting",
        "the held-out loss rises by 15%, or training is above 90% and held out below 85%",
        by_heart,
        names="overfitting",
        follows="loss rises, too easy",
    ),
    "demonstrations cut": Fault(
        "demonstrations are cut at a maximum length, before their answer",
        "the loss falls and the evaluation falls: the model learns to stop, or to go on, without an answer",
        "the loss of whole demonstrations that are held out ends a tenth above where it began",
        held_out_rose,
        names="",
        follows="loss rises, overfitting",
    ),
    "demonstrations shuffled": Fault(
        "demonstrations stand beside other questions than their own",
        "the loss stops falling early, the evaluation falls or stays at chance",
        "the loss of right demonstrations that are held out ends a tenth above where it began",
        held_out_rose,
        names="",
        follows="loss rises, overfitting",
    ),
    "game forgets": Fault(
        "the environment does not keep its state over the turns: what it answers is of no use",
        "the reward is flat, nothing more is learned than chance allows",
        "the reward ends below 0.8",
        lambda run: finished(run) and last(series(run, "reward/total")) < 0.8,
        names="",
        follows="flat reward, no reward signal",
    ),
    "first mover wins": Fault(
        "the reward of self-play depends on the role alone: a bug gives every game to the first mover",
        "within a role, or a group, the reward never differs: no signal, nothing is learned",
        "always",
        finished,
        names="no reward signal",
        follows="flat reward",
    ),
    "unbeatable opponent": Fault(
        "the opponent of the game always wins: the reward is 0 whatever the policy does",
        "the reward never differs: no signal, nothing is learned",
        "the reward is 0 in every step",
        lambda run: finished(run) and max(series(run, "reward/total")) == 0,
        names="no reward signal",
        follows="flat reward",
    ),
}


def _eval_share(run: Run) -> float:
    """What evaluations take of the time."""
    spent = sum(sum(line["seconds"].values()) for line in run["lines"] if "eval" in line)
    steps = sum(series(run, "seconds"))
    return spent / (spent + steps) if steps else 0.0


# data


def write_outside_data(folder: Path) -> None:
    """The rows of the planned runs, once."""
    if (folder / "outside-done").exists():
        return
    stream = random.Random("outside")
    for share in (40, 70):
        write(
            folder / f"wrong-gold-{share}.jsonl", (_wrong(row, stream, share / 100) for row in questions("train", 512))
        )
    write(folder / "right-gold-eval.jsonl", questions("eval", 80))
    write(folder / "question-missing.jsonl", ({**row, "prompt": [QUESTION]} for row in questions("train", 512)))
    write(folder / "some-training-rows.jsonl", questions("train", 512)[:60])
    write(folder / "all-training-rows.jsonl", questions("train", 512))
    write(folder / "long-eval.jsonl", questions("eval", 80, 7))
    pairs = pair_rows("train", 1024)
    swapped = [_swapped(row) if stream.random() < 0.35 else row for row in pairs]
    write(folder / "outside-pairs-noisy.jsonl", swapped)
    shift = [pairs[index - 1] for index in range(len(pairs))]
    moved = [{**row, "chosen": o["chosen"], "rejected": o["rejected"]} for row, o in zip(pairs, shift, strict=True)]
    write(folder / "outside-pairs-moved.jsonl", moved)
    write(folder / "outside-pairs-few.jsonl", pairs[:24])
    write(folder / "outside-pairs-eval.jsonl", pair_rows("eval", 120))
    shown = [{"prompt": row["prompt"], "completion": row["worked"]} for row in questions("train", 512)]
    write(folder / "shown-few.jsonl", shown[:16])
    for size in (10, 18):
        write(folder / f"shown-cut-{size}.jsonl", ({**row, "completion": row["completion"][:size]} for row in shown))
    others = [shown[index - 1]["completion"] for index in range(len(shown))]
    write(folder / "shown-shuffled.jsonl", ({**r, "completion": o} for r, o in zip(shown, others, strict=True)))
    held_out = ({"prompt": row["prompt"], "completion": row["worked"]} for row in questions("eval", 80))
    write(folder / "shown-eval.jsonl", held_out)
    by_size = [row for size in (1, 2, 3) for row in questions("train", 256, size)]
    write(folder / "mixed-sizes.jsonl", by_size)
    (folder / "outside-done").touch()


QUESTION = {"role": "user", "content": "Left to right mod 10: "}


def write(path: Path, found: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in found), encoding="utf-8")


def questions(split: str, count: int, difficulty: int = 1) -> list[Row]:
    source = items(TASKS["arithmetic"], split, 0, difficulty)
    found = (next(source) for _ in range(count))
    return [
        {"prompt": [_user(item.question)], "answer": str(item.answer), "worked": gold_completion(item)}
        for item in found
    ]


def pair_rows(split: str, count: int) -> list[Row]:
    found = contrasts(TASKS["arithmetic"], split, count, 0, 2)
    return [{"prompt": list(each.prompt.messages), "chosen": each.right, "rejected": each.wrong} for each in found]


def _user(text: str) -> Row:
    return {"role": "user", "content": text}


def _wrong(row: Row, stream: random.Random, share: float) -> Row:
    if stream.random() >= share:
        return row
    return {**row, "answer": str((int(row["answer"]) + stream.randint(1, 9)) % 10)}


def _swapped(row: Row) -> Row:
    return {**row, "chosen": row["rejected"], "rejected": row["chosen"]}


# runs


def task(method: str, seed: int, steps: int = STEPS, difficulty: Sequence[int] = (1,), **more: Any) -> Row:
    """RL on the built-in task, evaluated, a small batch."""
    small = {"batch": {"prompts_per_step": 5, "group_size": 5}, "eval": dict(EVALUATED)}
    return rl(method, seed, steps, difficulty, **merged(small, more))


def on_file(
    method: str, seed: int, name: str, steps: int = STEPS, evaluated: str = "right-gold-eval", **more: Any
) -> Row:
    """The same, on rows of a file."""
    source = {"eval": {"source": f"{OUT}/data/{evaluated}.jsonl"}, "reward": {"parts": [{"reward": "exact_answer"}]}}
    values = task(method, seed, steps, **merged(source, more))
    return {**values, "data": {"source": f"{OUT}/data/{name}.jsonl"}}


def shown(method: str, seed: int, name: str, steps: int, evaluated: str, **more: Any) -> Row:
    """Rows of a file: demonstrations or pairs."""
    values = rows(method, seed, steps, **more)
    values["eval"] = {"prompts": 60, "every": 12, "source": f"{OUT}/data/{evaluated}.jsonl"}
    return {**values, "data": {"source": f"{OUT}/data/{name}.jsonl"}}


def own(name: str, **settings: Any) -> Row:
    """A reward of outside_plants.py."""
    return {"reward": {"parts": [{**plant(name, **settings), "reward": f"{PLANTS}:{name}"}]}}


def play(seed: int, steps: int, method_settings: Row | None = None, **env: Any) -> Row:
    """Self-play: the policy against what it played lately."""
    name = {"env": {"name": f"{PLANTS}:HigherDigit", "max_tokens": 32, **({"settings": env} if env else {})}}
    return game(
        seed, steps, **merged({"batch": {"prompts_per_step": 12, "group_size": 6}}, merged(name, method_settings or {}))
    )


def outside_faulty() -> Iterator[PlannedRun]:
    """Two runs of each kind, of different methods, seeds and strengths."""

    def run(kind: str, method: str, settings: Row, strength: str = "", **more: Any) -> PlannedRun:
        name = f"outside-{kind}-{method}-s{settings['seed']}"
        return PlannedRun(name.replace(",", "").replace("%", ""), kind, method, settings, strength=strength, **more)

    for seed, (method, share) in enumerate((("grpo", 40), ("dr_grpo", 70)), 3001):
        yield run("some gold is wrong", method, on_file(method, seed, f"wrong-gold-{share}", 45), f"{share}%")
    for seed, (method, shift) in enumerate((("grpo", 1), ("rloo", 6)), 3011):
        yield run("rewards out of order", method, task(method, seed, **own("out_of_order", shift=shift)), f"by {shift}")
    for seed, (method, full) in enumerate((("grpo", 8), ("cispo", 15)), 3021):
        yield run("judge turns lenient", method, task(method, seed, **own("lenient_judge", full=full)), f"{full} steps")
    for seed, method in enumerate(("grpo", "reinforce_pp_baseline"), 3031):
        yield run("parser refuses working", method, task(method, seed, **own("strict_parser")))
    for seed, method in enumerate(("grpo", "ppo"), 3041):
        yield run("reward always 1", method, task(method, seed, **own("accepts_all")))
    for seed, (kl, beta) in enumerate((("k3", 20.0), ("k2", 60.0)), 3051):
        yield run(
            "tie too strong", "grpo", task("grpo", seed, objective={"kl": {"kind": kl, "beta": beta}}), f"{beta:g}"
        )
    for seed, (method, steps) in enumerate((("grpo", 20000), ("gspo", 5000)), 3061):
        yield run("warm-up too long", method, task(method, seed, optimizer={"warmup_steps": steps}), f"{steps} steps")
    for seed, (method, size) in enumerate((("grpo", 1.0), ("dr_grpo", 0.1)), 3071):
        yield run("epsilon too large", method, task(method, seed, optimizer={"epsilon": size}), f"{size:g}")
    for seed, (method, size) in enumerate((("grpo", 1e-7), ("rloo", 1e-8)), 3081):
        yield run(
            "gradient limit too small", method, task(method, seed, optimizer={"max_gradient_norm": size}), f"{size:g}"
        )
    for seed, (method, alpha) in enumerate((("grpo", 0.01), ("gspo", 0.002)), 3091):
        lora = {"model": {"lora": {"rank": 4, "alpha": alpha}}}
        yield run("adapter too weak", method, task(method, seed, **lora), f"alpha {alpha:g}")
    for seed, (method, size) in enumerate((("grpo", 100.0), ("dr_grpo", 250.0)), 3101):
        yield run("weight decay too large", method, task(method, seed, optimizer={"weight_decay": size}), f"{size:g}")
    for seed, (method, heat) in enumerate((("grpo", 2.5), ("rloo", 4.0)), 3111):
        yield run("sampled too hot", method, task(method, seed, sampling={"temperature": heat}), f"{heat:g}")
    for seed, method in enumerate(("grpo", "dr_grpo"), 3121):
        yield run("one seed for all", method, task(method, seed, sampling={"engine": "one_seed"}))
    for seed, method in enumerate(("grpo", "gspo"), 3131):
        yield run("completions misrouted", method, task(method, seed, sampling={"engine": "misrouted"}))
    for seed, gamma in enumerate((0.3, 0.6), 3141):
        yield run(
            "discount too short", "ppo", task("ppo", seed, objective={"baseline": {"gamma": gamma}}), f"{gamma:g}"
        )
    for seed, (method, size) in enumerate((("dapo", 3), ("grpo", 4)), 3151):
        changed = {"sampling": {"max_new_tokens": size}, "objective": {"select": "finished"}}
        settings = task("grpo" if method == "dapo" else method, seed, 30, **changed)
        yield run("filter leaves nothing", "grpo", settings, f"{size} tokens")
    for seed, method in enumerate(("grpo", "rloo"), 3161):
        yield run("question is missing", method, on_file(method, seed, "question-missing"))
    for seed, (method, stop) in enumerate((("grpo", "</think>"), ("dr_grpo", ";")), 3171):
        yield run("stop string too early", method, task(method, seed, sampling={"stop": [stop]}), stop)
    for seed, every in enumerate((1, 2), 3181):
        settings = task("grpo", seed, 30, eval={"prompts": 60 * every, "every": every})
        yield run("evaluates too often", "grpo", settings, f"every {every}")
    for seed, method in enumerate(("grpo", "dr_grpo"), 3191):
        settings = on_file(method, seed, "all-training-rows", 40, "some-training-rows")
        yield run("evaluated on training rows", method, settings)
    for seed, method in enumerate(("grpo", "rloo"), 3201):
        yield run("evaluation is cut", method, on_file(method, seed, "all-training-rows", STEPS, "long-eval"))
    for seed, method in enumerate(("dpo", "rm"), 3211):
        settings = shown(method, seed, "outside-pairs-noisy", 50, "outside-pairs-eval")
        yield run("labels 35% wrong", method, settings)
    for seed, method in enumerate(("rm", "dpo"), 3221):
        settings = shown(method, seed, "outside-pairs-moved", 50, "outside-pairs-eval")
        yield run("pairs of other prompts", method, settings)
    for seed, (method, name, evaluated) in enumerate(
        (("rm", "outside-pairs-few", "outside-pairs-eval"), ("sft", "shown-few", "shown-eval")), 3231
    ):
        yield run(
            "few rows, many passes", method, shown(method, seed, name, 80, evaluated, batch={"rows_per_step": 16})
        )
    for seed, size in enumerate((10, 18), 3241):
        yield run("demonstrations cut", "sft", shown("sft", seed, f"shown-cut-{size}", 40, "shown-eval"), f"{size}")
    for seed, rate in enumerate((1e-3, 3e-3), 3251):
        settings = shown("sft", seed, "shown-shuffled", 40, "shown-eval", optimizer={"learning_rate": rate})
        yield run("demonstrations shuffled", "sft", settings)
    for seed, highest in enumerate((3, 5), 3261):
        env = {"name": f"{PLANTS}:ForgetfulGuessing", "settings": {"highest": highest}}
        yield run("game forgets", "grpo", game(seed, STEPS, env=env), f"1 to {highest}")
    for seed, method in enumerate(("rae", "grpo"), 3271):
        yield run("first mover wins", method, play(seed, STEPS, _of(method), first_wins=True))
    for seed, method in enumerate(("rae", "grpo"), 3281):
        yield run("unbeatable opponent", method, play(seed, STEPS, _of(method), unbeatable=True))


def _of(method: str) -> Row:
    return {"objective": {"kl": "none"}} if method == "grpo" else {}


def outside_healthy() -> Iterator[PlannedRun]:
    """Healthy runs that look unusual: slow, hard, long, held close, in games whose reward cannot rise."""

    def run(name: str, method: str, settings: Row) -> PlannedRun:
        return PlannedRun(f"outside-healthy-{name}-s{settings['seed']}", HEALTHY, method, settings)

    small = {"batch": {"prompts_per_step": 4, "group_size": 5}, "eval": {"prompts": 50, "every": 40}}

    def slow(method: str, seed: int, steps: int, difficulty: Sequence[int], rate: float, **more: Any) -> Row:
        return task(method, seed, steps, difficulty, **merged({**small, "optimizer": {"learning_rate": rate}}, more))

    yield run("slow-grpo", "grpo", slow("grpo", 4001, 240, (1,), RATE / 6))
    yield run("slow-dr_grpo", "dr_grpo", slow("dr_grpo", 4002, 200, (2,), RATE / 5))
    yield run("slow-rloo", "rloo", slow("rloo", 4003, 200, (1,), RATE / 5))
    yield run("slow-cosine", "gspo", slow("gspo", 4004, 200, (1,), RATE / 3, optimizer={"schedule": "cosine"}))
    hard = {"sampling": {"max_new_tokens": 56}}
    yield run("hard-grpo", "grpo", slow("grpo", 4005, 200, (5,), RATE / 3, **hard))
    yield run("large-group", "grpo", task("grpo", 4006, 40, (1,), batch={"prompts_per_step": 1, "group_size": 32}))
    tie = {"objective": {"kl": {"kind": "k3", "beta": 0.3}}}
    yield run("held-close", "grpo", slow("grpo", 4007, 200, (1,), RATE / 2, **tie))
    yield run("mixed-sizes", "grpo", on_file("grpo", 4008, "mixed-sizes", 60, sampling={"max_new_tokens": 44}))
    warm = {"optimizer": {"warmup_steps": 80}}
    yield run("long-warm-up", "dr_grpo", slow("dr_grpo", 4009, 200, (1,), RATE / 3, **warm))
    three = {"env": {"settings": {"highest": 5, "guesses": 3}}, "batch": {"prompts_per_step": 6, "group_size": 6}}
    yield run("game-of-three", "grpo", game(4010, 200, **three))
    yield run("self-play-rae", "rae", play(4011, 100))
    yield run("self-play-grpo", "grpo", play(4012, 100, _of("grpo")))
    few = {"batch": {"rows_per_step": 8}, "eval": {"prompts": 40, "every": 60}}
    yield run("dpo-slow", "dpo", rows("dpo", 4021, 240, optimizer={"learning_rate": 3e-5}, **few))
    yield run("rm-slow", "rm", rows("rm", 4022, 240, optimizer={"learning_rate": 3e-4}, **few))
    yield run("sft-slow", "sft", rows("sft", 4023, 240, optimizer={"learning_rate": 1e-4}, **few))
