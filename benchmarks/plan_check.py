"""The planner beside real peaks: training steps of many configurations, each in a process of its own.

    python benchmarks/plan_check.py --results                    # one GPU: results/gpu_plan_check.json
    python benchmarks/plan_check.py --cpu --results              # results/plan_check_cpu.json
    python benchmarks/plan_check.py --only 1.5b-grpo,7b-lora     # some of them
    python benchmarks/plan_check.py --tiny                       # the GPU's list, tiny, on a CPU: does it run?
    python benchmarks/plan_check.py --recheck                    # today's planner beside the peaks recorded there

Weights are random, of a real model's shape, made on the device. A configuration runs two steps of the loop's own
trainer; its peak is torch's (allocated, reserved) on a GPU, and on a CPU the resident memory of the process, whose
malloc gives freed blocks back. `ratio` is plan over peak. `--recheck` measures nothing: peaks, their date, commit and
machine stay as they are, the plans are made anew, and `estimate` says by which commit.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from results_file import RESULTS, ROOT, add_results_flag, commit_of, shortened, write_results

GIB = 2**30
GPU_SHAPES = {
    "0.5b": "qwen2.5-0.5b",
    "1.5b": "qwen2.5-1.5b",
    "3b": "qwen2.5-3b",
    "7b": "qwen2.5-7b",
    "135m": "smollm2-135m",
}
# malloc gives freed blocks of so many bytes back: what it would keep of them is in no plan
ON_CPU = {"CUDA_VISIBLE_DEVICES": "", "MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
NO_KL = {"objective": {"kl": "none"}}


def case(
    shape: str, method: str, rows: tuple[int, int], tokens: tuple[int, int], pack: int, **settings: Any
) -> dict[str, Any]:
    """`rows`: prompts and group, or rows and 1; `tokens`: prompt and completion."""
    return {"shape": shape, "method": method, "rows": rows, "tokens": tokens, "pack": pack, "settings": settings}


def model(**values: Any) -> dict[str, Any]:
    """A config's model section."""
    return {"model": values}


# name: what is run
GPU: dict[str, dict[str, Any]] = {
    "135m-grpo": case("135m", "grpo", (32, 8), (128, 512), 20480, **NO_KL),
    "135m-grpo-none": case("135m", "grpo", (32, 8), (128, 512), 40960, **NO_KL, **model(recompute="none")),
    "0.5b-grpo-reference": case("0.5b", "grpo", (16, 8), (256, 512), 16384),
    "0.5b-ppo": case("0.5b", "ppo", (16, 4), (256, 256), 16384),
    "1.5b-grpo": case("1.5b", "grpo", (8, 8), (128, 512), 16384, **NO_KL),
    "1.5b-grpo-none": case("1.5b", "grpo", (8, 8), (128, 512), 16384, **NO_KL, **model(recompute="none")),
    "1.5b-grpo-layers-long": case("1.5b", "grpo", (4, 8), (512, 3584), 32768, **NO_KL, **model(recompute="layers")),
    "1.5b-grpo-long-prompts": case("1.5b", "grpo", (8, 8), (4096, 256), 16384, **NO_KL),
    "1.5b-ppo": case("1.5b", "ppo", (8, 8), (128, 256), 8192),
    "1.5b-lora": case("1.5b", "grpo", (8, 8), (128, 512), 16384, **model(lora=16)),
    "1.5b-sft-ragged": case("1.5b", "sft", (64, 1), (128, 1920), 16384),
    "1.5b-dpo": case("1.5b", "dpo", (32, 2), (256, 256), 16384),
    "3b-sft": case("3b", "sft", (32, 1), (256, 768), 8192),
    "7b-lora": case("7b", "grpo", (8, 8), (128, 256), 8192, **model(lora=16)),
    "7b-lora-sft-layers-long": case("7b", "sft", (4, 1), (512, 7680), 16384, **model(lora=16, recompute="layers")),
    "7b-sft-bfloat16": case("7b", "sft", (16, 1), (128, 896), 4096, **model(weights="bfloat16")),
}
CPU: dict[str, dict[str, Any]] = {
    "words-grpo": case("words", "grpo", (4, 4), (64, 96), 4096, **NO_KL),
    "words-grpo-reference": case("words", "grpo", (4, 4), (64, 96), 1024),
    "words-ppo": case("words", "ppo", (4, 4), (64, 64), 2048),
    "wide-sft": case("wide", "sft", (4, 1), (64, 448), 2048),
    "wide-sft-layers": case("wide", "sft", (4, 1), (64, 448), 2048, **model(recompute="layers")),
    "wide-dpo": case("wide", "dpo", (2, 2), (64, 192), 1024),
    "wide-lora": case("wide", "grpo", (2, 4), (64, 64), 1024, **model(lora=16)),
}
CPU_SHAPES = {
    "words": "hidden=256,layers=4,heads=8,kv_heads=4,head_dim=32,inner=688,vocab=49152",
    "wide": "hidden=768,layers=8,heads=12,kv_heads=4,head_dim=64,inner=2048,vocab=32000",
}
TINY = "hidden=64,layers=2,heads=4,kv_heads=2,head_dim=16,inner=128,vocab=512"


