"""Trackers by name, as `report.trackers` gives them: whet's own, and those that a user or a plugin registered."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from whet import registry
from whet.record.trackers.mlflow_tracker import MlflowTracker
from whet.record.trackers.tensorboard_tracker import TensorBoardTracker
from whet.record.trackers.tracker import Tracker
from whet.record.trackers.tracking import Trackers
from whet.record.trackers.trackio_tracker import TrackioTracker
from whet.record.trackers.wandb_tracker import WandbTracker
from whet.types import WhetError

TRACKERS: dict[str, Callable[..., Tracker]] = {
    "trackio": TrackioTracker,
    "tensorboard": TensorBoardTracker,
    "wandb": WandbTracker,
    "mlflow": MlflowTracker,
}
METHODS = ("open", "step", "evaluation", "close", "place")


def _refusal(maker: Any) -> str:
    if not callable(maker):
        return f"it is {maker!r}; give a class, or a function that makes a tracker"
    missing = [name for name in METHODS if isinstance(maker, type) and not hasattr(maker, name)]
    if missing:
        return (
            f"{maker.__name__} has no {' and no '.join(missing)}; give it all of whet.record.trackers.tracker.Tracker"
        )
    return ""


registry.register_builtins("tracker", TRACKERS, _refusal)


def make_trackers(names: Sequence[str], settings: Mapping[str, Any]) -> dict[str, Tracker]:
    """A tracker per name, nothing opened yet; an error where one cannot work: unknown, not installed, a wrong setting.

    `settings` are tables by tracker.
    """
    for name in settings:
        if name not in names:
            raise WhetError(
                f"report.tracker_settings.{name} has no effect: report.trackers is "
                f"[{', '.join(names)}]; add {name!r} there, or drop the settings"
            )
    made: dict[str, Tracker] = {}
    for name in names:
        maker = registry.lookup("tracker", name)
        chosen = settings.get(name) or {}
        if not isinstance(chosen, Mapping):
            raise WhetError(f"report.tracker_settings.{name} is {chosen!r}; give a table of its settings")
        registry.check_settings("tracker", name, maker, chosen)
        for package in getattr(maker, "packages", ()):
            if importlib.util.find_spec(package) is None:
                raise WhetError(
                    f"the tracker {name!r} needs {package}, which is not installed; run: pip install "
                    f"'whet[{getattr(maker, 'extra', name)}]', or take it out of report.trackers"
                )
        made[name] = maker(**chosen)
    return made


def trackers_of(
    names: Sequence[str], settings: Mapping[str, Any], folder: Path, config: Mapping[str, Any], samples_per_step: int
) -> Trackers | None:
    """The callback for a run; None where it has no trackers."""
    return Trackers(make_trackers(names, settings), folder, config, samples_per_step) if names else None
