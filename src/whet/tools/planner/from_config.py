"""From a config to a plan: what the run will take of its device, before its model is read.

`whet plan` asks for any model and any devices; `whet train` asks for its own, refuses what can never fit, and warns.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from whet.model.hub import hub_file
from whet.model.local_copies import SMOLLM2
from whet.objective import catalogue, preset_named, with_changes
from whet.settings.layers import flattened
from whet.tools.planner.plan import Plan, plan_for
from whet.tools.planner.shapes import NAMED, ModelShape, folder_shape, named_shape, shape_from_config
from whet.tools.planner.workload import CARDS, GIGA, Devices, Recompute, Workload
from whet.training.config import Config, PolicyConfig, PreferenceConfig, RewardModelConfig
from whet.training.sections import pass_tokens
from whet.types import Prompt, WhetError, did_you_mean

UNKNOWN_PROMPT = 512  # tokens that are planned for where nobody said
MOST_READ = 10_000  # prompts that are looked at for the longest


def model_shape(name: str) -> ModelShape:
    """A folder, a run, a built-in name, a known shape or size, `hidden=...,layers=...`, or a hub id."""
    path = Path(os.path.expanduser(name))
    if name == SMOLLM2:
        return replace(NAMED["smollm2-135m"], name=SMOLLM2)
    if name and os.path.isdir(path):
        from whet.model.load import model_of_folder

        return folder_shape(model_of_folder(path), name)
    if (shape := named_shape(name)) is not None:
        return shape
    if path.suffix == ".gguf":
        raise WhetError(f"model {name}: a plan reads no .gguf; give its shape, such as 7B or hidden=4096,layers=32")
    from whet.model.load import BUILTIN, HUB_ID, builtin_models

    if name in builtin_models():
        return folder_shape(BUILTIN / name, name)
    if HUB_ID.fullmatch(name):
        return _hub_shape(name)
    known = (*NAMED, *builtin_models(), SMOLLM2)
    raise WhetError(
        f"no model or shape is called {name[:100]!r}{did_you_mean(name.lower(), known)}; give a folder, a run, "
        "a hub id, a size such as 7B, one of " + ", ".join(NAMED) + ", or hidden=4096,layers=32"
    )


def _hub_shape(name: str) -> ModelShape:
    import json

    file = hub_file(name, "config.json")
    if file is None:
        near = named_shape(name.partition("/")[2].lower().removesuffix("-instruct"))
        hint = f"give {near.name}, which has its shape" if near else "give its shape, such as hidden=4096,layers=32"
        raise WhetError(f"model {name}: its config.json is neither here nor can the hub be reached; {hint}")
    try:
        return shape_from_config(json.loads(file.read_text(encoding="utf-8")), name)
    except (ValueError, TypeError) as error:
        raise WhetError(f"model {name}: its config.json is not JSON; download it again, or give its shape") from error


def objective_needs(config: Config) -> frozenset[str]:
    """What the method with the config's changes asks the loop for."""
    changes = getattr(config, "objective", {})
    if not changes:
        return frozenset(catalogue.method(config.method).needs)

    return frozenset(with_changes(preset_named(config.method).objective, flattened(changes)).needs())


def workload(
    config: Config,
    shape: ModelShape,
    prompt_tokens: int = UNKNOWN_PROMPT,
    *,
    on_cpu: bool = False,
    memory: float = 0.0,
    eval_prompts: int = 0,
) -> Workload:
    """What the run asks of a device with so many bytes."""
    model, kind = config.model, catalogue.method(config.method).kind
    recompute: Recompute = model.recompute if model.recompute != "auto" else "none" if on_cpu else "wide"
    usual: Literal["bf16", "fp32"] = "fp32" if on_cpu else "bf16"
    compute = usual if model.precision == "auto" else model.precision
    common: dict[str, Any] = {
        "method": config.method,
        "needs": objective_needs(config) if kind in ("policy", "preference") else frozenset(),
        "prompt_tokens": prompt_tokens,
        **_episodes(config, shape, prompt_tokens),
        "micro_batch_tokens": pass_tokens(
            config.batch.micro_batch_tokens,
            shape.hidden,
            shape.layers,
            0.0 if on_cpu or recompute == "none" else memory,
            4 if compute == "fp32" else 2,
        ),
        "samples": config.samples() and (kind == "policy" or eval_prompts > 0),
        "eval_prompts": eval_prompts,
        "compute": compute,
        "recompute": recompute,
        "weights": model.weights,
        "moments": config.optimizer.states,
        "lora_rank": model.lora.rank,
        "base": _base(model.lora.base, compute, on_cpu),
        "reference": model.reference,
        "reward_model": _reward_model(config),
        "teacher": _teacher(config),
        "own_teacher": getattr(getattr(config, "teacher", None), "name", "") == "self",
        "engines": config.scale.engines,
        "offload": config.scale.offload,
        "on_cpu": on_cpu,
    }
    if isinstance(config, PolicyConfig):
        batch = config.batch
        return Workload(
            shape,
            prompts_per_step=batch.prompts_per_step,
            group_size=batch.group_size * common.get("leaves", 1),
            updates=batch.updates_per_step * batch.epochs_per_batch,
            epochs=batch.epochs_per_batch,
            critic=config.critic.trunk,
            **common,
        )
    rows, pair = config.batch.rows_per_step, 1
    if isinstance(config, PreferenceConfig):
        pair = max(2, config.preference.online)
        stored = config.preference.reference_logp == "stored"
        common |= {"reference": "stored" if stored else "memory", "needs": common["needs"] & {"ref_logp"}}
    drawn = isinstance(config, PreferenceConfig) and config.preference.online > 0
    return Workload(
        shape,
        prompts_per_step=rows,
        group_size=2 if isinstance(config, RewardModelConfig) else pair,
        draws=drawn,
        has_head=not isinstance(config, RewardModelConfig),
        **{**common, "samples": drawn or common["samples"]},
    )


