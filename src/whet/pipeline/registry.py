"""The pipelines by name. A new one is a `Pipeline`: an entry here, or registered by whoever writes it."""

from __future__ import annotations

from whet.pipeline.constitutional import CONSTITUTIONAL
from whet.pipeline.iterative_dpo import ITERATIVE_DPO
from whet.pipeline.rlaif import RLAIF
from whet.pipeline.self_play import SELF_PLAY
from whet.pipeline.self_rewarding import SELF_REWARDING
from whet.pipeline.settings import Pipeline, PipelineSettings
from whet.types import WhetError, did_you_mean

PIPELINES: dict[str, Pipeline] = {
    pipeline.name: pipeline for pipeline in (ITERATIVE_DPO, SELF_PLAY, RLAIF, SELF_REWARDING, CONSTITUTIONAL)
}


def find_pipeline(name: str) -> Pipeline:
    if name not in PIPELINES:
        hint = did_you_mean(name, PIPELINES, cutoff=0.4)
        raise WhetError(f"no pipeline is called {name!r}{hint}; `whet pipeline` lists them: {', '.join(PIPELINES)}")
    return PIPELINES[name]


def register_pipeline(pipeline: Pipeline) -> Pipeline:
    """Make a pipeline of your own known by its name, to `whet pipeline` and to `whet resume` alike."""
    if pipeline.name in PIPELINES and PIPELINES[pipeline.name] is not pipeline:
        raise WhetError(f"there is already a pipeline called {pipeline.name!r}; give yours another name")
    if not issubclass(pipeline.settings, PipelineSettings):
        raise WhetError(f"pipeline {pipeline.name!r}: settings must be a subclass of PipelineSettings")
    PIPELINES[pipeline.name] = pipeline
    return pipeline
