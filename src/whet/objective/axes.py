"""Methods by name: the axes of each family and their components, presets, changes, and a method in words and symbols.

The two families, policy and preference methods, share everything here. A component or preset that a user registers
(`whet.registry`) lands in the same tables as the built-in ones.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Generic, TypeVar, cast

from whet import registry
from whet.objective import (
    advantage,
    aggregate,
    clip,
    control,
    credit,
    keep,
    kl,
    mismatch,
    pass_at_k,
    ratio,
    reference,
    scale,
    select,
    shape,
    siblings,
    step_credit,
    teacher,
    terms,
)
from whet.objective.component import Component, departures, with_number
from whet.objective.lazy_torch import torch
from whet.objective.policy import Objective
from whet.objective.preference import pair_losses, pair_terms, score
from whet.objective.preference.objective import PairObjective
from whet.objective.presets import PRESETS, Preset
from whet.objective.presets.preference import LEFT_OUT, PAIR_PRESETS
from whet.objective.presets.reward_model import REWARD_MODELS
from whet.types import WhetError, did_you_mean

AnyObjective = TypeVar("AnyObjective", Objective, PairObjective)


@dataclass(frozen=True)
class Axis:
    """One question that every method of a family answers. The first component is the usual answer."""

    question: str
    interface: type  # the class of its components, which says what the axis asks
    components: dict[str, type]  # by the names that a config uses
    main: bool = False  # shown for every method, whatever its answer


@dataclass(frozen=True)
class Family(Generic[AnyObjective]):
    """Methods with one loss: their axes and their presets."""

    name: str
    objective: type[AnyObjective]
    axes: Mapping[str, Axis]
    presets: dict[str, Preset[AnyObjective]]

    @property
    def components(self) -> dict[str, dict[str, type]]:
        """The component classes of each axis, by name."""
        return {name: axis.components for name, axis in self.axes.items()}


def _axis(question: str, interface: type, *components: type, main: bool = False) -> Axis:
    return Axis(question, interface, {component.name: component for component in components}, main)  # type: ignore[attr-defined]


_REFERENCE = _axis(
    *("which policy is the reference?", reference.ReferencePolicy),
    *(reference.Frozen, reference.Reset, reference.MovingAverage),
)
# the methods that learn from rewards: their axes, components and presets
POLICY = Family(
    "policy",
    Objective,
    {
        "baseline": _axis(
            *("compared with what?", advantage.Baseline),
            *(advantage.GroupMean, advantage.ShiftedMean, advantage.LeaveOneOut, advantage.LengthWeightedMean),
            advantage.BatchRunningMean,
            advantage.RunningRoleMean,
            *(advantage.MixedMean, advantage.Greedy, advantage.DrawnMean, advantage.PromptTracker),
            advantage.PromptValue,
            *(advantage.RevisitedGroup, pass_at_k.EntropicGroup, advantage.GroupLabels),
            *(advantage.PartwiseGroup, pass_at_k.PassAtK, pass_at_k.PassAtKMarginal, pass_at_k.BestMinusSecond),
            *(credit.ReturnToGo, credit.GroupMeanToGo, credit.GAE, credit.DecoupledGAE, credit.VTrace, credit.Trace),
            *(
                step_credit.StepSum,
                step_credit.StepMean,
                step_credit.StepDelta,
                step_credit.TurnReturn,
                step_credit.TurnIndexRewards,
            ),
            *(siblings.Siblings, siblings.GroupAndTree),
            *(step_credit.AnchoredSteps, teacher.TeacherGap, teacher.EarlyTeacherGap, teacher.NoAdvantage),
            main=True,
        ),
        "scale": _axis(
            *("in which unit?", scale.AdvantageScale, scale.NoScale, scale.GroupStd, scale.GroupMeanScale),
            *(scale.DrawnStd, scale.TokenStd, scale.WhitenTokens, scale.WhitenCompletions),
            main=True,
        ),
        "ratio": _axis(
            *("how is the policy's move measured?", ratio.Ratio),
            *(ratio.TokenRatio, ratio.SequenceRatio, ratio.SequenceProduct, ratio.SegmentRatio),
            *(ratio.SamplerTokenRatio, ratio.SamplerProduct),
            main=True,
        ),
        "clip": _axis(
            *("the factor in front of grad logp", clip.ClipRule),
            *(clip.OnPolicy, clip.PPOClip, clip.DualClip, clip.Cap, clip.Unclipped, clip.Tapered, clip.SoftGate),
            *(clip.GeometricMean, clip.GammaGate, clip.VariationMask, clip.DivergenceMask),
            *(clip.KeptEdges, clip.ProbabilityBand, clip.InverseRatio, clip.FutureDrift),
            *(clip.MomentMask, clip.BalancedBand, clip.GroupSoftmax),
            main=True,
        ),
        "aggregate": _axis(
            *("who counts how much?", aggregate.Aggregate),
            *(aggregate.TokenMean, aggregate.SequenceMean, aggregate.FixedLength, aggregate.SequenceSum),
            *(aggregate.TurnMean, aggregate.InverseLength, aggregate.LearnedLength),
            main=True,
        ),
        "kl": _axis(
            *("tied to the reference, or to the policy that wrote the batch, how?", kl.KL),
            *(kl.NoKL, kl.K2, kl.K3, kl.K3Corrected, kl.Absolute, kl.Full, kl.K1Reward, kl.K2Reward, kl.K3Reward),
            *(kl.AbsoluteReward, kl.K1Immediate, kl.K3Old, kl.AbsoluteOld, kl.K2Old, kl.K2OldCompletion, kl.K2Sampler),
            kl.K2Completion,
            main=True,
        ),
        "shape": _axis(
            *("what is the reward really?", shape.RewardShape),
            *(shape.AsScored, shape.SoftOverlong, shape.LengthCost, shape.ClipReward),
        ),
        "keep": _axis(
            *("which groups are worth training on?", keep.Keep),
            *(keep.Everything, keep.MixedOutcome, keep.Balanced, keep.Fresh),
        ),
        "mismatch": _axis(
            *("what if the sampler is not the trainer?", mismatch.Mismatch, mismatch.NoMismatch, mismatch.Truncate),
            *(mismatch.TruncateSequence, mismatch.MaskTokens, mismatch.MaskSequences, mismatch.MaskStale),
        ),
        "select": _axis(
            *("which tokens carry gradient?", select.Select, select.AllTokens, select.Finished),
            *(select.FinishedTurns, select.NonzeroAdvantage, select.TopEntropy),
            *(select.ClipCovariance, select.TieCovariance),
        ),
        "smooth": _axis("who else learns from a token?", terms.Smooth, terms.NoSmoothing, terms.TopK),
        "imitate": _axis(
            *("are right completions, what an environment wrote or demonstrations imitated as well?", terms.Imitate),
            *(terms.NoImitation, terms.ImitateRight, terms.ImitateObserved),
            *(terms.ImitateDemonstrations, terms.ImitateUnsure),
        ),
        "entropy": _axis(
            *("is entropy rewarded?", terms.Entropy, terms.NoBonus, terms.Bonus, terms.BonusToTarget),
        ),
        "value": _axis(
            *("how does the critic learn?", terms.Value, terms.NoCritic, terms.SquaredError, terms.ClippedError)
        ),
        "control": _axis(
            *("who turns the KL's coefficient, who ends updates or the run?", control.Control),
            *(control.FixedCoefficient, control.Proportional, control.Doubling, control.KLBudget, control.EndUpdates),
        ),
        "reference": _REFERENCE,
        "teacher": _axis(
            *("is a teacher's whole distribution imitated?", teacher.TeacherTerm, teacher.NoTeacher),
            *(
                teacher.TeacherReverseKL,
                teacher.TeacherForwardKL,
                teacher.JensenShannonToTeacher,
                teacher.CappedJensenShannon,
            ),
        ),
    },
    PRESETS,
)
# the methods that learn from preferences
PREFERENCE = Family(
    "preference",
    PairObjective,
    {
        "score": _axis(
            *("what is a completion worth?", score.CompletionScore),
            *(score.LogRatio, score.MeanLogRatio, score.LogLikelihood, score.MeanLogLikelihood, score.LogOdds),
            *(score.PowerReward, score.WeighedEntropy, score.ForwardKL, score.JensenShannon, score.AlphaDivergence),
            score.SharedLength,
            main=True,
        ),
        "curve": _axis(
            *("what does a pair, or a completion, cost?", pair_losses.CostCurve),
            *(
                pair_losses.Logistic,
                pair_losses.Unflipped,
                pair_losses.Squared,
                pair_losses.Hinge,
                pair_losses.Blend,
                pair_losses.Lowered,
                pair_losses.Rivals,
            ),
            *(
                pair_losses.Prospect,
                pair_losses.Classified,
                pair_losses.Saturating,
                pair_losses.Targets,
                pair_losses.NoiseContrast,
            ),
            main=True,
        ),
        "contrast": _axis(
            *("how are two completions set against each other?", pair_terms.PairContrast),
            *(pair_terms.ScoreDifference, pair_terms.Shifted, pair_terms.Protected),
        ),
        "anchor": _axis(
            *("what is a single completion compared with?", pair_terms.Anchor),
            *(pair_terms.Zero, pair_terms.Mismatched, pair_terms.AnchorRunningMean),
        ),
        "weigh": _axis(
            *(
                "how much does a pair count?",
                pair_terms.PairWeight,
                pair_terms.Alike,
                pair_terms.OwnWords,
                pair_terms.MarginGate,
            ),
        ),
        "imitate": _axis(
            *("are good completions imitated as well?", pair_terms.ImitateGood),
            *(pair_terms.NoPairImitation, pair_terms.Summed, pair_terms.PerCompletion, pair_terms.PerToken),
        ),
        "reference": _REFERENCE,
    },
    PAIR_PRESETS,
)
FAMILIES: tuple[Family[Any], ...] = (POLICY, PREFERENCE)
# the components of every axis of a policy method, by the names a config uses
AXES: dict[str, dict[str, type]] = POLICY.components
# and of every axis of a preference method
PAIR_AXES: dict[str, dict[str, type]] = PREFERENCE.components


def family_of(objective: Objective | PairObjective) -> Family[Any]:
    """The family whose loss this objective is."""
    return next(family for family in FAMILIES if isinstance(objective, family.objective))


def preset_named(name: str) -> Preset[Any]:
    """The preset of that name, of any family, or an error with the nearest one."""
    presets = {known: preset for family in FAMILIES for known, preset in family.presets.items()}
    if name in presets:
        return presets[name]
    if name in registry.added("preset"):
        return cast(Preset[Any], registry.lookup("preset", name))
    if name in LEFT_OUT:
        raise WhetError(f"{name!r} is not built: {LEFT_OUT[name]}; `whet algorithms` lists what is")
    raise WhetError(f"no method is called {name!r}{did_you_mean(name, presets)}; `whet algorithms` lists them")


def with_changes(objective: AnyObjective, changes: Mapping[str, Any]) -> AnyObjective:
    """The method with components exchanged (`clip: "on_policy"`) or their numbers set (`clip.high: 0.28`).

    Components are exchanged first, so `{"kl": "k2", "kl.beta": 0.1}` sets the beta of the new component.
    """
    axes = family_of(objective).axes
    for path in sorted(changes, key=lambda path: path.count(".")):
        axis, _, number = path.partition(".")
        if axis not in axes:
            raise WhetError(f"objective.{path}: no axis is called {axis!r}{did_you_mean(axis, axes)}")
        try:
            changed = (
                with_number(axis, getattr(objective, axis), number, changes[path])
                if number
                else _component_named(axis, axes[axis].components, changes[path])
            )
        except ValueError as error:
            raise WhetError(f"objective.{axis}.{error}") from error
        objective = replace(objective, **{axis: changed})
    objective.refuse_idle()
    return objective


def _component_named(axis: str, components: Mapping[str, type], name: Any) -> Any:
    if axis == "kl" and name == "k1":
        raise WhetError(
            "objective.kl=k1: in the loss its expected gradient is 0, it ties to nothing; give k1_reward, k2 or k3"
        )
    if isinstance(name, str) and name not in components:
        registry.load_plugins()
    if not isinstance(name, str) or name not in components:
        known = ", ".join(components)
        raise WhetError(f"objective.{axis} is {name!r}{did_you_mean(str(name), components)}; give one of {known}")
    return components[name]()


def differences(objective: Objective | PairObjective) -> dict[str, str]:
    """The departures from the preset of the same name: `{"clip.high": "0.2 -> 0.28"}`; empty for the preset."""
    family = family_of(objective)
    return departures(preset_named(objective.name).objective, objective, family.axes)


def title(objective: Objective | PairObjective) -> str:
    """The method's title, with a star when it is not the preset."""
    return preset_named(objective.name).title + ("*" if differences(objective) else "")


