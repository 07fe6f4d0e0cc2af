"""The stages that pipelines are made of: each an entry with a name, a few plain arguments and named inputs."""

from whet.tools.pipelines.library.constitution import (
    ConductEntry,
    ConstitutionExamplesEntry,
    PrincipledPairsEntry,
    RevisionsEntry,
)
from whet.tools.pipelines.library.distilling import CompareEntry, MatchedEntry, StudentEntry
from whet.tools.pipelines.library.entry import StageEntry
from whet.tools.pipelines.library.evaluation import EvalEntry, RecheckEntry
from whet.tools.pipelines.library.judged import BestOfEntry, JudgedEntry, WaysEntry
from whet.tools.pipelines.library.judging import JudgedPairsEntry, JudgeEvalEntry, JudgeExamplesEntry
from whet.tools.pipelines.library.pairs import PairsEntry, SplitPairsEntry
from whet.tools.pipelines.library.phases import MeasuredEntry, PhaseCheckEntry
from whet.tools.pipelines.library.sampling import MixEntry, RejectionEntry, SampleEntry, VoteEntry
from whet.tools.pipelines.library.self_judging import (
    CollapseEntry,
    SelfExamplesEntry,
    SelfJudgeEvalEntry,
    SelfScoredPairsEntry,
)
from whet.tools.pipelines.library.trainings import PreferenceEntry, RewardModelEntry, RLEntry, SFTEntry

# every kind of stage by the name that a pipeline file takes
STAGE_KINDS: dict[str, type[StageEntry]] = {
    entry.kind: entry
    for entry in (
        *(SFTEntry, RLEntry, PreferenceEntry, RewardModelEntry, SampleEntry, RejectionEntry, PairsEntry),
        *(SplitPairsEntry, MixEntry, EvalEntry, VoteEntry, RecheckEntry, StudentEntry, MatchedEntry, CompareEntry),
        *(BestOfEntry, JudgedEntry, WaysEntry, JudgedPairsEntry, JudgeEvalEntry, JudgeExamplesEntry),
        *(PrincipledPairsEntry, MeasuredEntry, PhaseCheckEntry, ConductEntry, ConstitutionExamplesEntry),
        *(RevisionsEntry, CollapseEntry, SelfExamplesEntry, SelfJudgeEvalEntry, SelfScoredPairsEntry),
    )
}
