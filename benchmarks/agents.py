"""Episodes of four turns with 1,024 tokens of context.

    python benchmarks/agents.py --results          # on the CPU: whet against TRL, results/agents_cpu.json
    python benchmarks/agents.py --episodes 32 --results agents_cpu_32    # four times as many at once
    python benchmarks/agents.py --gpu --results    # on one GPU: beside single completions, results/agents_gpu.json

On the CPU a step of GRPO on one environment: a class as TRL takes it (`sides/look_up.py`), unchanged on both sides. The
model folder, prompts, tokens of a turn, threads and sequences per pass are the same. Weights are random. The model's
chat template opens every turn as a call of the environment's tool, so that whatever the policy writes is one, and
every turn takes its whole budget: both sides do the same work in every step. TRL's settings are its fastest.

The results also hold which tokens each side computed. For the GPU see `agents_gpu.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

from duel import HERE, add_run_flags, case_record, duel, name_contended, ratio_table, told
from results_file import add_results_flag, write_results


class EpisodeShape(NamedTuple):
    """How many episodes are played, and how long their turns are."""

    prompts: int
    group: int
    prompt: int  # tokens, the tool that the environment shows included
    turns: int
    turn: int  # tokens of the policy

    def context(self, answer: int) -> int:
        """Tokens of an episode at its end, with answers of so many."""
        return self.prompt + self.turns * self.turn + (self.turns - 1) * answer


FULL, TINY = EpisodeShape(1, 8, 256, 4, 144), EpisodeShape(1, 2, 96, 4, 8)
ROLES = ("<|tools|>", "<|user|>", "<|tool|>", "<|assistant|>", "<|call|>")
TEMPLATE = """\
{%- if tools %}{{ '<|tools|> ' + tools | tojson + ' <eos>' }}{% endif %}
{%- for m in messages %}
{%- if m['role'] == 'assistant' %}{{ '<|assistant|> <|call|> ' }}
{%- if m['tool_calls'] %}{% for c in m['tool_calls'] %}{{ c['function']['name'] + ' ' + c['function']['arguments'] \
| tojson }}{% endfor %}
{%- else %}{{ m['content'] }}{% endif %}
{%- elif m['role'] == 'tool' %}{{ '<|tool|> ' + m['content'] }}
{%- else %}{{ '<|user|> ' + m['content'] }}{% endif %}
{{- '<eos>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|> <|call|> ' }}{% endif %}"""
# how transformers reads what follows the generation prompt: as a call, from its first word to its last
RESPONSE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|assistant|>",
    "fields": {
        "tool_calls": {
            "open": "<|call|>",
            "close_pattern": r"<eos>\s*",
            "repeats": True,
            "content": "text",
            "transform": {"type": "function", "function": {"name": "look_up", "arguments": {"about": "{content}"}}},
        },
        "content": {"close_pattern": r"<eos>\s*", "content": "text"},
    },
}


def main() -> None:
    if "--gpu" in sys.argv[1:]:
        from agents_gpu import main as on_gpu

        on_gpu([argument for argument in sys.argv[1:] if argument != "--gpu"])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="words49k", help="shapes of bench_models.py with words, small ones")
    parser.add_argument("--steps", type=int, default=2, help="quiet steps per side")
    parser.add_argument("--most", type=int, default=5, help="steps per side, contended and warm-up ones included")
    parser.add_argument("--warm-up", type=int, default=1, help="first steps per side that do not count")
    parser.add_argument("--episodes", type=int, default=0, help="at once; 0: as many as the shape has")
    parser.add_argument("--batch-rows", type=int, default=8, help="sequences per training pass")
    parser.add_argument("--tiny", action="store_true", help="a small model and short turns: does it run?")
    parser.add_argument("--make", nargs=2, metavar=("SHAPE", "FOLDER"), help=argparse.SUPPRESS)
    add_run_flags(parser)
    add_results_flag(parser, "agents_cpu")
    chosen = parser.parse_args()
    shape = TINY if chosen.tiny else FULL
    shape = shape._replace(group=chosen.episodes or shape.group)
    if chosen.make:
        print(json.dumps(made_model(chosen.make[0], Path(chosen.make[1]), chosen.seed, shape)))
        return
    results: dict[str, Any] = {}
    records: dict[str, Any] = {}
    for name in ["tiny"] if chosen.tiny else chosen.models.split(","):
        folder = chosen.work / "models" / f"agents-{name}"
        script = str(HERE / "agents.py")
        flags = ["--seed", str(chosen.seed), *(["--tiny"] if chosen.tiny else [])]
        made = told([sys.executable, script, "--make", name, str(folder), *flags])
        results[name] = duel(chosen, job_of(chosen, made, shape))
        title = (
            f"{name}: {shape.prompts} prompts x {shape.group} episodes, {shape.prompt} tokens and {shape.turns} turns "
            f"of {shape.turn} with answers of {made['answer']}: {made['context']}"
        )
        title = f"{title}; {chosen.precision}, {chosen.threads} threads, {chosen.batch_rows} sequences per pass"
        print(ratio_table(title, results[name]), flush=True)
        records[name] = {**case_record(title, results[name]), "computed": computed(results[name])}
        print(json.dumps(records[name]["computed"], indent=1))
        if chosen.results:
            write_results(chosen.results, records)
    name_contended(results)


def job_of(chosen: argparse.Namespace, made: dict[str, Any], shape: EpisodeShape) -> dict[str, Any]:
    """What a side is asked to do."""
    rows = min(chosen.batch_rows, shape.prompts * shape.group)
    return {
        "kind": "agents",
        "model": made["folder"],
        "texts": made["texts"],
        "environment": str(HERE / "sides" / "look_up.py"),
        "shape": (shape.prompts, shape.group, shape.prompt, shape.turn),
        "turns": shape.turns,
        "growth": made["context"] - shape.prompt,
        "batch_rows": rows,
        "micro_batch_tokens": rows * made["context"],
        **{key: getattr(chosen, key) for key in ("steps", "most", "warm_up", "threads", "seed", "precision")},
    }


def computed(sides: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Tokens of a step of each side: of the conversations, of the policy's turns (`trained`), and those `read` at once.

    The others are `stepped`: read one by one as they were written. `path`: how the turns are written, and how they
    would be where a text ends them.
    """
    seconds_by_kind = {}
    for name, side in sides.items():
        run = side["runs"][-1]
        counts = dict(run["steps"][-1]["counts"])
        read = counts.pop("prefilled") + counts.pop("extended", 0)
        seconds_by_kind[name] = {
            **counts,
            "read": read,
            **{key: run[key] for key in ("path", "path_with_stop") if key in run},
        }
    return seconds_by_kind


