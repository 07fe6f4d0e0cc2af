"""What a run was made from, kept in its folder: a resume says so when any of it is no longer the same.

`inputs.json` holds the working directory and the command that the run was started with, its config, and a digest of
each file or folder that it read: rows, eval rows, the model, the reward. Changes that a user accepted are added to it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from whet.record.run_folder import write_atomically
from whet.record.sections import EVALUATION_FALLS
from whet.settings.layers import flattened
from whet.training.config import Config, config_values
from whet.types import WhetError

INPUTS = "inputs.json"
REWARD = "reward"
# settings that do not decide what is trained, only how long, how fast, and what is kept of it
FREE = (
    "steps", "hours", "folder", "report", "eval.every", "eval.stop_after", "batch.micro_batch_tokens",
    "model.threads", "model.device", "model.recompute", "teacher.device", "teacher.timeout", "teacher.concurrency",
    "reward.ledger", "reward.timeout", "reward.on_error", "reward.most_failures",
    "scale.workers", "scale.engines", "scale.reward_workers", "scale.address", "scale.offload", "scale.timeout",
)  # fmt: skip
# only where it lowers the rate, before or now, does this decide what is trained; older runs have no such setting
ON_FALL, LOWER_RATE = f"health.on_problem.{EVALUATION_FALLS}", "lower_rate"
# settings that name what has a digest: where it lies does not matter
PLACES = {
    "data.source": "data",
    "eval.source": "eval data",
    "model.name": "model",
    "model.reference_model": "reference",
    "imports": "imports",
    "preference.store": "",
    "teacher.name": "teacher",
}


@dataclass(frozen=True)
class RunInputs:
    """What a run was made from."""

    directory: str = ""  # where relative paths start
    command: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)  # by dotted path
    digests: Mapping[str, str] = field(default_factory=dict)  # "data", "eval data", "model", "reward"
    accepted: tuple[str, ...] = ()  # identities of what the run was trained with before a change
    changes: tuple[Mapping[str, Any], ...] = ()  # {"after_step": 20, "what": [...]}

    @property
    def identity(self) -> str:
        """A digest of everything that decides what is trained; each checkpoint has it."""
        decisive = {
            key: _without_places(value)
            for key, value in self.config.items()
            if not is_free(key) and key not in (ON_FALL, *PLACES)
        }
        text = json.dumps([decisive, dict(self.digests)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def is_complete(self) -> bool:
        """False while the run is loading: its digests are not known yet."""
        return bool(self.digests)


def inputs_of(config: Config, digests: Mapping[str, str], before: RunInputs) -> RunInputs:
    """The inputs of now, with the history of `before`."""
    values = json.loads(json.dumps(flattened(config_values(config))))
    return replace(before, config=values, digests=dict(digests))


def decisive_changes(before: RunInputs, now: RunInputs) -> list[str]:
    """What is different and decides what is trained, one short phrase each. The reward tells its changes itself."""
    changed = [f"config {change}" for change in _config_changes(before, now, free=False)]
    for setting, name in PLACES.items():
        old, new = before.digests.get(name), now.digests.get(name)
        if old != new and new is not None:
            shown = _shown(now.config.get(setting))
            is_gone = "#" not in new and before.config.get(setting) == now.config.get(setting)
            how = "is gone" if is_gone else "changed"
            changed.append(f"{name} {shown} {how}" if old and "#" in old + new else f"{name} {old} -> {shown}")
    return changed


def free_changes(before: RunInputs, now: RunInputs) -> list[str]:
    """Settings that are different and do not decide what is trained."""
    return _config_changes(before, now, free=True)


def _config_changes(before: RunInputs, now: RunInputs, free: bool) -> list[str]:
    changed = []
    for key in sorted(before.config.keys() | now.config.keys()):
        old, new = before.config.get(key), now.config.get(key)
        if old is None and not new:  # a setting that whet did not have yet, and that is off
            continue
        if key in ("folder", *PLACES) or _without_places(old) == _without_places(new):
            continue
        is_allowed = is_free(key) or (key == ON_FALL and (old is None or LOWER_RATE not in (old, new)))
        if is_allowed == free:
            changed.append(f"{key} {_shown(old)} -> {_shown(new)}")
    return changed


def is_free(key: str) -> bool:
    """Whether a setting may change when a run is resumed: it does not decide what is trained."""
    return any(key == prefix or key.startswith(f"{prefix}.") for prefix in FREE)


def _without_places(value: Any) -> Any:
    """A setting without the folders in it: the digests tell whether what lies there is the same."""
    if isinstance(value, list):
        return [_without_places(item) for item in value]
    if isinstance(value, Mapping):
        return {name: _without_places(item) for name, item in value.items()}
    return value.rpartition("/")[2] if isinstance(value, str) else value


def _shown(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def accepted_inputs(before: RunInputs, now: RunInputs, what: Sequence[str], step: int) -> RunInputs:
    """The inputs from now on, with what changed after which step."""
    if not what:
        return before
    earlier = (*before.accepted, before.identity) if before.identity != now.identity else before.accepted
    return replace(
        now, accepted=tuple(dict.fromkeys(earlier)), changes=(*before.changes, {"after_step": step, "what": list(what)})
    )


def read_inputs(folder: Path) -> RunInputs | None:
    """The recorded inputs; None where the run has none: it was killed before its first write, or whet was older."""
    path = folder / INPUTS
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        inputs = RunInputs(**values)
        if not isinstance(inputs.config, dict) or not isinstance(inputs.digests, dict):
            raise TypeError("config and digests are not tables")
        return replace(
            inputs, accepted=tuple(inputs.accepted), changes=tuple(dict(change) for change in inputs.changes)
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise WhetError(
            f"{path} is damaged ({error}); restore it, or delete it to resume without knowing whether data, model, "
            "reward or config changed"
        ) from error


def write_inputs(folder: Path, inputs: RunInputs) -> None:
    """Write the inputs into a run folder, replacing the file in one move."""
    write_atomically(folder / INPUTS, json.dumps(asdict(inputs), indent=1, sort_keys=True) + "\n")


def started_in(folder: Path) -> Path | None:
    """The working directory that a run was started in, where it is still there."""
    try:
        inputs = read_inputs(folder)
    except WhetError:
        return None
    directory = Path(inputs.directory) if inputs is not None and inputs.directory else None
    return directory if directory is not None and directory.is_dir() else None
