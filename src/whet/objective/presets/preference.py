"""The preference methods by name: each method once, with its paper, its defaults and what whet chose."""

from __future__ import annotations

from whet.objective.preference.objective import PairObjective
from whet.objective.presets import preference_free as free
from whet.objective.presets import preference_tied as tied
from whet.objective.presets.left_out import LEFT_OUT
from whet.objective.presets.preset import Preset

EVERY = (
    *(tied.DPO, tied.CDPO, tied.ROBUST_DPO, tied.IPO, tied.IPO_MEAN, free.KTO, free.SIMPO, free.ORPO, free.CPO),
    *(tied.DPO_SHIFT, tied.DPOP, tied.HINGE, free.SLIC, tied.SIGMOID_NORM, free.APO_ZERO, tied.APO_DOWN),
    *(free.SPPO, free.NCA, free.BCO, tied.DISCOPOP, free.ALPHAPO, free.POWER, tied.LD_DPO, tied.WPO),
    *(tied.TR_DPO, tied.TR_DPO_HARD, tied.RPO, tied.RPO_ITERATIVE, free.PAIRWISE_CRINGE),
    *(tied.FDPO_FORWARD, tied.FDPO_JS, tied.FDPO_ALPHA),
)

# every preference method by the name that the command line takes
PAIR_PRESETS: dict[str, Preset[PairObjective]] = {preset.objective.name: preset for preset in EVERY}

__all__ = ["LEFT_OUT", "PAIR_PRESETS"]
