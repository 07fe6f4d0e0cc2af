"""A teacher into a smaller student of the same vocabulary, three ways for the same arithmetic, on GSM8K.

    python benchmarks/real_distil.py --teacher 1.5b.gguf --student 0.5b.gguf --data DATA --results
    python benchmarks/real_distil.py --from FOLDER --results     # the table alone, of a pipeline that was made

DATA holds gsm8k/{train,test}.jsonl.gz. It is one `whet pipeline distill` command, which --command prints: the student
begins as it is. The rate of RL is the best that was measured on this student (docs/defaults.md); those of the
teacher's methods and of SFT are the defaults.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "recipes"))

from results_file import add_results_flag, child_environment, write_results
from smollm2_pipelines import stage_results

SETTINGS = {
    "compare": "traces,on_policy,rl",
    "eval.prompts": 1319,
    "sampling.max_new_tokens": 512,
    "traces.prompts": 3000,
    "traces.most_per_prompt": 2,
    "on_policy.train.batch.prompts_per_step": 128,
    "rl.method": "dr_grpo",
    "rl.train.batch.prompts_per_step": 32,
    "rl.train.optimizer.learning_rate": 3e-6,
}
PASS_TOKENS = 16384  # others have the same GPU's memory


def command(teacher: str, student: str, data: Path, folder: Path) -> list[str]:
    """The command line behind `python -m whet`."""
    given = {
        "eval.source": f"gsm8k:{data}/gsm8k/test.jsonl.gz",
        "teacher": teacher,
        "student.name": student,
        **SETTINGS,
        **{f"{way}.train.batch.micro_batch_tokens": PASS_TOKENS for way in ("on_policy", "rl")},
    }
    words = ["pipeline", "distill", "--model", student, "--data", f"gsm8k:{data}/gsm8k/train.jsonl.gz"]
    words += [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
    return [*words, "--folder", str(folder)]


def values_of(folder: Path) -> dict[str, Any]:
    """Accuracy by model, and what each way took and came to beside the traces."""
    stages = stage_results(folder)
    evals = {name.removeprefix("eval-"): result for name, result in stages.items() if "sets" in result}
    models = {}
    for name, result in evals.items():
        metrics = result["sets"]["all"]
        accuracy, low, high = metrics["accuracy"]
        models[name] = {"accuracy": accuracy, "low": low, "high": high, "tokens": metrics["completion_tokens"][0]}
        if name in stages and "steps" in stages[name]:
            models[name] |= {"steps": stages[name]["steps"], "seconds": stages[name]["seconds"]}
    kept, traces = stages["kept-traces"]["counts"], stages["traces"]
    return {
        "models": models,
        "prompts": evals["teacher"]["eval_prompts"],
        "traces": {"completions": kept["completions"], "kept": kept["kept"], "seconds": traces["seconds"]},
        "against_traces": stages["comparison"]["tests"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teacher", help="a .gguf file or a model folder")
    parser.add_argument("--student", help="a smaller one with the same vocabulary")
    parser.add_argument("--data", type=Path, help="the folder with gsm8k/")
    parser.add_argument("--folder", type=Path, default=Path("work/distil"), help="of the pipeline")
    parser.add_argument("--command", action="store_true", help="print the command line, and end")
    parser.add_argument("--from", dest="made", type=Path, metavar="FOLDER", help="no run: what this pipeline came to")
    add_results_flag(parser, "real_distil_pair")
    chosen = parser.parse_args()
    if not chosen.made:
        if not (chosen.teacher and chosen.student and chosen.data):
            parser.error("--teacher FILE, --student FILE and --data DATA, or --from FOLDER")
        words = command(chosen.teacher, chosen.student, chosen.data, chosen.folder)
        print(shlex.join(["whet", *words]), flush=True)
        if chosen.command:
            return
        subprocess.run([sys.executable, "-m", "whet", *words], check=True, env=child_environment())
    values = values_of(chosen.made or chosen.folder)
    for name, model in values["models"].items():
        took = f"{model['steps']:5} steps {model['seconds']:5.0f} s" if "steps" in model else ""
        print(f"{name:12}{model['accuracy']:7.1%} ({model['low']:.1%} to {model['high']:.1%}) {took}")
    if chosen.results:
        write_results(chosen.results, values)


if __name__ == "__main__":
    main()
