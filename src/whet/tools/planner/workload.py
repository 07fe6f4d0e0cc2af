"""What a run asks of its devices, in plain numbers: the input of a plan.

The devices of a plan: how many, how much memory, and what is published about their speed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from whet.record.speed import RolloutShape
from whet.tools.planner.shapes import ModelShape
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
    """`count` devices of the same kind."""

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


Recompute = Literal["none", "wide", "layers"]
REFERENCES = frozenset(("ref_logp", "divergence"))  # needs of an objective that a reference answers


@dataclass(frozen=True)
class Workload:
    """What one run asks of its devices. Rows without completions to sample count as prompts of a group of one."""

    shape: ModelShape
    method: str = ""
    needs: frozenset[str] = frozenset()  # of the method's objective
    prompt_tokens: int = 512
    completion_tokens: int = 512  # the longest; of an episode, all after its prompt
    prompts_per_step: int = 8
    group_size: int = 8  # rows that share a prompt: completions, leaves of episodes, or chosen and rejected
    turns: int = 1  # of an episode, at most
    written_tokens: int = 0  # of an episode by the policy; 0: all after the prompt
    leaves: int = 1  # rows of an episode that branches, at most
    branch_width: int = 2
    lacks_environment: bool = False  # the method's episodes branch, and nobody said who answers
    micro_batch_tokens: int = 16384
    updates: int = 1  # optimizer updates per step
    epochs: int = 1  # passes over the rows of a step
    samples: bool = True  # completions are written, in training or in evaluation
    draws: bool = True  # in every step
    eval_prompts: int = 0
    full_rows: bool = False  # every completion takes its whole budget; else passes fill up to micro_batch_tokens
    has_head: bool = True  # log-probabilities are trained on; a reward model has a head of one number
    compute: Literal["bf16", "fp32"] = "bf16"  # of the products
    recompute: Recompute = "wide"
    weights: Literal["float32", "bfloat16"] = "float32"  # as they are kept and learn
    moments: Literal["float32", "int8"] = "float32"  # of AdamW
    lora_rank: int = 0
    base: Literal["float32", "bfloat16", "4bit"] = "bfloat16"  # that adapters stand on
    reference: Literal["memory", "reload", "stored"] = "memory"
    critic: Literal["own", "shared"] = "own"
    critic_recompute: Recompute | None = None  # of a trunk of its own; None: as the policy's
    reward_model: ModelShape | None = None
    teacher: ModelShape | None = None  # on the policy's device
    own_teacher: bool = False  # the reference teaches
    ranks: int = 1  # that each hold a shard and write their share of the completions
    engines: int = 0  # devices that only write; 0: the ranks do
    offload: bool = False  # shards and moments in CPU memory
    on_cpu: bool = False

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "completion_tokens", "prompts_per_step", "group_size", "micro_batch_tokens"):
            if getattr(self, name) < 1:
                raise WhetError(f"{name} is {getattr(self, name)}; give 1 or more")
        longest, context = self.prompt_tokens + self.completion_tokens, self.shape.context
        if context and longest > context:
            raise WhetError(
                f"{self.prompt_tokens} prompt tokens and {self.completion_tokens} of a completion exceed the context "
                f"of {context} that {self.shape.name} has; give fewer (--prompt, --completion)"
            )

    @property
    def computed_share(self) -> float:
        """The share of all leaves' tokens after the prompt that remains when shared ones are counted once.

        The tree that shares the least: it branches after every turn from the first on, until it has its leaves, and
        its turns are of one length. Then min(width^d, leaves) branches have a turn d.
        """
        return sum(self._branches) / (self.turns * self.leaves)

    @property
    def _branches(self) -> list[int]:
        """The number of branches at each turn."""
        early = [min(self.branch_width**turn, self.leaves) for turn in range(min(self.turns, 16))]
        return early + [self.leaves] * (self.turns - len(early))

    @property
    def path_keys(self) -> float:
        """Keys that the branches of a tree see, each its whole path, per token of the tree; 0 where there is none."""
        of_turn, episodes = self._branches, self.prompts_per_rank * self.group_size // self.leaves
        flat = self.prompts_per_rank * self.prompt_tokens + episodes * self.leaves * self.completion_tokens
        if self.updates > self.epochs or not _is_made(
            round(flat - (1 - self.computed_share) * episodes * self.leaves * self.completion_tokens), flat
        ):
            return 0.0
        forks = [turn for turn in range(1, self.turns) if of_turn[turn] > of_turn[turn - 1]]
        ends = [*forks[1:], self.turns]
        stops = [self.prompt_tokens + self.completion_tokens * end / self.turns for end in ends]
        keys = sum(of_turn[turn] * stop for turn, stop in zip(forks, stops, strict=True))
        return keys / (self.completion_tokens * self.leaves * self.computed_share)

    @property
    def rollout(self) -> RolloutShape:
        """A step's rows as `whet bench` times them: what leaves share counts once."""
        rows = max(1, round(self.group_size * self.computed_share))
        return RolloutShape(self.prompts_per_step, rows, self.prompt_tokens, self.completion_tokens)

    @property
    def needs_reference(self) -> bool:
        """Whether log-probs of a frozen policy are needed."""
        return self.own_teacher or bool(REFERENCES & self.needs)

    @property
    def has_critic(self) -> bool:
        """Whether the method learns values."""
        return "value" in self.needs

    @property
    def prompts_per_rank(self) -> int:
        """Prompts of a step on the fullest rank."""
        return -(-self.prompts_per_step // self.ranks)

    @property
    def update_rows(self) -> tuple[int, int]:
        """Prompts and completions of a rank's part of an update. Several updates share a shuffle of the step's rows, in
        which few rows of an update have the same prompt."""
        per_epoch = max(1, self.updates // self.epochs)
        if per_epoch == 1:
            return self.prompts_per_rank, self.prompts_per_rank * self.group_size
        rows = -(-self.prompts_per_step * self.group_size // per_epoch)
        return -(-min(self.prompts_per_step, rows) // self.ranks), -(-rows // self.ranks)

    @property
    def passes(self) -> tuple[int, int]:
        """Tokens of the largest pass of an update, and of the largest that comes after another one, when gradients are
        there already; 0: none does."""
        return self._cut(*self.update_rows, self.updates <= self.epochs)

    @property
    def pass_tokens(self) -> int:
        """Tokens of the largest pass with a gradient."""
        return self.passes[0]

    @property
    def score_tokens(self) -> int:
        """Tokens of the largest pass without a gradient, over the rows of a step as they came."""
        return self._cut(self.prompts_per_rank, self.prompts_per_rank * self.group_size, True)[0]

    def actions(self, tokens: int, prompts: int, rows: int) -> int:
        """How many of a pass's tokens reach the vocabulary head."""
        own = rows * self.completion_tokens * self.computed_share
        written = (self.written_tokens or self.completion_tokens) / self.completion_tokens
        return max(1, round(tokens * written * own / (prompts * self.prompt_tokens + own)))

    def _cut(self, prompts: int, rows: int, together: bool) -> tuple[int, int]:
        """As `passes`, of so many completions; those that share a prompt stay together where they fit. `together`: and
        the leaves of an episode, unshuffled."""
        own = max(self.completion_tokens - 1, 0)  # nothing is predicted from a row's last token
        most, prompt = self.micro_batch_tokens, self.prompt_tokens
        every = prompts * prompt + rows * own
        tree = prompts * prompt + round(rows * own * self.computed_share)
        every = tree if together and _is_made(tree, every) else every
        if not self.full_rows:
            first = min(every, max(most, prompt + own))
            return first, min(first, every - first)
        family = -(-rows // prompts)
        fitting = family if prompt + family * own <= most else min(family, max(1, (most - prompt) // max(own, 1)))
        block, blocks = prompt + fitting * own, prompts * -(-family // fitting)
        at_once = max(1, min(blocks, most // block))
        return min(every, block * at_once), min(every, block * min(at_once, blocks - at_once))

    @property
    def matrix_type(self) -> Literal["float32", "bfloat16", "4bit"]:
        """How matrices are kept: as the base of adapters, or as they learn."""
        return self.base if self.lora_rank else self.weights

    @property
    def trained_weights(self) -> int:
        """The number of the policy's weights that learn."""
        if self.lora_rank:
            return self.shape.adapter_weights(self.lora_rank)
        unused = 0 if self.has_head or self.shape.tied else self.shape.vocabulary_weights
        return self.shape.weights - unused


def _is_made(tree: int, flat: int) -> bool:
    """Whether a trainer lays rows out as a tree of so many tokens, where shared prompts alone leave `flat`."""
    if tree >= flat:
        return False
    from whet.data.prefix_tree import is_worthwhile  # needs numpy

    return is_worthwhile(tree, flat)
