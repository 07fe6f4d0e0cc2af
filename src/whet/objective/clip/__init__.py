"""How far off-policy may it learn? Clip rules: the factor in front of grad logp, one file per idea.

importance    the ratio itself, capped or not, and none at all
band          the usual clip and its variants: a token stops learning outside a fixed band of ratios
probability   bands that depend on how likely the token was
soft          weights that fade out instead of stopping
whole_batch   rules that look at all tokens of an optimizer step, or all completions of a group
"""

from whet.objective.clip.band import DualClip, FutureDrift, InverseRatio, KeptEdges, PPOClip
from whet.objective.clip.probability import DivergenceMask, ProbabilityBand, VariationMask
from whet.objective.clip.rule import ClipRule
from whet.objective.clip.soft import Cap, GammaGate, GeometricMean, OnPolicy, SoftGate, Tapered, Unclipped
from whet.objective.clip.whole_batch import BalancedBand, GroupSoftmax, MomentMask, StepClip

__all__ = [
    "BalancedBand",
    "Cap",
    "ClipRule",
    "DivergenceMask",
    "DualClip",
    "FutureDrift",
    "GammaGate",
    "GeometricMean",
    "GroupSoftmax",
    "InverseRatio",
    "KeptEdges",
    "MomentMask",
    "OnPolicy",
    "PPOClip",
    "ProbabilityBand",
    "SoftGate",
    "StepClip",
    "Tapered",
    "Unclipped",
    "VariationMask",
]
