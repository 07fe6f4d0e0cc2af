"""From entries to stages: inputs found, trainings checked, all before anything runs."""

from __future__ import annotations

from collections.abc import Sequence

from whet.tools.pipelines.library.contamination import refuse_contamination
from whet.tools.pipelines.library.entry import Composition, StageEntry
from whet.tools.pipelines.library.settings import ComposedSettings
from whet.tools.pipelines.stages import Stage
from whet.types import WhetError


def compose(settings: ComposedSettings, entries: Sequence[StageEntry]) -> list[Stage]:
    """The stages of a pipeline that is made of library stages; the first entry that cannot work is an error."""
    names = [entry.name for entry in entries]
    for name in names:
        if names.count(name) > 1:
            raise WhetError(f"two stages are called {name!r}; give each a name of its own")
    composition = Composition(settings)
    stages = []
    for place, entry in enumerate(entries):
        composition.later = frozenset(names[place:])
        stages.append(entry.stage(composition))
        composition.entries[entry.name] = entry
    refuse_contamination(settings, composition.trained_on)
    return stages