def _episodes(config: Config, shape: ModelShape, prompt_tokens: int) -> dict[str, int]:
    """What a row holds after its prompt: a completion, or all turns of an episode and what answers them."""
    section, budget = config.env, config.sampling.max_new_tokens
    if section.is_single:
        return {"completion_tokens": budget, "lacks_environment": section.branching != "none"}
    behind = section.most_tokens(budget)
    behind = min(behind, max(1, shape.context - prompt_tokens)) if shape.context else behind
    written = min(behind, section.most_actions(budget))
    values = {"completion_tokens": behind, "turns": section.max_turns, "written_tokens": written}
    if section.branching != "none" and section.max_turns > 1:  # nothing branches behind a last turn
        values |= {"leaves": section.leaves, "branch_width": section.branch_width}
    return values


def _base(asked: str, compute: str, on_cpu: bool) -> str:
    """How the base of adapters is kept, as `load_runtime` decides."""
    return asked if asked != "auto" else "bfloat16" if compute == "bf16" and not on_cpu else "float32"


def _reward_model(config: Config) -> ModelShape | None:
    """The learned reward with the most weights among the parts; one that cannot be read is told when it is loaded."""
    shapes = []
    for part in config.reward.parts:
        folder = part.settings.get("folder") if isinstance(part.settings, Mapping) else None
        folders: Sequence[Any] = folder if isinstance(folder, list | tuple) else [folder]
        shapes += [_folder_or_none(name) for name in folders if isinstance(name, str)]
    known = [shape for shape in shapes if shape is not None]
    return max(known, key=lambda shape: shape.weights, default=None)


def _teacher(config: Config) -> ModelShape | None:
    """The teacher, where it stands on the policy's device."""
    section = getattr(config, "teacher", None)
    if section is None or section.name in ("", "self") or section.device not in ("", config.model.device):
        return None
    return _folder_or_none(section.name)


def _folder_or_none(name: str) -> ModelShape | None:
    try:
        return model_shape(name)
    except WhetError:
        return None


def this_device(device: Any) -> Devices:
    """The device of a torch device name, with the memory that is free on it now."""
    import torch

    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        held = torch.cuda.memory_reserved(device)
        name = torch.cuda.get_device_name(device)
        card = next(
            (listed for listed in CARDS.values() if listed.name.replace("-", " ").split()[0] in name.split()), None
        )
        return Devices(1, float(free + held), card)
    return Devices(1, float(free_memory()), is_cpu=True)


def free_memory() -> int:
    """Bytes of the machine's memory that could be taken without swapping."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 2**63


def device_plan(config: Config, room: Devices, prompt_tokens: int, ranks: int) -> Plan | None:
    """The plan of this run on this device; None for a model whose shape cannot be told without reading it."""
    try:
        shape = replace(model_shape(config.model.name), context=0)  # rows that are too long are told by the run
    except WhetError:  # what is wrong with the model is told when it is loaded
        return None
    evals = config.eval.prompts if config.samples() else 0
    work = workload(config, shape, max(1, prompt_tokens), on_cpu=room.is_cpu, memory=room.memory, eval_prompts=evals)
    if work.teacher is not None:
        work = replace(work, teacher=replace(work.teacher, context=0))
    return plan_for(work, replace(room, count=ranks + work.engines))


def refuse_too_large(config: Config, room: Devices, ranks: int = 1) -> None:
    """Raise where weights and their training state alone exceed the device: it would be found out minutes later."""
    plan = device_plan(config, room, 1, ranks)
    if plan is None:
        return
    standing = [line for line in plan.memory.lines if line.stands and not line.name.startswith("sampler")]
    total = sum(line.bytes for line in standing)
    if total <= room.memory:
        return
    shown = ", ".join(f"{line.name} {line.gigabytes:.3g}" for line in sorted(standing, key=lambda line: -line.bytes))
    fix = f"add {plan.together.flags}" if plan.together else "take a smaller model or more devices"
    raise WhetError(
        f"{config.model.name} does not fit: {total / GIGA:.3g} GB before the first pass and {room.memory / GIGA:.3g} "
        f"GB are free; {fix}; the plan: {shown}; `whet plan` shows all of it"
    )


def memory_facts(config: Config, room: Devices, prompts: Sequence[Prompt], ranks: int = 1) -> dict[str, str]:
    """One line for the run's facts where the plan says that it will not fit; nothing where it will."""
    longest = max((_characters(prompt) for prompt in prompts[:MOST_READ]), default=4 * UNKNOWN_PROMPT)
    plan = device_plan(config, room, longest // 4, ranks)
    if plan is None or plan.fits:
        return {}
    longest_episodes = ", where every episode is as long as it may become" if plan.work.turns > 1 else ""
    return {"memory": f"the plan says{longest_episodes}: {plan.verdict}"}


def _characters(prompt: Prompt) -> int:
    """About four to a token."""
    return sum(len(str(message.get("content", ""))) for message in prompt.messages) or len(prompt.text or "")
