"""TRL's own configs and rewards given to whet, in one process: `python trl_migration_side.py FOLDER` prints JSON."""

import asyncio
import dataclasses
import json
import random
import sys
import threading
import types
from pathlib import Path

import torch
from accelerate import Accelerator
from trl import DPOConfig, GRPOConfig, GRPOTrainer, KTOConfig, RewardConfig, RLOOConfig, SFTConfig
from trl.rewards import accuracy_reward, get_soft_overlong_punishment, think_format_reward

import whet
from whet.reward.call import as_reward
from whet.reward.combine import RewardPart
from whet.reward.score import score
from whet.settings.foreign import FOREIGN
from whet.types import Prompt, Sample, StopReason

CPU = {"use_cpu": True, "bf16": False}
CONFIGS = (GRPOConfig, RLOOConfig, DPOConfig, SFTConfig, RewardConfig, KTOConfig)


def length_reward(completions, **kwargs):
    """The quick start's kind: one number per completion, from its text alone."""
    return [-abs(20 - len(content(completion))) / 20 for completion in completions]


def math_reward(prompts, completions, task, **kwargs):
    """Of a mixture of tasks: None for the rows of others."""
    return [
        float("4" in content(text)) if kind == "math" else None for text, kind in zip(completions, task, strict=True)
    ]


async def code_reward(prompts, completions, task, **kwargs):
    """The other task's, which waits for something."""
    await asyncio.sleep(0)
    return [
        float("def" in content(text)) if kind == "code" else None for text, kind in zip(completions, task, strict=True)
    ]


def logging_reward(completions, log_metric, log_extra, trainer_state, **kwargs):
    """With what TRL passes for logs and schedules."""
    log_metric("step", trainer_state.global_step)
    log_extra("letters", [len(content(text)) for text in completions])
    return [0.0] * len(completions)


def content(completion):
    return completion if isinstance(completion, str) else completion[0]["content"]


def collisions():
    """Fields of one config that the table takes for the same setting."""
    clashes = []
    for kind in CONFIGS:
        seen = {}
        for field in dataclasses.fields(kind):
            entry = FOREIGN.get(field.name)
            if (
                entry is not None
                and (entry.key or entry.is_part)
                and not entry.by_hand
                and seen.setdefault(entry.name, field.name) != field.name
            ):
                clashes.append(f"{kind.__name__}: {seen[entry.name]} and {field.name}")
    return clashes


def sizes():
    """(TRL's completions per call to the sampler, whet's; TRL's completions per update, whet's) of random settings."""
    rng, rows = random.Random(0), []
    while len(rows) < 20:
        names = {"per_device_train_batch_size": rng.choice([2, 4, 8]), "num_generations": rng.choice([2, 4, 8])}
        names["gradient_accumulation_steps"] = rng.choice([1, 2, 4])
        times = rng.choice([None, 1, 2])
        if times is not None:
            names["steps_per_generation"] = names["gradient_accumulation_steps"] * times
        try:
            theirs = GRPOConfig(output_dir="x", **names, **CPU)
        except ValueError:
            continue
        batch = whet.from_trl(theirs).config["batch"]
        drawn = batch["prompts_per_step"] * batch["group_size"]
        updated = theirs.per_device_train_batch_size * theirs.world_size * theirs.gradient_accumulation_steps
        rows.append((theirs.generation_batch_size, drawn, updated, drawn / batch.get("updates_per_step", 1)))
    return rows


def sums():
    """Rewards of TRL's own code and of whet's for the same completions, with rows that no function is for."""
    tasks = ["math", "code", "math", "none", "code", "none"]
    texts = ["is 4", "def f", "is 5", "4", "no", "def"]
    functions, weights = [math_reward, code_reward], torch.tensor([1.0, 0.5])
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    trainer = types.SimpleNamespace(
        accelerator=Accelerator(cpu=True),
        reward_funcs=functions,
        reward_processing_classes=[None, None],
        reward_func_names=["math_reward", "code_reward"],
        environments=None,
        state=types.SimpleNamespace(global_step=0),
        async_loop=loop,
        _log_completion_extra=None,
        _log_metric=None,
        args=types.SimpleNamespace(report_to=[]),
    )
    inputs = [{"prompt": "q", "task": task} for task in tasks]
    per_function = GRPOTrainer._calculate_rewards(trainer, inputs, ["q"] * 6, texts, [[1]] * 6)
    theirs = (per_function * weights).nansum(1)
    theirs[per_function.isnan().all(1)] = float("nan")
    prompts = [Prompt(f"p{i}", (), text="q", meta={"task": task}) for i, task in enumerate(tasks)]
    one = torch.tensor([1])
    samples = [Sample(one, one.bool(), torch.zeros(1), (0, 0), StopReason.END, text) for text in texts]
    parts = [
        RewardPart(as_reward(function), float(weight)) for function, weight in zip(functions, weights, strict=True)
    ]
    ours = [sample.reward for sample in score(prompts, samples, parts, 10.0, "stop")]
    return [[None if value != value else value for value in theirs.tolist()], ours]


def trained(folder):
    """The quick start, and the multi-task pattern with logs, trained for two steps by whet."""
    rows = [{"prompt": f"Left to right mod 10: {n}+4-3", "task": "math" if n % 2 else "code"} for n in range(8)]
    rows = [{**row, "solution": "$4$"} for row in rows]
    common = {"num_generations": 2, "per_device_train_batch_size": 4, "max_completion_length": 8, **CPU}
    quick = whet.from_trl(
        GRPOConfig(output_dir=str(folder / "quick"), max_steps=2, **common),
        reward_funcs=length_reward,
        train_dataset=rows,
    )
    tasks = whet.from_trl(
        GRPOConfig(output_dir=str(folder / "tasks"), max_steps=2, reward_weights=[1.0, 0.5, 1.0], **common),
        reward_funcs=[math_reward, code_reward, logging_reward],
        train_dataset=rows,
    )
    own = whet.from_trl(
        GRPOConfig(output_dir=str(folder / "own"), max_steps=1, **common),
        reward_funcs=[accuracy_reward, think_format_reward, get_soft_overlong_punishment(8, 4)],
        train_dataset=[{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in rows],
    )
    runs = [migrated.train(console=False, eval={"prompts": 0}) for migrated in (quick, tasks)]
    return {
        "unmapped": [dict(quick.unmapped), dict(tasks.unmapped), dict(own.unmapped)],
        "status": [run.status for run in runs],
        "logged": [row.get("logged/step") for row in runs[1].rows()],
        "extra": sorted({name for line in runs[1].samples() for name in line.get("extra", {})}),
        "own": sorted(part.__name__ for part in own.arguments["reward"]),
    }


if __name__ == "__main__":
    answers = {"collisions": collisions(), "sizes": sizes(), "sums": sums(), "trained": trained(Path(sys.argv[1]))}
    print(json.dumps(answers))
