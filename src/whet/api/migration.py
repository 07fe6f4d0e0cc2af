"""`whet.from_trl`: the config and arguments of a TRL trainer as a run of whet's. TRL is not imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from whet.settings.foreign import FOREIGN
from whet.settings.layers import ARGUMENTS
from whet.settings.migrate import Translation, from_object, translate
from whet.training.config import resolved
from whet.types import WhetError

if TYPE_CHECKING:
    from whet.api.run import Run


@dataclass(frozen=True)
class MigratedRun:
    """A run of TRL's in whet's terms. `print(run)` shows its TOML and every setting that has no counterpart."""

    method: str
    config: Mapping[str, Any]  # nested settings, as `whet.train(config=...)` takes them
    unmapped: Mapping[str, str]  # TRL's name -> why there is no counterpart, or what to do instead
    arguments: Mapping[str, Any] = field(repr=False)  # model, data, reward and other objects, by whet's names
    text: str = field(repr=False)

    def __str__(self) -> str:
        return self.text

    def train(self, **changes: Any) -> Run:
        """`whet.train` with all of it; `changes` are further arguments, which win."""
        from whet.api.training import train

        return train(self.method, config=self.config, **{**self.arguments, **changes})


def from_trl(args: Any, **trainer: Any) -> MigratedRun:
    """Translate what a TRL trainer takes: its config object and its other arguments, by TRL's names.

    `args` is a GRPOConfig, RLOOConfig, DPOConfig, SFTConfig, RewardConfig or KTOConfig. TRL counts completions per
    device, whet prompts per step; the sizes are converted.

        config = GRPOConfig(per_device_train_batch_size=8, gradient_accumulation_steps=4, num_generations=8)
        migrated = whet.from_trl(config, model="Qwen/Qwen3-0.6B", reward_funcs=accuracy, train_dataset=rows)
        print(migrated)
        run = migrated.train()
    """
    kind, values, chosen = from_object(args)
    adapters = _adapters(trainer.pop("peft_config", None), trainer.pop("quantization_config", None))
    data = trainer.get("train_dataset")
    translation = translate(
        kind,
        values | adapters,
        changed=[*chosen, *adapters],
        rows=len(data) if isinstance(data, Sized) and not isinstance(data, str) else None,
        devices=int(getattr(args, "world_size", 1)),
    )
    arguments = {ARGUMENTS[name]: value for name, value in trainer.items() if name in ARGUMENTS and value is not None}
    unmapped = dict(translation.unmapped)
    for name in [name for name, value in trainer.items() if name not in ARGUMENTS and value is not None]:
        unmapped[name] = FOREIGN[name].note if name in FOREIGN else "no counterpart"
    _use_weights(arguments, values.get("reward_weights"))
    if hasattr(arguments.get("model"), "save_pretrained") is False:
        arguments.pop("tokenizer", None)  # a model by name brings its own
    if not all(hasattr(callback, "stepped") for callback in arguments.get("callbacks", ())):
        del arguments["callbacks"]
        unmapped["callbacks"] = "write them anew: whet.Callback has the methods that a run calls"
    try:
        resolved(translation.method, translation.settings, rows=1)  # the data is not read for this
    except WhetError as error:
        unmapped["config"] = f"whet.train would refuse it: {error}"
    text = str(Translation(translation.method, translation.flat, unmapped))
    return MigratedRun(translation.method, translation.settings, unmapped, arguments, text)


def _adapters(peft: Any, quantized: Any) -> dict[str, Any]:
    """PEFT's LoraConfig and a quantized base, by the names of the table."""
    adapter: dict[str, Any] = {}
    if peft is not None:
        adapter = {name: getattr(peft, name, None) for name in ("r", "lora_alpha", "target_modules", "lora_dropout")}
    if getattr(quantized, "load_in_4bit", False):
        adapter["load_in_4bit"] = True
    return {name: value for name, value in adapter.items() if value is not None}


def _use_weights(arguments: dict[str, Any], weights: Sequence[float] | None) -> None:
    """TRL gives rewards and their weights in two lists."""
    if not weights or "reward" not in arguments:
        return
    several = arguments["reward"] if isinstance(arguments["reward"], list | tuple) else [arguments["reward"]]
    names = [
        reward if isinstance(reward, str) else getattr(reward, "__name__", f"reward_{i}")
        for i, reward in enumerate(several)
    ]
    arguments["reward"] = dict(zip(names, zip(several, map(float, weights), strict=True), strict=True))
