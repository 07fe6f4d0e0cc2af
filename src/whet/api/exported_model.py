"""A run's model as it is given away: weights, tokenizer, chat template and a model card; nothing that only training
reads. The folder loads in transformers and vLLM, an adapter in PEFT."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whet.model.run_models import ABOUT, CHECKPOINTS, MANIFEST, MODELS, about_model, checkpoint_step
from whet.training.saved_config import read_values
from whet.types import WhetError, did_you_mean

MODEL, ADAPTER, MERGED = PARTS = ("model", "adapter", "merged")
DTYPES = ("float32", "bfloat16", "float16")
INDEX = "model.safetensors.index.json"
CARD = "README.md"
FACTS = ("model", "lora", "data", "reward", "learning rate", "batch", "lengths", "seed")  # of a run, for its card
LOADED = {
    "CausalLM": ("text-generation", "AutoModelForCausalLM"),
    "SequenceClassification": ("text-classification", "AutoModelForSequenceClassification"),
    "TokenClassification": ("token-classification", "AutoModelForTokenClassification"),
}


def export_model(run: Path, source: Path, path: str | Path, what: str, dtype: str | None) -> Path:
    """Write the model `source` of a run, or its adapter, into a new folder."""
    from whet.model.checkpoint import empty_partial, publish, remove_folder, verify_checkpoint

    if what not in PARTS:
        raise WhetError(
            f"a run has no {what!r} to give away{did_you_mean(what, PARTS)}; give one of {', '.join(PARTS)}"
        )
    if dtype is not None and dtype not in DTYPES:
        raise WhetError(f"dtype is {dtype!r}{did_you_mean(dtype, DTYPES)}; give one of {', '.join(DTYPES)}")
    target = Path(path)
    if what != MODEL and not (source / ADAPTER).is_dir():
        raise WhetError(f"{run} has no adapter: every weight was trained; export its model")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise WhetError(f"{target} is there already; give a new or empty folder")
    verify_checkpoint(source)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = empty_partial(target)
        try:
            _write_files(source, partial, dtype, what == ADAPTER)
            if what == ADAPTER:
                _set_base(run, partial / "adapter_config.json")
            (partial / CARD).write_text(model_card(run, source, what == ADAPTER), encoding="utf-8")
            publish(partial, target)
        except BaseException:
            remove_folder(partial)
            raise
    except OSError as error:
        raise WhetError(f"{target}: cannot write the model there ({error.strerror}); give another folder") from error
    return target


def named_model(run: Path, name: str) -> Path:
    """The best or the final model of a run, or one of its checkpoints."""
    source = run / (name if name in MODELS else f"{CHECKPOINTS}/{name}")
    if not (source / MANIFEST).is_file():
        there = [path.name for path in sorted(run.glob(f"{CHECKPOINTS}/step-*"))]
        there += [name for name in MODELS if about_model(run / name) is not None]
        raise WhetError(f"{run} has no complete {name!r}; there are {', '.join(there) or 'none'}")
    return source


def _write_files(source: Path, target: Path, dtype: str | None, is_adapter: bool) -> None:
    """Copy configs and tokenizer, and the tensors file by file in another number type where one is asked for."""
    import torch

    from whet.model.checkpoint import STATE, read_manifest, tensors_file
    from whet.model.snapshot import FORMAT
    from whet.model.tensor_files import ADAPTER_CONFIG, ADAPTER_WEIGHTS, tensor_bytes, write_file
    from whet.threads import side_by_side

    manifest = read_manifest(source)
    only_training = {STATE, ABOUT, *map(tensors_file, manifest["tensors"])}
    total, kind = 0, None if dtype is None else getattr(torch, dtype)
    for name in manifest["files"]:
        is_weights = name.startswith("model") and name.endswith(".safetensors")
        written = name.removeprefix(f"{ADAPTER}/")
        of_model = is_weights or name in (INDEX, "config.json", "generation_config.json")
        unwanted = of_model if is_adapter else written in (ADAPTER_CONFIG, ADAPTER_WEIGHTS)
        if unwanted or name in only_training or "/" in written:
            continue
        if not name.endswith(".safetensors"):
            (target / written).write_bytes(_in_dtype(name, (source / name).read_bytes(), dtype))
            continue
        values = _tensors(source / name, kind)
        total += sum(value.nbytes for value in values.values())
        side_by_side(write_file(tensor_bytes(values, FORMAT), target / written), 2)
    if (target / INDEX).is_file():
        index = json.loads((target / INDEX).read_text(encoding="utf-8"))
        index["metadata"]["total_size"] = total
        (target / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _tensors(file: Path, dtype: Any) -> dict[str, Any]:
    from safetensors.torch import load_file

    values = load_file(str(file))
    if dtype is None:
        return values
    return {name: value.to(dtype) if value.is_floating_point() else value for name, value in values.items()}


def _in_dtype(name: str, content: bytes, dtype: str | None) -> bytes:
    """A small file as it is written; config.json states the number type."""
    if name != "config.json" or dtype is None:
        return content
    return (json.dumps({**json.loads(content), "dtype": dtype}, indent=2, sort_keys=True) + "\n").encode()


def _set_base(run: Path, config: Path) -> None:
    """Say which model the adapter is for: a hub id, or a folder of this machine."""
    from whet.model.load import local_folder

    name = str(read_values(run)["model"]["name"])
    folder = local_folder(name)
    values = json.loads(config.read_text(encoding="utf-8"))
    values["base_model_name_or_path"] = name if folder is None else os.path.abspath(folder)
    config.write_text(json.dumps(values, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def model_card(run: Path, source: Path, is_adapter: bool = False) -> str:
    """README.md of a model: how it was trained, on what, how it was evaluated, and how to load it."""
    from whet.record.log import read_summary
    from whet.training.config import origin_of

    summary, config = read_summary(run), read_values(run)
    origin = origin_of(str(config["model"]["name"]))
    architecture = str(json.loads((source / "config.json").read_text(encoding="utf-8"))["architectures"][0])
    task, loader = next((how for ending, how in LOADED.items() if architecture.endswith(ending)), LOADED["CausalLM"])
    base = [f"base_model: {origin}"] if _is_hub_id(origin) else []
    dataset = str(config.get("data", {}).get("source", ""))
    datasets = [f"datasets: [{dataset.removeprefix('hub:').partition(':')[0]}]"] if dataset.startswith("hub:") else []
    title, step = summary.get("title") or config["method"], _step_of(source)
    facts: Mapping[str, Any] = summary.get("facts", {})
    lines = [
        "---",
        f"library_name: {'peft' if is_adapter else 'transformers'}",
        f"pipeline_tag: {task}",
        *base,
        *datasets,
        f"tags: [whet, {config['method']}{', lora' if is_adapter else ''}]",
        "---",
        "",
        f"# {run.resolve().name}",
        "",
        f"{'An adapter for' if is_adapter else 'Trained from'} `{origin}`: {title}, {step} steps, "
        f"whet {summary.get('whet', '')}.",
        "",
        "## Use",
        "",
        "```python",
        *_usage(loader, is_adapter),
        "```",
        "",
        "## Training",
        "",
        *(f"- {name}: {facts[name]}" for name in FACTS if name in facts),
        "",
        "```text",
        *map(str, summary.get("objective", ())),
        "```",
        "",
        "## Evaluation",
        "",
        *_evaluation(run, step),
        "",
        "## Reproduce",
        "",
        "```bash",
        str(summary.get("command", "")),
        "```",
    ]
    return "\n".join(lines) + "\n"


def _is_hub_id(name: str) -> bool:
    from whet.model.load import HUB_ID

    return HUB_ID.fullmatch(name) is not None and not Path(name).exists()


def _step_of(source: Path) -> int:
    about = about_model(source)
    return int(about["step"]) if about is not None else checkpoint_step(source)


def _usage(loader: str, is_adapter: bool) -> list[str]:
    package, loader = ("peft", loader.replace("AutoModel", "AutoPeftModel")) if is_adapter else ("transformers", loader)
    imports = [f"from {package} import {loader}", "from transformers import AutoTokenizer"]
    if not is_adapter:
        imports = [f"from transformers import {loader}, AutoTokenizer"]
    return [
        *imports,
        "",
        "model = " + loader + '.from_pretrained("FOLDER")',
        'tokenizer = AutoTokenizer.from_pretrained("FOLDER")',
    ]


def _evaluation(run: Path, step: int) -> list[str]:
    """The headline metric before training, of this model and at the end, each with its 95% interval."""
    from whet.record.run import read_run

    measured = read_run(run).evaluations().measured
    if not measured:
        return ["Not evaluated."]
    rows = {
        measurement.step: measurement for measurement in measured if measurement.step in (0, step, measured[-1].step)
    }
    name, size = measured[-1].metric, measured[-1].size
    table = [f"| step | {name} (95% interval) |", "|---|---|"]
    table += [f"| {at}{' (this model)' if at == step else ''} | {rows[at].text} |" for at in sorted(rows)]
    return [f"Held-out rows: {size:,}.", "", *table] if size else table
