"""whet's side of a comparison: reads a job, runs steps of the loop, writes what they took."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from stopwatch import Stopwatch

from whet.record.metrics.timer import PhaseTimer


def device_of(job: dict[str, Any]) -> str:
    return job.get("device", "cpu")


def policy_trainer(job: dict[str, Any]) -> Any:
    from whet.record.speed import RolloutShape
    from whet.tools.bench.benchmark import bench_config, bench_trainer, unending
    from whet.training.assembly.runtime import load_runtime

    settings = {
        "seed": job["seed"],
        "model": {"device": device_of(job), "precision": job["precision"], "threads": job["threads"]},
        "batch": {"micro_batch_tokens": job["micro_batch_tokens"]},
        "objective": {"kl": "none"},
    }
    config = bench_config(job["model"], RolloutShape(*job["shape"]), settings, method="grpo")
    return bench_trainer(config, unending(load_runtime(config)), [tuple(each) for each in job["tokens"]])


def agent_trainer(job: dict[str, Any], watch: Stopwatch) -> Any:
    """Episodes with the tools of an environment; every turn takes its whole budget."""
    from whet.data.chat import prompt_tokens
    from whet.record.speed import RolloutShape
    from whet.rollout.collect import PromptDataset, RewardContext
    from whet.rollout.engines import build_engine
    from whet.tools.bench.benchmark import bench_config
    from whet.training.assembly.episode_runner import build_episode_runner
    from whet.training.assembly.rl import build_objective, build_rl_trainer
    from whet.training.assembly.runtime import load_runtime
    from whet.types import Prompt

    settings = {
        "seed": job["seed"],
        "model": {"device": device_of(job), "precision": job["precision"], "threads": job["threads"]},
        "batch": {"micro_batch_tokens": job["micro_batch_tokens"]},
        "objective": {"kl": "none"},
        "env": {
            **{"name": f"{job['environment']}:LookUp", "call_format": "template"},
            **{"max_turns": job["turns"], "max_tokens": job["growth"]},
        },
    }
    config = bench_config(job["model"], RolloutShape(*job["shape"]), settings, method="grpo")
    machine = load_runtime(config)
    engine = CountingEngine(
        build_engine("torch", machine.policy, machine.loaded.tokenizer, (), machine.loaded.context), watch
    )
    runner, _ = build_episode_runner(config, engine, machine.loaded)
    prompts = [Prompt(str(row), ({"role": "user", "content": text},)) for row, text in enumerate(job["texts"])]
    dataset = PromptDataset(prompts, [prompt_tokens(machine.loaded.tokenizer, each) for each in prompts])

    def paid(_: Any, samples: Any) -> Any:
        watch.count("context", sum(len(each.tokens) for each in samples))
        watch.count("episodes", len(samples))
        return [each.scored({"environment": each.returned}, each.returned) for each in samples]

    machine = replace(machine, engine=engine, runner=runner)
    return build_rl_trainer(config, build_objective(config), machine, dataset, lambda _: RewardContext(paid), None)


class CountingEngine:
    """The engine, and what its sessions computed."""

    def __init__(self, engine: Any, watch: Stopwatch) -> None:
        self._engine, self._watch = engine, watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def session(self, sampling: Any, shape: Any) -> Any:
        stopping = replace(sampling, stop=("</tool_call>",))
        self._watch.facts = {
            "path": str(self._engine.session_path(sampling, shape)),
            "path_with_stop": str(self._engine.session_path(stopping, shape)),
        }
        session = self._engine.session(sampling, shape)
        close = session.close

        def counted_close() -> None:
            for name, number in vars(session.counts).items():
                self._watch.count(name, number)
            close()

        session.close = counted_close
        return session


def sft_trainer(job: dict[str, Any]) -> Any:
    from whet.training.assembly.assembly import assemble
    from whet.training.config import resolved

    values = {
        "seed": job["seed"],
        "steps": job["most"],
        "model": {
            "name": job["model"],
            "device": device_of(job),
            "precision": job["precision"],
            "threads": job["threads"],
        },
        "data": {"source": job["rows"]},
        "batch": {
            "rows_per_step": job["rows_per_step"],
            "micro_batch_tokens": job["micro_batch_tokens"],
            **job["batch"],
        },
        "optimizer": {"learning_rate": 1e-6},
        "eval": {"prompts": 0},
    }
    return assemble(resolved("sft", values)).trainer


def pair_trainer(job: dict[str, Any]) -> Any:
    """Preference training or a reward model, as the job's kind says."""
    from whet.training.assembly.assembly import assemble
    from whet.training.config import resolved

    names = ("precision", "threads")
    values = {
        "seed": job["seed"],
        "steps": job["most"],
        "model": {"name": job["model"], "device": device_of(job), **{name: job[name] for name in names}},
        "data": {"source": job["rows"]},
        "batch": {name: job[name] for name in ("rows_per_step", "micro_batch_tokens")},
        "optimizer": {"learning_rate": 1e-6},
        "eval": {"prompts": 0},
    }
    if job["stored"]:
        values["preference"] = {"reference_logp": "stored"}
    return assemble(resolved(job["kind"], values)).trainer