def chosen_shape(name: str, tiny: bool) -> Any:
    """The shape of that name, or the tiny one."""
    from whet.tools.planner.shapes import named_shape

    shape = named_shape(TINY if tiny else {**GPU_SHAPES, **CPU_SHAPES}[name])
    assert shape is not None
    return replace(shape, context=16384)


def random_load(shape: Any) -> Any:
    """In place of `load_model`: a model of this shape with random weights, on the device at once."""

    def load(name: str, dtype: Any, device: str, chat_template: str = "") -> Any:
        import torch
        from bench_models import tokenizer_of
        from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

        from whet.model.load import LoadedModel

        tokenizer = tokenizer_of(shape.vocabulary)
        family = Qwen2Config if shape.bias else LlamaConfig
        config = family(
            hidden_size=shape.hidden, intermediate_size=shape.inner, num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads, num_key_value_heads=shape.key_heads, vocab_size=shape.vocabulary,
            max_position_embeddings=shape.context, tie_word_embeddings=shape.tied, head_dim=shape.head_size,
        )  # fmt: skip
        torch.manual_seed(0)
        with torch.device(device):
            made = AutoModelForCausalLM.from_config(config, dtype=dtype)
        made.eval()
        return LoadedModel(made, tokenizer, "random", (), shape.context)

    return load


