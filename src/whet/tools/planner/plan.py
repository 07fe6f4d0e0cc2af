"""A whole plan: memory, time, whether it fits, and what to change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from whet.tools.planner.memory import PHASES, MemoryPlan, Phase, memory_plan
from whet.tools.planner.seconds import TimePlan, time_plan
from whet.tools.planner.workload import GIGA, Devices, Workload
from whet.types import WhetError


@dataclass(frozen=True)
class Suggestion:
    """A change of settings, what it saves, and what it costs."""

    settings: str  # as on the command line
    saves: float  # bytes per device
    fits: bool  # alone
    price: str

    @property
    def flags(self) -> str:
        """The settings as options of the command line."""
        return " ".join(f"--set {setting}" for setting in self.settings.split())


@dataclass(frozen=True)
class Plan:
    """What a run takes on these devices, and what would save memory."""

    work: Workload
    devices: Devices
    memory: MemoryPlan
    time: TimePlan
    suggestions: tuple[Suggestion, ...]  # the largest saving first
    together: Suggestion | None  # the fewest changes that make it fit; None where it fits, or nothing helps

    @property
    def fits(self) -> bool:
        """Whether the run fits as it is."""
        return self.memory.fits

    @property
    def verdict(self) -> str:
        """One line: whether the run fits a device, and what would make it fit if not."""
        total, room = self.memory.total / GIGA, self.devices.memory / GIGA
        if self.fits:
            return f"fits: {total:.3g} of {room:.4g} GB per device, at most in the phase {self.memory.peak_phase}"
        fix = "no setting makes it fit: take a smaller model, shorter completions or a larger device"
        if self.together is not None:
            fix = f"it does with {self.together.flags}, which saves {self.together.saves / GIGA:.3g} GB"
        return f"does not fit: {total:.3g} GB per device and it has {room:.4g}; {fix}"


ADAPTERS = "model.lora"
LEAST_SAVING = 0.005  # of all memory, below which a change is not worth a line


class SettingChange(NamedTuple):
    """A setting as on the command line, what it does to the workload, and what it costs."""

    setting: str
    fields: dict[str, Any]
    price: str

    @property
    def key(self) -> str:
        """The setting without its value."""
        return self.setting.partition("=")[0]


def plan_for(work: Workload, devices: Devices) -> Plan:
    """The plan, with suggestions tried one by one. Every device is a trainer rank, engines of their own apart."""
    if work.engines >= devices.count and work.engines:
        raise WhetError(
            f"scale.engines is {work.engines} and {devices} leave no device to train on; give fewer, or more devices"
        )
    work = replace(work, ranks=devices.count - work.engines, samples=work.samples and not work.engines)
    memory = memory_plan(work, devices)
    suggestions = []
    for change in _changes(work):
        changed = memory_plan(_changed(work, [change]), devices)
        saving = memory.total - changed.total
        if saving > LEAST_SAVING * memory.total:
            suggestions.append(Suggestion(change.setting, saving, changed.fits, change.price))
    suggestions.sort(key=lambda suggestion: -suggestion.saves)
    together = None if memory.fits else _together(work, devices, memory)
    return Plan(work, devices, memory, time_plan(work, devices, memory), tuple(suggestions), together)


def _changes(work: Workload) -> Iterator[SettingChange]:
    """Settings that save memory, in the order of what they cost."""
    if not work.on_cpu and work.recompute == "none":
        yield SettingChange("model.recompute=wide", {"recompute": "wide"}, "a twentieth of the training time")
    lower = work.micro_batch_tokens // 4
    least = work.prompt_tokens + work.completion_tokens
    if lower >= max(256, least // 4):
        price = "smaller passes, which are slower where the model is small"
        yield SettingChange(f"batch.micro_batch_tokens={lower}", {"micro_batch_tokens": lower}, price)
    if work.has_critic and work.critic == "own":
        yield SettingChange("critic.trunk=shared", {"critic": "shared"}, "the critic shares the policy's trunk")
    if work.needs_reference and work.reference == "memory" and not work.lora_rank:
        if work.draws:
            yield SettingChange("model.reference=reload", {"reference": "reload"}, "the model is read in every step")
        else:
            price = "the reference is asked once, before the first step"
            yield SettingChange("preference.reference_logp=stored", {"reference": "stored"}, price)
    if work.recompute != "layers":
        yield SettingChange("model.recompute=layers", {"recompute": "layers"}, "a third of the training time")
    if work.ranks > 1 and not work.offload:
        yield SettingChange("scale.offload=true", {"offload": True}, "shards travel to the device and back")
    if not work.lora_rank and work.moments == "float32" and not work.on_cpu and work.ranks == 1:
        yield SettingChange("optimizer.states=int8", {"moments": "int8"}, "moments of 8 bits, by bitsandbytes")
    narrow = work.compute == "bf16" and not work.on_cpu and work.ranks == 1
    if not work.lora_rank and work.weights == "float32" and narrow:
        yield SettingChange("model.weights=bfloat16", {"weights": "bfloat16"}, "steps are rounded at random")
    if not work.lora_rank:
        yield SettingChange(f"{ADAPTERS}=16", {"lora_rank": 16, "reference": "memory"}, "only adapters learn")


def _together(work: Workload, devices: Devices, memory: MemoryPlan) -> Suggestion | None:
    """The fewest and cheapest changes that are enough; adapters only where nothing else is."""

    def fits(changes: list[SettingChange]) -> bool:
        return memory_plan(_changed(work, changes), devices).fits

    every = list(_changes(work))
    plain = [change for change in every if change.key != ADAPTERS]
    adapters = [change for change in every if change.key == ADAPTERS]
    # with adapters there is no reference to reload, and the config refuses it
    beside = [change for change in _changes(_changed(work, adapters)) if change.key != ADAPTERS]
    for must, may in (([], plain), (adapters, beside)):
        used = _fewest(must, may, fits)
        if used:
            saved = memory.total - memory_plan(_changed(work, used), devices).total
            settings, prices = " ".join(change.setting for change in used), "; ".join(change.price for change in used)
            return Suggestion(settings, saved, True, prices)
    return None


def _fewest(
    must: list[SettingChange], may: list[SettingChange], fits: Callable[[list[SettingChange]], bool]
) -> list[SettingChange]:
    """`must` and the first few of `may` that are enough, without those that can be spared; empty where all are not."""
    if must and fits(must):
        return must
    for change in may:
        if fits([*must, change]):
            return [*must, change]
    used: list[SettingChange] = []
    for change in may:
        used = [*(other for other in used if other.key != change.key), change]
        if fits([*must, *used]):
            break
    else:
        return []
    for change in list(used):
        fewer = [other for other in used if other is not change]
        used = fewer if fits([*must, *fewer]) else used
    return [*must, *used]


def _changed(work: Workload, changes: list[SettingChange]) -> Workload:
    return replace(work, **{name: value for change in changes for name, value in change.fields.items()})


def plan_record(plan: Plan) -> dict[str, Any]:
    """Everything as plain values, for JSON."""
    memory, time = plan.memory, plan.time
    return {
        "model": {"name": plan.work.shape.name, "weights": plan.work.shape.weights},
        "method": plan.work.method,
        "devices": {"count": plan.devices.count, "bytes": plan.devices.memory},
        "fits": plan.fits,
        "verdict": plan.verdict,
        "memory": {
            "bytes": memory.total,
            "allocated": memory.allocated,
            "outside": memory.outside,
            "by_phase": {phase: memory.of(phase) for phase in PHASES},
            "loading": memory.loading,
            "rows": memory.rows,
            "wanted_rows": memory.wanted_rows,
            "lines": [asdict(line) for line in memory.lines],
        },
        "seconds": {
            "step": time.step if time.phases else None,
            "phases": {phase.name: phase.seconds for phase in time.phases},
            "rates": time.said,
            "sources": list(time.sources),
        },
        "suggestions": [asdict(suggestion) for suggestion in plan.suggestions],
        "together": None if plan.together is None else plan.together.settings,
    }


def plan_text(plan: Plan) -> str:
    """The plan as a page for the terminal."""
    work, memory, time = plan.work, plan.memory, plan.time
    lines = [str(work.shape), _summary(work), str(plan.devices), ""]
    width = max(len(line.name) for line in memory.lines)
    lines.append("memory of a device, GB")
    for line in memory.lines:
        when = "" if line.phases == PHASES else f"   [{', '.join(line.phases) or 'at another moment'}]"
        lines.append(f"  {line.gigabytes:8.2f}  {line.name:{width}}  {line.formula}{when}")
    outside = "Python, torch and transformers themselves" if work.on_cpu else "CUDA context, gaps of the allocator"
    lines.append(f"  {memory.outside / GIGA:8.2f}  {outside:{width}}")
    by_phase = ", ".join(f"{phase} {(memory.of(phase) + memory.outside) / GIGA:.1f}" for phase in _phases(work))
    by_phase += f", load {(memory.loading + memory.outside) / GIGA:.1f}: ranks read the whole model" * bool(
        memory.loading
    )
    lines += [f"  {memory.total / GIGA:8.2f}  at most   (by phase: {by_phase})", ""]
    if memory.rows and memory.rows < memory.wanted_rows:
        lines += [
            f"{memory.rows} of {memory.wanted_rows} completions fit side by side: the others wait, rollouts take longer"
        ]
    lines.append(plan.verdict)
    if plan.suggestions:
        lines += ["", "what saves memory"]
        for suggestion in plan.suggestions:
            fits_now = " (fits then)" if suggestion.fits and not plan.fits else ""
            lines.append(f"  {suggestion.saves / GIGA:8.2f}  {suggestion.flags}{fits_now}: {suggestion.price}")
    lines += ["", *_time_lines(time)]
    return "\n".join(lines)


def _phases(work: Workload) -> tuple[Phase, ...]:
    return tuple(phase for phase in PHASES if phase != "rollout" or work.samples)


def _summary(work: Workload) -> str:
    adapters = f", LoRA of rank {work.lora_rank}" if work.lora_rank else ""
    rows = (
        f"{work.prompts_per_step} prompts x {work.group_size}"
        if work.group_size > 1
        else f"{work.prompts_per_step} rows"
    )
    summary = (
        f"{work.method}{adapters}: {rows}, {work.prompt_tokens} + up to {work.completion_tokens} tokens, passes of "
        f"up to {work.micro_batch_tokens} tokens, products in {work.compute}, recompute={work.recompute}"
    )
    if work.turns > 1:
        summary += f"\nepisodes of up to {work.turns} turns, each as long as it may become"
        summary += "; the environment's own memory and time are not counted"
    if work.leaves > 1:
        summary += f"\nepisodes branch into up to {work.leaves} leaves, a row of the sampler each; together they have "
        summary += (
            f"{work.computed_share:.0%} of the tokens of separate ones, which training computes once where that pays"
        )
    elif work.lacks_environment:
        summary += (
            "\nthese are single completions, and this method trains on episodes that branch: name their environment, "
        )
        summary += "such as --set env.name=gym"
    return summary


def _time_lines(time: TimePlan) -> list[str]:
    if not time.phases:
        return [f"seconds per step: {time.said}"]
    lines = ["seconds per step"]
    lines += [f"  {phase.seconds:8.2f}  {phase.name}: {phase.formula}" for phase in time.phases]
    lines += [
        f"  {time.step:8.2f}  in all, every completion at its longest; what ranks say to each other is not counted"
    ]
    return [*lines, f"rates: {time.said}", f"  {', '.join(time.sources)}"]
