"""The devices of a plan: how many, how much memory, and what is published about their speed."""

from __future__ import annotations

import re
from dataclasses import dataclass

from whet.types import WhetError, did_you_mean

GIGA = 1e9
MOST_DEVICES = 1_000_000
LEAST_MEMORY, MOST_MEMORY = 0.1e9, 10_000e9  # bytes


@dataclass(frozen=True)
class Card:
    """A kind of device. DeviceRates are the vendor's peaks, used only to scale what was measured on another card."""

    name: str
    memory: float  # bytes that CUDA reports
    matrix_rate: float  # dense bf16 operations per second
    bytes_rate: float  # of its memory
    link_rate: float = 25e9  # bytes per second to another card: PCIe unless said


# NVIDIA's data sheets: dense bf16 with fp32 sums (half of the figure with sparsity), memory and NVLink bandwidth.
CARDS: dict[str, Card] = {
    card.name.lower(): card
    for card in (
        Card("H200", 150.1e9, 989e12, 4.8e12, 450e9),
        Card("H100", 85.0e9, 989e12, 3.35e12, 450e9),
        Card("A100-80GB", 85.0e9, 312e12, 2.04e12, 300e9),
        Card("A100-40GB", 42.4e9, 312e12, 1.56e12, 300e9),
        Card("L40S", 47.7e9, 362e12, 0.864e12),
        Card("A10", 24.0e9, 125e12, 0.6e12),
        Card("L4", 24.0e9, 121e12, 0.3e12),
        Card("RTX4090", 25.4e9, 165e12, 1.01e12),
        Card("RTX3090", 25.4e9, 71e12, 0.936e12),
    )
}
MEASURED_ON = CARDS["h200"]
WRITTEN = re.compile(r"(?:(\d+)\s*x\s*)?(?:(\d+(?:\.\d+)?)\s*(GB|GiB)|([A-Za-z]\w*(?:-\w+)?))", re.IGNORECASE)


@dataclass(frozen=True)
class Devices:
    """`count` devices alike."""

    count: int
    memory: float  # bytes of each
    card: Card | None = None  # None: only the memory is known
    is_cpu: bool = False

    def __str__(self) -> str:
        what = "CPU" if self.is_cpu else self.card.name if self.card else "GPU"
        return f"{self.count} x {what} with {self.memory / GIGA:.4g} GB"


def devices(text: str) -> Devices:
    """`8x80GB`, `80GB`, `2xH100`, `cpu` with its memory as `cpu:16GB`."""
    plain = text.strip()
    is_cpu = plain.lower().startswith("cpu:")
    written = WRITTEN.fullmatch(plain[4:] if is_cpu else plain)
    if written is None or (is_cpu and not written[2]):
        raise WhetError(
            f"--gpus is {text!r}; give a count and a memory such as 8x80GB, a card such as 2xH100, or cpu:16GB"
        )
    count = int(written[1]) if written[1] else 1
    if not 1 <= count <= MOST_DEVICES:
        raise WhetError(f"--gpus is {text!r}: {count} devices; give 1 to {MOST_DEVICES:,}")
    if is_cpu and count > 1:
        raise WhetError(f"--gpus is {text!r}: one CPU memory is planned for; give cpu:{written[2]}{written[3]}")
    if written[4]:
        card = CARDS.get(written[4].lower())
        if card is None:
            near = did_you_mean(written[4].lower(), CARDS)
            raise WhetError(
                f"--gpus is {text!r}: no card is called {written[4]!r}{near}; give one of "
                f"{', '.join(card.name for card in CARDS.values())}, or its memory, such as {count}x80GB"
            )
        return Devices(count, card.memory, card)
    memory = float(written[2]) * (2**30 if written[3].lower() == "gib" else GIGA)
    if not LEAST_MEMORY <= memory <= MOST_MEMORY:
        raise WhetError(f"--gpus is {text!r}: {written[2]} {written[3]} each; give 0.1 to 10000 GB")
    return Devices(count, memory, is_cpu=is_cpu)