def description(objective: Objective | PairObjective, updates_per_step: int = 1) -> list[str]:
    """The effective objective in words and symbols: what this run will really maximise, or minimise."""
    preset = preset_named(objective.name)
    lines = [f"{title(objective)}  ({preset.paper})"]
    lines += [f"  changed: {path} {change}" for path, change in differences(objective).items()]
    lines += [f"  {symbols}" for symbols in objective.symbols(updates_per_step)]
    components: list[Component] = objective.spoken(updates_per_step)
    return lines + [f"  - {words}" for component in components if (words := component.words())]


def component_refusal(axis: str, interface: type, component: Any) -> str:
    """What keeps a class from being a component of an axis, with the fix; empty where nothing does."""
    if not (isinstance(component, type) and issubclass(component, Component)):
        return f"it is {component!r}; give a frozen dataclass that inherits from whet.objective.component.Component"
    numbers = {field.name for field in fields(component)}
    annotated = [name for name, kind in inspect.get_annotations(component).items() if "ClassVar" not in str(kind)]
    if undeclared := [name for name in annotated if name not in numbers]:
        return f"{component.__name__}.{undeclared[0]} is not one of its fields; give @dataclass(frozen=True)"
    own = {name for base in component.__mro__[:-1] if base is not Component for name in vars(base)}
    own -= component.__abstractmethods__ | (
        {"symbols"} if component.symbols is getattr(interface, "symbols", None) else set()
    )
    shared = set(vars(Component)) - (set() if "in_symbols" in own else {"symbols"})
    missing = sorted(_members(interface) - own - shared)
    if missing:
        return f"{component.__name__} has no {', '.join(missing)}; give it all that {interface.__name__} has"
    for member in sorted(_members(interface)):
        if member in own and callable(expected := getattr(interface, member, None)):
            theirs, ours = _parameters(expected), _parameters(getattr(component, member))
            if theirs != ours:
                wanted = f"({', '.join(theirs)})"
                return f"{component.__name__}.{member} takes ({', '.join(ours)}); {interface.__name__} takes {wanted}"
    try:
        usual = component()
    except TypeError as error:
        return f"{component.__name__}() fails ({error}); give every number a default"
    for number in fields(usual):
        value = getattr(usual, number.name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"{component.__name__}.{number.name} is {value!r}; the fields of a component are numbers"
    return _clip_refusal(usual) if axis == "clip" else ""


def _clip_refusal(rule: Any) -> str:
    ratio = torch.tensor([[0.5, 1.0, 2.0]], dtype=torch.float64)
    action = torch.ones_like(ratio, dtype=torch.bool)
    for call in (rule, rule.surrogate):
        try:
            weight = call(ratio, torch.ones_like(ratio), action, ratio.log() - 1)
        except Exception as error:
            return f"called with tensors [N, T] it fails with {type(error).__name__}: {error}; fix it"
        if not isinstance(weight, torch.Tensor) or weight.shape != ratio.shape:
            shape = tuple(weight.shape) if isinstance(weight, torch.Tensor) else weight
            return f"for a ratio of shape {tuple(ratio.shape)} it returns {shape}; return one weight per token, [N, T]"
    return ""


def _parameters(function: Any) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


def _members(interface: type) -> set[str]:
    own = [base for base in interface.__mro__ if base.__module__.startswith("whet.") and base is not Component]
    names = {"name", *(name for base in own for name in (*vars(base), *getattr(base, "__annotations__", {})))}
    return {name for name in names if not name.startswith("_") or name == "__call__"}


def _preset_refusal(family: Family[Any], preset: Any) -> str:
    if isinstance(preset, Preset) and isinstance(preset.objective, family.objective):
        return ""
    return f"it is {preset!r}; give whet.objective.Preset(Objective(...), ...) or Preset(PairObjective(...), ...)"


def _baseline(thing: Any) -> Any:
    """A plain function of a group's rewards as the component it stands for."""
    return advantage.function_baseline(thing) if inspect.isfunction(thing) else thing


def _register_builtins() -> None:
    registered: set[int] = set()
    for family in FAMILIES:
        registry.register_builtins("preset", family.presets, partial(_preset_refusal, family))
        for name, axis in family.axes.items():
            if id(axis) not in registered:  # both families have the axis of the reference
                registered.add(id(axis))
                refusal: Callable[[Any], str] = partial(component_refusal, name, axis.interface)
                adapted = _baseline if axis.interface is advantage.Baseline else registry.unchanged
                registry.register_builtins(name, axis.components, refusal, adapted)
    # no component makes another kind of reward model: their names are only taken
    registry.register_builtins("preset", REWARD_MODELS, lambda preset: f"{preset!r} is no policy or preference method")


_register_builtins()
