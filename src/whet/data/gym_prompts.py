"""Prompts of reasoning-gym's procedural datasets: `gym:NAME`, judged by the reward `gym_answer`.

Questions are drawn in chunks of a fixed size, each from a seed of its own, because the package numbers its entries
from the seed on: neighbouring seeds share most of their entries. The split is decided by the question alone, as for
the built-in tasks, so that no held-out question is ever trained on, whatever the seeds.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from whet.data.rows import first_line
from whet.data.tasks.item import SPLITS, STREAM_NAMES, split_of
from whet.types import Prompt, WhetError, did_you_mean

LEVEL = "level"  # the setting that names a step of the dataset's curriculum, 0 the easiest
INSTRUCTION = "Give your final answer between <answer> and </answer>."
CHUNK = 100  # entries drawn from one seed; some datasets prepare all of them at once, or cannot prepare many more
FRUITLESS_CHUNKS = 20  # chunks in a row without a new question: the dataset has no more


def gym_datasets() -> list[str]:
    """The names that may follow `gym:`."""
    return sorted(_registry())


def gym_prompts(
    name: str,
    count: int,
    seed: int,
    settings: Mapping[str, Any] | None = None,
    split: str = "train",
    instruction: str = INSTRUCTION,
) -> list[Prompt]:
    """`count` different questions of one dataset, fewer where it has no more; the same arguments give the same list.

    `settings` are the dataset's own (its config's fields), and `level`, a step of its curriculum. The entry travels
    in `meta["gym"]` for the reward, JSON-safe. `instruction` is written under every question; "" leaves it out.
    """
    if split not in SPLITS:
        raise WhetError(f"split is {split!r}; give one of {', '.join(SPLITS)}")
    name = name.removeprefix("gym:")
    prompts: list[Prompt] = []
    for question, answer, origin in _distinct(name, seed, dict(settings or {}), split):
        if len(prompts) >= count:
            break
        text = f"{question}\n\n{instruction}" if instruction else question
        digest = hashlib.sha256(question.encode()).hexdigest()[:8]
        message = {"role": "user", "content": text}
        where = f"gym:{name}/{split}/{len(prompts)}-{digest}"
        prompts.append(Prompt(where, (message,), answer=answer, meta={"gym": origin}))
    return prompts


def _distinct(
    name: str, seed: int, settings: dict[str, Any], split: str
) -> Iterator[tuple[str, str | None, dict[str, Any]]]:
    """(question, gold answer, origin) of every new question of the split."""
    seen: set[str] = set()
    fruitless = chunk = 0
    while fruitless < FRUITLESS_CHUNKS:
        fruitless += 1
        drawn = random.Random(f"{name}/{STREAM_NAMES[split]}/{seed}/{chunk}").randrange(2**31)
        chunk += 1
        for index, entry in enumerate(_entries(name, drawn, settings)):
            question = str(entry["question"])
            if question in seen or split_of(question) != split:
                continue
            seen.add(question)
            fruitless = 0
            answer = entry.get("answer")
            origin = {"name": name, "seed": drawn, "index": index, "settings": settings}
            yield question, None if answer is None else str(answer), origin | {"entry": _literal(entry)}


def _entries(name: str, seed: int, settings: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    dataset = gym_dataset(name, seed, settings)
    for index in range(CHUNK):
        try:
            yield dataset[index]
        except (IndexError, StopIteration):  # a dataset of fixed size
            return
        except Exception as error:
            raise WhetError(
                f"gym:{name}: the dataset fails on entry {index} of seed {seed} with {_settings_text(settings)}: "
                f"{type(error).__name__}: {first_line(error)}; choose other settings"
            ) from error


def _literal(entry: Mapping[str, Any]) -> str | None:
    """The entry as a Python literal, which keeps tuples and number keys as JSON would not; None where it has none.

    Without it the reward draws the entry again.
    """
    text = repr(dict(entry))
    try:
        return text if ast.literal_eval(text) == entry else None
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def gym_dataset(name: str, seed: int, settings: Mapping[str, Any]) -> Any:
    """The dataset as it draws the entries of a seed."""
    registry = _registry()
    if name not in registry:
        raise WhetError(
            f"no dataset of reasoning-gym is called {name!r}{did_you_mean(name, registry)}; "
            f"all {len(registry)}: whet.data.gym_prompts.gym_datasets()"
        )
    kind, config_class = registry[name]
    config = _config(name, config_class, seed, settings)
    try:
        return kind(config)
    except Exception as error:
        raise WhetError(
            f"gym:{name} refuses {_settings_text(settings)}: {type(error).__name__}: {first_line(error)}; "
            "change that setting"
        ) from error


def _config(name: str, config_class: Any, seed: int, settings: Mapping[str, Any]) -> Any:
    fields = {field.name for field in dataclasses.fields(config_class)} - {"seed", "size"}
    for key in settings:
        if key not in fields | {LEVEL}:
            keys = sorted(fields | {LEVEL})
            raise WhetError(f"gym:{name} has no setting {key!r}{did_you_mean(key, keys)}; it has: {', '.join(keys)}")
    options = {key: _as_specs(name, value) if key == "datasets" else value for key, value in settings.items()}
    level = options.pop(LEVEL, None)
    try:
        start = config_class(seed=seed, size=CHUNK) if level is None else _at_level(name, level, seed)
        return dataclasses.replace(start, **options)
    except (TypeError, ValueError, AssertionError) as error:
        raise WhetError(
            f"gym:{name} refuses {_settings_text(settings)}: {first_line(error)}; change that setting"
        ) from error


def _at_level(name: str, level: Any, seed: int) -> Any:
    curriculum = _curriculum(name)
    if curriculum is None:
        raise WhetError(f"gym:{name} has no curriculum, so no level {level!r}; set its own settings instead")
    highest = max(len(attribute.levels) for attribute in curriculum.attributes.values()) - 1
    if not isinstance(level, int) or not 0 <= level <= highest:
        raise WhetError(f"level of gym:{name} is {level!r}; give 0 to {highest}")
    curriculum.set_global_level(level)
    return curriculum.generate_configuration({"seed": seed, "size": CHUNK})


def _as_specs(name: str, value: Any) -> Any:
    """The members of the composite dataset, from plain tables of name, weight and config."""
    if name != "composite" or not isinstance(value, Sequence):
        return value
    spec = reasoning_gym_package().composite.DatasetSpec
    return [
        spec(row["name"], row.get("weight", 1.0), dict(row.get("config", {}))) if isinstance(row, Mapping) else row
        for row in value
    ]


def _settings_text(settings: Mapping[str, Any]) -> str:
    return f"the settings {json.dumps(settings, default=str)}" if settings else "its default settings"


def _registry() -> Mapping[str, tuple[Any, Any]]:
    return reasoning_gym_package().factory.DATASETS


def _curriculum(name: str) -> Any:
    factory = reasoning_gym_package().factory
    return factory.create_curriculum(name) if factory.has_curriculum(name) else None


def reasoning_gym_package() -> Any:
    """The package, where it is installed."""
    try:
        import reasoning_gym
        import reasoning_gym.composite
    except ImportError:
        raise WhetError("gym:NAME needs reasoning-gym; run pip install 'whet[tasks]'") from None
    return reasoning_gym