def operations_and_rate(job: dict[str, Any], trainer: Any) -> dict[str, float]:
    """Useful operations of a step, and the rate of the best matrix product in this same process."""
    from whet.record.speed import RolloutShape, rollout_operations, training_operations
    from whet.tools.bench.benchmark import matrix_rate, model_anatomy

    shape, anatomy = RolloutShape(*job["shape"]), model_anatomy(trainer.model)
    dtype = torch.bfloat16 if job["precision"] == "bf16" else torch.float32
    return {
        "matrix_rate": matrix_rate(torch.device(device_of(job)), dtype, 2.0),
        "training_operations": training_operations(anatomy, shape),
        "rollout_operations": rollout_operations(anatomy, shape),
    }


def write_rollouts(job: dict[str, Any], answer: Path) -> None:
    """Completions alone, of each case: tokens per second, and by which path they were written."""
    sys.path.append(str(Path(__file__).resolve().parents[1]))
    from bench_models import SHAPES, random_machine
    from gpu_step import written

    from whet.record.speed import RolloutShape
    from whet.rollout.torch_engine import TorchEngine
    from whet.tools.bench.benchmark import random_prompts
    from whet.training.assembly.runtime import decode_facts
    from whet.types import Sampling

    machine = random_machine(*SHAPES[job["shape_of"]], torch.device(device_of(job)), job["precision"])
    Path(job["ready"]).touch()
    while not Path(job["turn"]).exists():
        time.sleep(0.05)
    found: dict[str, Any] = {"cases": {}, **machine.facts}
    for case in job["cases"]:
        count, tokens = case["sequences"] // case["group_size"], case["completion_tokens"]
        shape = RolloutShape(count, case["group_size"], case["prompt_tokens"], tokens)
        stream = torch.Generator().manual_seed(job["seed"])
        ends = torch.randperm(machine.policy.vocabulary, generator=stream)[: case.get("ends", 0)].tolist()
        loaded = machine.loaded
        engine = TorchEngine(machine.policy, loaded.tokenizer, ends, context=loaded.context)
        try:
            samples, seconds, _ = written(machine, engine, shape)
            written_tokens = sum(each.num_actions for each in samples)
            record = {"tokens_per_s": written_tokens / seconds, "seconds": seconds, "tokens": written_tokens}
            path = decode_facts(replace(machine, engine=engine), Sampling(tokens), random_prompts(machine, shape, 0))
            found["cases"][case["name"]] = {"with_logp": {**record, **path}}
        except Exception as error:
            found["cases"][case["name"]] = {"with_logp": {"error": f"{type(error).__name__}: {error}"[:500]}}
        answer.write_text(json.dumps(found))


TRAINERS = {"grpo": policy_trainer, "sft": sft_trainer, "dpo": pair_trainer, "rm": pair_trainer}


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    if job["kind"] == "rollout":
        write_rollouts(job, Path(sys.argv[2]))
        return
    watch = Stopwatch(job["steps"], job["most"], job.get("warm_up", 1), device_of(job))
    trainer = agent_trainer(job, watch) if job["kind"] == "agents" else TRAINERS[job["kind"]](job)
    number = 0
    while not watch.enough:
        number += 1
        watch.begin()
        clock = PhaseTimer()
        report, _ = trainer.step(number, clock)
        for phase in ("rollout", "reference", "train"):
            watch.add(phase, clock.seconds.get(phase, 0.0))
        watch.count("trained", job["step_tokens"][number - 1] if "step_tokens" in job else report.counts["tokens"])
        watch.end()
    ceiling = {"ceiling": operations_and_rate(job, trainer)} if job["kind"] == "grpo" else {}
    Path(sys.argv[2]).write_text(json.dumps({**watch.record(), **ceiling}))


if __name__ == "__main__":
    main()
