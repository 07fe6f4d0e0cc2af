"""How a step's time and memory grow with group size, sequence length, batch and model size, beside the ceilings.

    python benchmarks/growth.py --images growth --results

Each point is a fresh process: random weights of a small Llama with a vocabulary of bytes, completions of fixed
length. The dashed lines are what the measured matrix rate and memory bandwidth would allow if only useful work were
done.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

from duel import add_common_flags, told
from results_file import add_results_flag, machine, write_results

AXES: dict[str, tuple[str, tuple[int, ...]]] = {
    "group": ("completions per prompt", (2, 4, 8, 16, 32)),
    "length": ("tokens of a completion", (16, 32, 64, 128, 256)),
    "batch": ("prompts per step", (1, 2, 4, 8, 16)),
    "model": ("width of the model (4 layers)", (64, 128, 256, 384, 512)),
}
BASE = {"batch": 4, "group": 8, "prompt": 40, "length": 64, "model": 256}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_flags(parser)
    add_results_flag(parser, "growth")
    parser.set_defaults(steps=3)
    parser.add_argument("--axes", default=",".join(AXES))
    parser.add_argument("--points", type=int, default=5, help="of each axis, the smallest first")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=2.0, help="of timed steps a point, at the least --steps steps")
    parser.add_argument("--images", type=Path, help="folder for growth-*.svg")
    parser.add_argument("--point", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.point:
        print(json.dumps(point(json.loads(chosen.point), chosen)))
        return
    from whet.tools.bench.meter import QUIET, reading_record, wait_for_quiet

    options = ["--threads", str(chosen.threads), "--steps", str(chosen.steps), "--seconds", str(chosen.seconds)]
    options += ["--device", chosen.device, "--precision", chosen.precision]
    results: dict[str, Any] = {}
    for axis in chosen.axes.split(","):
        results[axis] = []
        for value in AXES[axis][1][: chosen.points]:
            before = wait_for_quiet(chosen.patience)
            asked = json.dumps({**BASE, axis: value})
            found = told([sys.executable, __file__, "--point", asked, *options])
            results[axis].append({"at": value, **found, "load_before": reading_record(before)})
            others = found["others"]
            mark = "" if others is None or others < QUIET else f"  contended: others used {others:.0%}"
            times = f"step {found['step']:.3f} s (rollout {found['rollout']:.3f}, training {found['train']:.3f})"
            print(f"{axis} {value}: {times}, peak {found['peak_bytes'] / 1e9:.2f} GB{mark}", flush=True)
    if chosen.results:
        write_results(chosen.results, {"base": BASE, **results})
    if chosen.images:
        draw(results, chosen.images, f"{machine()['processor']}, {chosen.threads} threads, {chosen.precision}")


def point(values: dict[str, int], chosen: Any) -> dict[str, Any]:
    """One shape in this process: seconds, peak memory, and the least that the ceilings allow."""
    import torch
    from bench_models import BODY, random_machine

    from whet.record.metrics.timer import PhaseTimer
    from whet.record.speed import RolloutShape, rollout_bytes, rollout_operations, training_operations
    from whet.tools.bench import benchmark
    from whet.tools.bench.meter import Meter

    torch.set_num_threads(chosen.threads)
    device, width = torch.device(chosen.device), values["model"]
    body = {**BODY, "hidden_size": width, "intermediate_size": width * 688 // 256, "num_hidden_layers": 4}
    machine = random_machine("llama", {**body, "vocab_size": 0}, device, chosen.precision)
    shape = RolloutShape(values["batch"], values["group"], values["prompt"], values["length"])
    config = benchmark.bench_config("whetstone", shape, {"objective": {"kl": "none"}}, method="grpo")
    trainer = benchmark.bench_trainer(config, machine, benchmark.random_prompts(machine, shape, 0))
    trainer.step(1, PhaseTimer())
    around = Meter()
    steps = benchmark.timed_steps(trainer, chosen.seconds, device, least=chosen.steps)
    others = around.read().others
    peak = benchmark.peak_memory(device)
    quiet = [step for step in steps if step.reading.quiet] or steps
    rate = benchmark.matrix_rate(device, machine.policy.dtype, 0.5)
    bytes_rate = benchmark.copy_rate(device, 0.3)
    anatomy = benchmark.model_anatomy(machine.policy.model)
    operations = training_operations(anatomy, shape) + rollout_operations(anatomy, shape)
    number = torch.finfo(machine.policy.dtype).bits // 8
    weights = sum(each.numel() for each in machine.policy.model.parameters())
    return {
        "step": median(step.reading.seconds for step in quiet),
        "rollout": median(step.seconds["rollout"] for step in quiet),
        "train": median(step.seconds["train"] for step in quiet),
        "peak_bytes": peak,
        "states_bytes": 16 * weights,
        "operations": operations,
        "matrix_rate": rate,
        "bytes_rate": bytes_rate,
        "least_by_operations": operations / rate,
        "least_by_bytes": rollout_bytes(anatomy, shape, number) / bytes_rate,
        "others": others,
        "steps": len(quiet),
    }


def draw(results: dict[str, Any], folder: Path, machine: str) -> None:
    """growth-AXIS-time.svg and growth-AXIS-memory.svg for each axis."""
    from whet.pages.chart_specs import QUIET, curve

    folder.mkdir(parents=True, exist_ok=True)
    for axis, points in results.items():

        def line(
            name: str, key: str, tone: int, dashed: bool = False, unit: float = 1.0, points: Any = points
        ) -> dict[str, Any]:
            return curve(name, ([(float(each["at"]), each[key] / unit) for each in points],), tone, dashed=dashed)

        times = [
            line("step", "step", 0),
            line("rollout", "rollout", 1),
            line("training", "train", 2),
            line("useful operations at the matrix rate", "least_by_operations", QUIET, True),
            line("bytes the rollout reads at the copy rate", "least_by_bytes", 3, True),
        ]
        memory = [
            line("peak of the process", "peak_bytes", 0, unit=1e9),
            line("weights, gradients, optimizer", "states_bytes", QUIET, True, 1e9),
        ]
        contended = any(each["others"] is not None and each["others"] >= 0.08 for each in points)
        about = f"{machine}{', taken on a busy machine' if contended else ''}"
        write_figure(folder / f"growth-{axis}-time.svg", times, ("Seconds of a step", "seconds", AXES[axis][0]), about)
        write_figure(folder / f"growth-{axis}-memory.svg", memory, ("Memory of a step", "GB", AXES[axis][0]), about)


def write_figure(path: Path, lines: list[Any], names: tuple[str, str, str], about: str) -> None:
    from whet.pages.chart_specs import chart
    from whet.pages.chart_svg import figure_file

    title, y_label, x_label = names
    across = [at for line in lines for at in line["x"]]
    values = [value for line in lines for value in line["y"]]
    panel = chart(
        lines,
        x={"label": x_label, "min": 0.0, "max": max(across)},
        y={"label": y_label, "min": 0.0, "max": 1.1 * max(values)},
        smooth=False,
    )
    path.write_text(figure_file([panel], f"{title} against {x_label}", about), encoding="utf-8")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