def trainer_for(config: Any, runtime: Any, asked: Mapping[str, Any]) -> Any:
    """The loop's own trainer on random tokens."""
    import torch

    from whet.record.speed import RolloutShape
    from whet.tools.bench.benchmark import bench_trainer, random_prompts, unending
    from whet.training.assembly.preference import preference_objective
    from whet.training.assembly.references import build_reference
    from whet.training.completion_logp import LiveReference
    from whet.training.preference_trainer import (
        PreferenceDataset,
        PreferenceModels,
        PreferenceRow,
        PreferenceTrainer,
    )
    from whet.training.sections import RowsSection
    from whet.training.sft_trainer import SFTTrainer
    from whet.types import Encoded

    (count, group), (prompt, completion), pack = asked["rows"], asked["tokens"], asked["pack"]
    stream = torch.Generator().manual_seed(0)
    vocabulary = runtime.policy.vocabulary

    def tokens(size: int) -> tuple[int, ...]:
        return tuple(torch.randint(3, vocabulary, (size,), generator=stream).tolist())

    def row(start: tuple[int, ...], size: int) -> Encoded:
        return Encoded(start + tokens(size), (False,) * len(start) + (True,) * size)

    policy, tokenizer = runtime.policy, runtime.tokenizer
    batch = RowsSection(rows_per_step=count, micro_batch_tokens=pack)
    training: dict[str, Any] = {"batch": batch, "optimizer": config.optimizer, "steps": 1000, "seed": 0}
    if asked["method"] == "sft":
        least = max(1, completion // 4) if asked["ragged"] else completion
        sizes = torch.randint(least, completion + 1, (4 * count,), generator=stream).tolist()
        rows = [row(tokens(prompt), size) for size in sizes]
        return SFTTrainer(policy, tokenizer, rows, **training)
    if asked["method"] == "dpo":
        starts = [tokens(prompt) for _ in range(2 * count)]
        pairs = [PreferenceRow((row(start, completion), row(start, completion))) for start in starts]
        objective = preference_objective(config)
        reference = LiveReference(build_reference(config, runtime, objective.reference.name), pack)
        models = PreferenceModels(policy, tokenizer, reference)
        return PreferenceTrainer(models, objective, PreferenceDataset(pairs), **training)
    shape = RolloutShape(count, group, prompt, completion)
    return bench_trainer(config, unending(runtime), random_prompts(runtime, shape, 0))


def run_config(asked: Mapping[str, Any], device: str) -> Any:
    """The config of the run, as `whet train` would have it."""
    from whet.settings.layers import merged
    from whet.training.config import resolved

    (count, group), (_, completion) = asked["rows"], asked["tokens"]
    batch: dict[str, Any] = {"micro_batch_tokens": asked["pack"]}
    policy = asked["method"] in ("grpo", "ppo")
    batch |= {"prompts_per_step": count, "group_size": group} if policy else {"rows_per_step": count}
    base = {
        "model": {"name": "random/model", "device": device},
        "batch": batch,
        "eval": {"prompts": 0},
        "sampling": {"max_new_tokens": completion},
        "optimizer": {"learning_rate": 1e-6},
    }
    return resolved(asked["method"], merged(base, asked["settings"]), width=1024)


def measured(asked: Mapping[str, Any], shape: Any, device_name: str) -> dict[str, Any]:
    """Two steps, and the plan for them."""
    import torch

    import whet.training.assembly.runtime as runtime_module
    from whet.record.metrics.timer import PhaseTimer
    from whet.tools.bench import meter
    from whet.tools.bench.benchmark import begin_peak, peak_memory, synchronize
    from whet.tools.planner.workload import CARDS, Devices

    device = torch.device(device_name)
    on_cpu = device.type == "cpu"
    before = meter.resident_bytes()
    config = run_config(asked, device_name)
    runtime_module.load_model = random_load(shape)
    begun = time.perf_counter()
    runtime = runtime_module.load_runtime(config)
    trainer = trainer_for(config, runtime, asked)
    made = time.perf_counter() - begun
    begin_peak(device)
    seconds: dict[str, float] = {}
    for number in (1, 2):
        timer = PhaseTimer()
        begun = time.perf_counter()
        trainer.step(number, timer)
        synchronize(device)
        seconds = {"step": time.perf_counter() - begun, **timer.seconds}
    peak = peak_memory(device)
    measured_values: dict[str, Any] = {"made_s": made, "seconds": seconds, "path": runtime.facts["training path"]}
    if on_cpu:
        room = Devices(1, 64e9, is_cpu=True)
        measured_values |= {"peak_GiB": peak / GIB, "before_GiB": before / GIB}
    else:
        free, total = torch.cuda.mem_get_info(device)
        reserved = torch.cuda.max_memory_reserved(device)
        card = CARDS["h200"] if "H200" in torch.cuda.get_device_name(device) else None
        room = Devices(1, float(total), card)
        measured_values |= {
            "peak_GiB": peak / GIB,
            "reserved_GiB": reserved / GIB,
            "outside_GiB": (total - free - torch.cuda.memory_reserved(device)) / GIB,
            "device_GiB": total / GIB,
        }
    if (critic := getattr(runtime_critic(trainer), "trunk", None)) is not None:
        measured_values["critic_recompute"] = critic.recompute
    return measured_values | planned(asked, shape, room, measured_values)


def runtime_critic(trainer: Any) -> Any:
    """The trainer's critic, if it has one."""
    models = getattr(trainer, "_models", None)
    return getattr(models, "critic", None)


def planned(asked: Mapping[str, Any], shape: Any, room: Any, measured_values: Mapping[str, Any]) -> dict[str, Any]:
    """The plan for a configuration beside the peak in `found`."""
    from whet.tools.planner.from_config import workload
    from whet.tools.planner.memory import PHASES
    from whet.tools.planner.plan import plan_for

    config, (prompt, _) = run_config(asked, "cpu" if room.is_cpu else "cuda"), asked["tokens"]
    work = workload(config, shape, prompt, on_cpu=room.is_cpu)
    work = replace(work, full_rows=not asked["ragged"], critic_recompute=measured_values.get("critic_recompute"))
    plan = plan_for(work, room)
    needed = (plan.memory.total if room.is_cpu else plan.memory.allocated) / GIB
    lines: dict[str, float] = {}
    for line in plan.memory.lines:
        when = "" if line.phases == PHASES else f" [{', '.join(line.phases) or 'at another moment'}]"
        lines[f"{line.name}{when}"] = line.bytes / GIB
    return {
        "plan_GiB": needed,
        "plan_device_GiB": plan.memory.total / GIB,
        "ratio": needed / measured_values["peak_GiB"],
        "phase": plan.memory.peak_phase,
        "plan_seconds": {phase.name: phase.seconds for phase in plan.time.phases},
        "weights_M": shape.weights / 1e6,
        "lines": lines,
        "by_phase": {phase: plan.memory.of(phase) / GIB for phase in PHASES},
    }


def rechecked(record: Mapping[str, Any], on_cpu: bool) -> dict[str, Any]:
    """The record with the plans of today's planner."""
    from whet.tools.planner.workload import CARDS, Devices

    every, results = cases(tiny=False, cpu=on_cpu), {}
    for name, old in record["values"]["cases"].items():
        if "peak_GiB" not in old or name not in every:
            results[name] = old
            continue
        asked = every[name]
        if asked["method"] == "ppo" and "critic_recompute" not in old:
            old = {**old, "critic_recompute": "none"}  # before this was recorded, critics kept all of their activations
        room = Devices(1, 64e9, is_cpu=True)
        if not on_cpu:
            card = CARDS["h200"]
            room = Devices(1, old["device_GiB"] * GIB if "device_GiB" in old else card.memory, card)
        results[name] = {**old, **planned(asked, chosen_shape(asked["shape"], False), room, old)}
    return {**record, "values": {"cases": results, "summary": summary(results), "estimate": estimate()}}


def estimate() -> dict[str, Any]:
    """When the plan was made, and by which commit."""
    return {"date": datetime.now(UTC).strftime("%Y-%m-%d"), **commit_of(ROOT)}


def summary(results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """How far the plans are from what was measured."""
    ratios = [result["ratio"] for result in results.values() if "ratio" in result]
    worst = max((abs(ratio - 1) for ratio in ratios), default=0.0)
    return {"count": len(ratios), "within_10": sum(abs(ratio - 1) <= 0.1 for ratio in ratios), "worst": worst}


def recheck(name: str, on_cpu: bool) -> None:
    """Compare today's plans with the measurements of a results file."""
    path = RESULTS / f"{name}.json"
    if not path.is_file():
        raise SystemExit(f"--recheck: results/{name}.json is not there; measure first, with --results {name}")
    record = rechecked(json.loads(path.read_text(encoding="utf-8")), on_cpu)
    for case, values in record["values"]["cases"].items():
        print(line_of(case, values))
    said = record["values"]["summary"]
    print(f"{said['within_10']} of {said['count']} within 10%, the worst {said['worst']:.1%}")
    path.write_text(json.dumps(shortened(record), indent=1, allow_nan=False) + "\n", encoding="utf-8")


def described(asked: Mapping[str, Any]) -> str:
    """The sizes of a case in words."""
    (count, group), (prompt, completion) = asked["rows"], asked["tokens"]
    rows = f"{count} x {group}" if group > 1 else f"{count} rows"
    return f"{rows}, {prompt} + {'up to ' if asked['ragged'] else ''}{completion}, passes of {asked['pack']}"


def cases(tiny: bool, cpu: bool) -> dict[str, dict[str, Any]]:
    """The configurations to measure, by name."""
    configurations = {}
    for name, asked in (CPU if cpu else GPU).items():
        (count, group), tokens = asked["rows"], asked["tokens"]
        small = {
            "rows": (min(count, 4), min(group, 2)),
            "tokens": tuple(min(count, 16) for count in tokens),
            "pack": 64,
        }
        configurations[name] = {**asked, **(small if tiny else {}), "ragged": name.endswith("ragged")}
    return configurations


def supported(asked: Mapping[str, Any]) -> bool:
    """Settings that this version has not yet are left out, and said."""
    from whet.model.sections import ModelSection

    return set(asked["settings"].get("model", {})) <= set(ModelSection.model_fields)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names, with commas between them")
    parser.add_argument("--cpu", action="store_true", help="the list for a CPU")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes, on a CPU")
    parser.add_argument("--limit", type=float, default=400.0, help="seconds after which no further one is started")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    on_cpu = "--cpu" in sys.argv or "--tiny" in sys.argv
    add_results_flag(parser, "plan_check_cpu" if on_cpu else "gpu_plan_check")
    parser.add_argument("--recheck", action="store_true", help="plan anew for what was measured, on no device")
    chosen = parser.parse_args()
    if chosen.recheck:
        recheck(chosen.results or ("plan_check_cpu" if on_cpu else "gpu_plan_check"), on_cpu)
        return
    every = cases(chosen.tiny, chosen.cpu)
    names = [name for name in chosen.only.split(",") if name] or list(every)
    unknown = [name for name in names if name not in every]
    if unknown:
        raise SystemExit(f"--only {unknown[0]}: give some of {', '.join(every)}, with commas between them")
    if chosen.one:
        asked = every[chosen.one]
        values = measured(asked, chosen_shape(asked["shape"], chosen.tiny), "cpu" if on_cpu else "cuda")
        print(f"FOUND {json.dumps(values)}")
        return
    begun, results = time.monotonic(), {}
    for name in names:
        if not supported(every[name]):
            print(f"{name:26} left out: this version has not all of its settings", flush=True)
            continue
        if time.monotonic() - begun > chosen.limit:
            print(f"{name:26} left out: {chosen.limit:.0f} seconds are over", flush=True)
            continue
        results[name] = one_in_a_process(name, chosen, on_cpu) | {"what": described(every[name])}
        print(line_of(name, results[name]), flush=True)
    said = summary(results)
    print(
        f"{said['within_10']} of {said['count']} within 10%, the worst {said['worst']:.1%}; "
        f"{time.monotonic() - begun:.0f} s"
    )
    if chosen.results:
        write_results(chosen.results, {"cases": results, "summary": said, "estimate": estimate()})


def one_in_a_process(name: str, chosen: argparse.Namespace, on_cpu: bool) -> dict[str, Any]:
    """Measure one case in a process of its own: its peak must be its own."""
    flags = [flag for flag, wanted in (("--cpu", chosen.cpu), ("--tiny", chosen.tiny)) if wanted]
    command = [sys.executable, str(Path(__file__).resolve()), "--one", name, *flags]
    environment = {**os.environ, **(ON_CPU if on_cpu else {})}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    said = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    if done.returncode or not said:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        return {"failed": last[:300]}
    values: dict[str, Any] = json.loads(said[-1].removeprefix("FOUND "))
    return values


def line_of(name: str, values: Mapping[str, Any]) -> str:
    """One measured case as a line."""
    if "failed" in values:
        return f"{name:26} failed: {values['failed']}"
    reserved = f", reserved {values['reserved_GiB']:.2f}" if "reserved_GiB" in values else ""
    return (
        f"{name:26} plan {values['plan_GiB']:7.2f} GiB, peak {values['peak_GiB']:7.2f}{reserved}, "
        f"ratio {values['ratio']:.3f} "
        f"({values['phase']}); step {values['seconds']['step']:.1f} s"
    )


if __name__ == "__main__":
    main()
