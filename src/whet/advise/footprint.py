"""How much memory the model-sized parts of a run take, computed from dtypes.

Activations and the sampler's cache depend on the architecture and the lengths; they are not counted, room is left.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

# Bytes a weight: (at the least, as whet keeps it today).
WORKING_COPY = (2, 2)  # bf16, what the matrix products read
MASTER_AND_MOMENTS = (12, 12)  # fp32: the weight, and AdamW's m and v
GRADIENT = (2, 4)  # bf16, fp32
REFERENCE = (2, 4)  # bf16, fp32
TRAINED = (
    WORKING_COPY[0] + MASTER_AND_MOMENTS[0] + GRADIENT[0],
    WORKING_COPY[1] + MASTER_AND_MOMENTS[1] + GRADIENT[1],
)
ADAPTED = (8, 10)  # the same copy, the frozen base in 2 or 4, and fp32: base and adapter; it is the reference too
REFERENCES = frozenset(("ref_logp", "divergence"))  # needs of an objective that a frozen copy answers
SHARE_FOR_STATES = 0.8  # of the memory; a rule of thumb


@dataclass(frozen=True)
class MemoryEstimate:
    """Weights and their training state in gigabytes (10^9 bytes); activations and caches come on top."""

    low: float  # gradients and reference in bf16
    high: float  # as whet keeps them today
    parts: tuple[str, ...]
    fits: bool | None  # None: the machine's memory is not known
    verdict: str


def copies(needs: Collection[str]) -> list[tuple[str, tuple[int, int]]]:
    """Everything as large as the model, with its bytes a weight; `needs` are those of the objective."""
    entries = [("policy (bf16 copy, fp32 master, m and v, gradients)", TRAINED)]
    if "value" in needs:
        entries.append(("critic (the same again)", TRAINED))
    if REFERENCES & set(needs):
        entries.append(("reference (a frozen copy)", REFERENCE))
    return entries


def bytes_per_weight(needs: Collection[str]) -> int:
    """As whet keeps it today."""
    return sum(most for _, (_, most) in copies(needs))


def fits(billions: float | None, gigabytes: float | None, needs: Collection[str]) -> bool | None:
    """Whether the states leave a fifth of the memory free; None where a number is missing."""
    if billions is None or gigabytes is None:
        return None
    return billions * bytes_per_weight(needs) <= SHARE_FOR_STATES * gigabytes


def memory_estimate(billions: float, gigabytes: float | None, needs: Collection[str]) -> MemoryEstimate:
    """The estimate, and what to do where it does not fit."""
    held = copies(needs)
    low = billions * sum(least for _, (least, _) in held)
    high = billions * bytes_per_weight(needs)
    parts = tuple(f"{what}: {span(billions * least, billions * most)}" for what, (least, most) in held)
    enough = fits(billions, gigabytes, needs)
    if gigabytes is None:
        verdict = "activations and the sampler's cache come on top; give --memory to hear whether it fits"
    elif enough:
        verdict = f"fits {gigabytes:g} GB: {gigabytes - high:.3g} GB are left for activations and the sampler's cache"
    else:
        verdict = (
            f"does not fit {gigabytes:g} GB with a fifth left for activations and the sampler's cache; "
            f"{_way_out(billions, gigabytes, needs)}"
        )
    return MemoryEstimate(low, high, parts, enough, verdict)


def _way_out(billions: float, gigabytes: float, needs: Collection[str]) -> str:
    """The settings that save a copy and, where they are not enough, the largest model that would do with them."""
    savings = [("critic.trunk=shared", TRAINED[1])] if "value" in needs else []
    savings += [("model.reference=reload", REFERENCE[1])] if REFERENCES & set(needs) else []
    room = SHARE_FOR_STATES * gigabytes
    saved = 0
    for used, (_, saving) in enumerate(savings, 1):
        saved += saving
        if billions * (bytes_per_weight(needs) - saved) <= room:
            flags = " ".join(f"--set {setting}" for setting, _ in savings[:used])
            return f"it does with {flags}, which saves {billions * saved:.3g} GB"
    flags = f"{'--set critic.trunk=shared ' if 'value' in needs else ''}--set model.lora=16"
    if billions * ADAPTED[1] <= room:
        less = billions * (bytes_per_weight(needs) - ADAPTED[1])
        return f"it does with {flags}, adapters instead of every weight, which saves {less:.3g} GB"
    return (
        f"whet trains on one device, so take a model of at most {room / ADAPTED[1]:.2g} billion weights and {flags}: "
        "adapters instead of every weight"
    )


def span(low: float, high: float) -> str:
    """'112 to 126 GB', or one number where both are the same."""
    return f"{low:.3g} GB" if low == high else f"{low:.3g} to {high:.3g} GB"
