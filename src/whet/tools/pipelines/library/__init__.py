"""The stages that pipelines are made of: each an entry with a name, a few plain arguments and named inputs."""

from whet.tools.pipelines.library.compose import compose
from whet.tools.pipelines.library.distilling import CompareEntry, MatchedEntry, StudentEntry
from whet.tools.pipelines.library.entry import StageEntry
from whet.tools.pipelines.library.evaluation import EvalEntry, can_evaluate
from whet.tools.pipelines.library.rechecking import RecheckEntry
from whet.tools.pipelines.library.sampling import MixEntry, MixSource, PairsEntry, RejectionEntry, SampleEntry
from whet.tools.pipelines.library.settings import ComposedSettings
from whet.tools.pipelines.library.trainings import PreferenceEntry, RewardModelEntry, RLEntry, SFTEntry
from whet.tools.pipelines.library.voting import VoteEntry

# every kind of stage by the name that a pipeline file takes
STAGE_KINDS: dict[str, type[StageEntry]] = {
    each.kind: each
    for each in (
        SFTEntry,
        RLEntry,
        PreferenceEntry,
        RewardModelEntry,
        SampleEntry,
        RejectionEntry,
        PairsEntry,
        MixEntry,
        EvalEntry,
        VoteEntry,
        RecheckEntry,
        StudentEntry,
        MatchedEntry,
        CompareEntry,
    )
}

__all__ = [
    "STAGE_KINDS",
    "CompareEntry",
    "ComposedSettings",
    "EvalEntry",
    "MatchedEntry",
    "MixEntry",
    "MixSource",
    "PairsEntry",
    "PreferenceEntry",
    "RLEntry",
    "RecheckEntry",
    "RejectionEntry",
    "RewardModelEntry",
    "SFTEntry",
    "SampleEntry",
    "StageEntry",
    "StudentEntry",
    "VoteEntry",
    "can_evaluate",
    "compose",
]