def made_model(name: str, folder: Path, seed: int, shape: EpisodeShape) -> dict[str, Any]:
    """The folder of a model whose every turn is a call, and prompts of the shape's length with the tool shown."""
    sys.path.insert(0, str(HERE / "sides"))
    from bench_models import SHAPES, prompts_of, random_model, tokenizer_of
    from look_up import LookUp
    from transformers import AutoTokenizer
    from transformers.utils.chat_template_utils import get_json_schema

    if not (folder / "model.safetensors").exists():
        family, settings = SHAPES[name]
        tokenizer = tokenizer_of(settings["vocab_size"])
        tokenizer.add_special_tokens({"additional_special_tokens": list(ROLES)})
        tokenizer.chat_template, tokenizer.response_template = TEMPLATE, RESPONSE
        random_model(family, settings, tokenizer, seed=seed).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tools = [get_json_schema(LookUp().look_up)]

    def length(messages: list[dict[str, Any]], **options: Any) -> int:
        return len(tokenizer.apply_chat_template(messages, return_dict=False, add_generation_prompt=True, **options))

    frame = length([{"role": "user", "content": ""}], tools=tools)
    texts, _ = prompts_of(folder, shape.prompts, shape.prompt - frame, seed)
    asked: list[dict[str, Any]] = [{"role": "user", "content": texts[0].strip()}]
    assert length(asked, tools=tools) == shape.prompt
    call = {"role": "assistant", "content": "w5"}
    answered = [*asked, call, {"role": "tool", "name": "look_up", "content": LookUp().look_up("w5")}]
    answer = length(answered) - length(asked) - 1  # without the call itself; with the end of its turn
    texts = [text.strip() for text in texts]
    return {"folder": str(folder), "texts": texts, "answer": answer, "context": shape.context(answer)}


if __name__ == "__main__":
    main()
