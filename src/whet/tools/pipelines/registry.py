"""The pipelines by name. A new one is a `Pipeline`: an entry here, or your own by `whet.register("pipeline", ...)`."""

from __future__ import annotations

from typing import Any

from whet.registry import load_plugins, register_builtins
from whet.tools.pipelines.constitutional import CONSTITUTIONAL
from whet.tools.pipelines.distill import DISTILL
from whet.tools.pipelines.from_file import FROM_FILE
from whet.tools.pipelines.iterative_dpo import ITERATIVE_DPO
from whet.tools.pipelines.phased import PHASED
from whet.tools.pipelines.r1 import R1, R1_ZERO
from whet.tools.pipelines.rejection_sampling import REJECTION
from whet.tools.pipelines.rlaif import RLAIF
from whet.tools.pipelines.rlhf import RLHF
from whet.tools.pipelines.self_play import SELF_PLAY
from whet.tools.pipelines.self_rewarding import SELF_REWARDING
from whet.tools.pipelines.settings import Pipeline, PipelineSettings
from whet.tools.pipelines.ttrl import TTRL
from whet.types import WhetError, did_you_mean

PIPELINES: dict[str, Pipeline] = {
    pipeline.name: pipeline
    for pipeline in (
        R1,
        R1_ZERO,
        REJECTION,
        TTRL,
        DISTILL,
        RLHF,
        PHASED,
        ITERATIVE_DPO,
        SELF_PLAY,
        RLAIF,
        SELF_REWARDING,
        CONSTITUTIONAL,
        FROM_FILE,
    )
}


def find_pipeline(name: str) -> Pipeline:
    """The pipeline of that name; an unknown one is an error with the nearest name."""
    if name not in PIPELINES:
        load_plugins()
    if name not in PIPELINES:
        hint = did_you_mean(name, PIPELINES, cutoff=0.4)
        raise WhetError(f"no pipeline is called {name!r}{hint}; `whet pipeline` lists them: {', '.join(PIPELINES)}")
    return PIPELINES[name]


def _refusal(thing: Any) -> str:
    if not isinstance(thing, Pipeline):
        return "it is no Pipeline; give Pipeline(name, about, settings, stages) of whet.tools.pipelines.settings"
    is_fine = isinstance(thing.settings, type) and issubclass(thing.settings, PipelineSettings)
    return "" if is_fine else "its settings are no subclass of PipelineSettings; derive them from that class"


register_builtins("pipeline", PIPELINES, _refusal)
