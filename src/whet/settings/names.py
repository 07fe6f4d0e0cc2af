"""Names of version 0.1: errors say what to write instead, and configs of old run folders are translated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SINCE = "0.2"

# of whet 0.1, whole sections last: the first that fits is the answer
OLD_KEYS: Mapping[str, str] = {
    "batch.lag": "batch.staleness",
    "batch.tokens_per_pass": "batch.micro_batch_tokens",
    "batch.passes_per_step": "batch.epochs_per_batch",
    "data.every_reply": "data.every_completion",
    "data.held_out": "eval.source",
    "report.evaluate_every": "eval.every",
    "report.evaluate_prompts": "eval.prompts",
    "model.lora.matrices": "model.lora.target_modules",
    "scorer.even_replies": "reward_model.even_completions",
    "scorer": "reward_model",
}
OLD_COMPONENTS: Mapping[str, str] = {
    "right_replies": "right_completions",
    "truncate_reply": "truncate_sequence",
    "whiten_replies": "whiten_completions",
    "per_reply": "per_completion",
}
OLD_NUMBERS: Mapping[str, str] = {"max_lag": "max_staleness"}


def old_name(path: str) -> str | None:
    """The name since 0.2 of a key of 0.1; None for any other."""
    for old, new in OLD_KEYS.items():
        if path == old or path.startswith(f"{old}."):
            return new + path[len(old) :]
    return None


def translated(values: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a run folder that 0.1 wrote, in the keys of today; one of today comes back as it is."""
    renamed: dict[str, Any] = {}

    def place(path: str, value: Any) -> None:
        *sections, key = path.split(".")
        here = renamed
        for section in sections:
            here = here.setdefault(section, {})
        if isinstance(value, Mapping) and isinstance(here.get(key), dict):
            value = {**here[key], **value}
        here[key] = value

    def walk(table: Mapping[str, Any], prefix: str) -> None:
        for key, value in table.items():
            path = f"{prefix}{key}"
            if isinstance(value, Mapping) and path not in ("objective", "data.settings", "data.columns"):
                place(old_name(path) or path, {})
                walk(value, f"{path}.")
            elif path == "objective":
                place(path, _translated_objective(value))
            else:
                place(old_name(path) or path, value)

    walk(values, "")
    return renamed


def _translated_objective(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {OLD_NUMBERS.get(key, key): _translated_objective(inner) for key, inner in value.items()}
    return OLD_COMPONENTS.get(value, value) if isinstance(value, str) else value
