"""What a run's folder says about how it was made, and whether a resumed run is still made of the same."""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whet.record.run_folder import CONFIG
from whet.settings.layers import flattened, merged, read_toml
from whet.training.config import Config, config_values, resolved
from whet.training.run_inputs import (
    REWARD,
    RunInputs,
    accepted_inputs,
    decisive_changes,
    free_changes,
    inputs_of,
    read_inputs,
    write_inputs,
)
from whet.training.saved_config import write_config
from whet.types import WhetError

if TYPE_CHECKING:
    from whet.reward.combine import RewardPart

logger = logging.getLogger(__name__)
MOST_CHANGES = 3  # in a message


@dataclass(frozen=True)
class Resumed:
    """How a run is gone on with."""

    checkpoint: Path | None
    step: int
    accept_changes: bool
    settings: Mapping[str, Any]  # nested, over those of the run


def with_settings(config: Config, changes: Mapping[str, Any]) -> Config:
    """The config with other values; checked like one that was given whole."""
    return resolved(config.method, merged(config_values(config), changes))


class RunFiles:
    """Writes config.toml and inputs.json of a new run, and compares them when a run is resumed."""

    def __init__(self, config: Config, folder: Path, command: str, resumed: Resumed | None = None) -> None:
        self.config, self.folder, self._command, self._resumed = config, folder, command, resumed
        self._digests: dict[str, str] = {}
        self._found: list[str] = []

    @property
    def checkpoint(self) -> Path | None:
        """The checkpoint to resume from."""
        return None if self._resumed is None else self._resumed.checkpoint

    @property
    def is_new(self) -> bool:
        """Whether the run starts afresh rather than resuming."""
        return self._resumed is None

    def begin(self) -> RunInputs:
        """Write what a resume needs before anything is loaded; of a resumed run, check that it is still the same."""
        from whet.training.assembly.fingerprints import input_digests

        if self._resumed is None:
            inputs = inputs_of(self.config, {}, RunInputs(os.getcwd(), self._command))
            write_inputs(self.folder, inputs)
            write_config(self.folder, self.config)
            return inputs
        recorded = read_inputs(self.folder)
        if recorded is None and self._resumed.checkpoint is not None:
            logger.warning(
                "%s has no inputs.json: whether data, model, reward or config changed since the run began is unknown",
                self.folder,
            )
        before = recorded or RunInputs(os.getcwd(), self._command)
        written = flattened(read_toml(self.folder / CONFIG))
        values = inputs_of(self.config, {}, before).config
        if cut := sorted(key for key, was in before.config.items() if key not in written and values.get(key) != was):
            raise WhetError(
                f"{self.folder / CONFIG} is damaged: it has no {cut[0]} any more, which was {before.config[cut[0]]}; "
                "restore the file (inputs.json has all values)"
            )
        self._check_checkpoint(before)
        if self._resumed.checkpoint is not None and before.is_complete:
            self._digests = input_digests(self.config)
            now = inputs_of(self.config, self._digests, before)
            self._found = decisive_changes(before, now)
            self._refuse(self._found)
        return before

    def settle(self, parts: Sequence[RewardPart], before: RunInputs) -> RunInputs:
        """When everything is loaded: the inputs that the steps to come depend on, written where they are new."""
        from whet.reward.version import parts_version
        from whet.training.assembly.fingerprints import input_digests

        digests = self._digests or input_digests(self.config)
        if parts:
            digests[REWARD] = parts_version(parts).hash
        now = inputs_of(self.config, digests, before)
        if self._resumed is None or not before.is_complete or self._resumed.checkpoint is None:
            known = replace(before, digests=before.digests or now.digests)
            if before.config and (changes := decisive_changes(known, now)):
                what = "; ".join(changes[:MOST_CHANGES])
                logger.warning("%s begins again from step 1, not as it began: %s", self.folder, what)
            self._write(now)  # nothing was trained with anything else
            return now
        if before.digests.get(REWARD) != now.digests.get(REWARD):
            self._found += self._reward_changes(parts, before)
        self._refuse(self._found)
        settled = accepted_inputs(before, now, [*self._found, *free_changes(before, now)], self._resumed.step)
        if settled != before:
            self._write(settled)
        return settled

    def _write(self, inputs: RunInputs) -> None:
        if self._resumed is not None and self._resumed.settings:
            # from the file: paths stay as they were written
            there = resolved(self.config.method, read_toml(self.folder / CONFIG))
            write_config(self.folder, with_settings(there, self._resumed.settings))
        write_inputs(self.folder, inputs)

    def _reward_changes(self, parts: Sequence[RewardPart], before: RunInputs) -> list[str]:
        from whet.reward.run_record import reward_table
        from whet.reward.version import parts_version, version_changes

        old = reward_table(self.folder).get(before.digests.get(REWARD, ""), {}).get("pieces") or {}
        changes = version_changes(old, parts_version(parts).pieces) if parts and old else []
        return [f"reward: {change}" for change in changes] or ["reward changed"]

    def _refuse(self, changes: Sequence[str]) -> None:
        if not changes or (self._resumed is not None and self._resumed.accept_changes):
            return
        more = f" and {len(changes) - MOST_CHANGES} more" if len(changes) > MOST_CHANGES else ""
        anyway = f"whet resume {shlex.quote(str(self.folder))} --accept-changes"
        raise WhetError(
            f"{self.folder}: not what the run was trained with: {'; '.join(changes[:MOST_CHANGES])}{more}; undo that, "
            f"or train on with it: {f'`{anyway}`' if self._command else 'whet.resume(..., accept_changes=True)'}"
        )

    def _check_checkpoint(self, before: RunInputs) -> None:
        """Raise unless checkpoint, inputs and logs are of one run."""
        from whet.model.checkpoint import checkpoint_state
        from whet.record.log import log_ends

        if self._resumed is None or self._resumed.checkpoint is None:
            return
        state = checkpoint_state(self._resumed.checkpoint)
        if "also" not in state:
            raise WhetError(
                f"{self._resumed.checkpoint}: an earlier build of whet wrote it, which this one cannot resume; go on "
                f"from its weights with `whet train {self.config.method} --model {self.folder}`"
            )
        log_ends(self.folder, state["logs"])
        if before.is_complete and state.get("identity") not in (before.identity, *before.accepted):
            raise WhetError(
                f"{self._resumed.checkpoint}: a checkpoint of another run, by what it was trained on; restore "
                "the run's own checkpoints, or start a new run in another folder"
            )
