"""How many operations and bytes a step needs, and what share of a machine's measured rates it reached. Pure.

P prompts, G completions per prompt, p prompt tokens, a completion tokens. Useful work is what no method can leave out:
a prompt once per group, the vocabulary head on completion positions only. Work beyond it (padding, prompts computed
again, logits built twice) shows as a lower share.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from whet.record.text import memory_text, number, percent
from whet.types import WhetError

FORWARD, TRAINING = 2, 6  # operations a weight and token: multiply and add; the backward pass costs two more forwards


@dataclass(frozen=True)
class RolloutShape:
    """The rollout of one step, every completion of the same length."""

    num_prompts: int = 4  # P
    group_size: int = 8  # G
    prompt_tokens: int = 40  # p
    completion_tokens: int = 64  # a

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value < 1:
                raise WhetError(f"{name} is {value}; give 1 or more")

    @property
    def num_sequences(self) -> int:
        """The number of completions of a step."""
        return self.num_prompts * self.group_size

    @property
    def written(self) -> int:
        """Tokens that are sampled: P G a."""
        return self.num_sequences * self.completion_tokens

    @property
    def shared(self) -> int:
        """Tokens with each prompt once per group: P (p + G a)."""
        return self.num_prompts * self.prompt_tokens + self.written

    @property
    def separate(self) -> int:
        """Tokens with the prompt in front of every completion: P G (p + a)."""
        return self.num_sequences * (self.prompt_tokens + self.completion_tokens)

    @property
    def pairs(self) -> int:
        """(token, token it attends to): P (p (p + 1) / 2 + G (a p + a (a + 1) / 2))."""
        p, a = self.prompt_tokens, self.completion_tokens
        return self.num_prompts * (p * (p + 1) // 2 + self.group_size * (a * p + a * (a + 1) // 2))

    def __str__(self) -> str:
        tokens = f"{self.prompt_tokens} + {self.completion_tokens} tokens"
        return f"{self.num_prompts} prompts x {self.group_size} completions, {tokens}"


@dataclass(frozen=True)
class Anatomy:
    """What of a model costs operations and bytes."""

    trunk_weights: int  # in the matrix products that every token goes through; of experts, those a token uses
    head_weights: int  # vocabulary times width
    attention_width: int  # heads times their size, summed over the layers
    cache_width: int  # numbers kept of a token for later ones, over all layers

    @property
    def used_weights(self) -> int:
        """The weights a token is multiplied with: the trunk's and the head's."""
        return self.trunk_weights + self.head_weights


@dataclass(frozen=True)
class Ceilings:
    """What the machine can do at best, measured."""

    matrix_rate: float  # operations per second of a large matrix product, in the type that is trained in
    bytes_rate: float  # bytes per second that a large copy reads and writes


def training_operations(anatomy: Anatomy, shape: RolloutShape) -> float:
    """Operations in one forward and backward pass over all completions of a step, nothing computed twice."""
    products = TRAINING * (anatomy.trunk_weights * shape.shared + anatomy.head_weights * shape.written)
    return products + attention_operations(anatomy, shape.pairs, TRAINING)


def attention_operations(anatomy: Anatomy, pairs: int, factor: int) -> float:
    """Scores and the weighted sum of values: two products of the attention's width a pair."""
    return 2.0 * factor * anatomy.attention_width * pairs


def rollout_operations(anatomy: Anatomy, shape: RolloutShape) -> float:
    """Operations needed to write all completions, each prompt read once."""
    heads = shape.written  # the last position of a prompt gives the first token of its completions
    products = FORWARD * (anatomy.trunk_weights * shape.shared + anatomy.head_weights * heads)
    return products + attention_operations(anatomy, shape.pairs, FORWARD)


def rollout_bytes(anatomy: Anatomy, shape: RolloutShape, bytes_per_number: int) -> float:
    """Read while writing: all weights once a token position, and the keys and values behind each token."""
    weights = anatomy.used_weights * shape.completion_tokens
    per_position = shape.num_prompts * shape.prompt_tokens + shape.num_sequences * (shape.completion_tokens + 1) / 2
    return float(bytes_per_number) * (weights + anatomy.cache_width * per_position * shape.completion_tokens)


def rollout_limit(
    anatomy: Anatomy, shape: RolloutShape, ceilings: Ceilings, bytes_per_number: int
) -> tuple[float, str]:  # tokens per second, and what sets the limit
    """The token rate at which the machine would be doing nothing but useful work, all of it at its best rate."""
    by_operations = rollout_operations(anatomy, shape) / ceilings.matrix_rate
    by_bytes = rollout_bytes(anatomy, shape, bytes_per_number) / ceilings.bytes_rate
    seconds, limit = max((by_operations, "operations"), (by_bytes, "bytes read"))
    return shape.written / seconds, limit


def tokens_that_fit(free: float, bytes_per_token: float, share: float = 0.5) -> int:
    """The largest power of two of tokens that takes at most `share` of the free memory, at least 256."""
    most = max(256.0, share * free / max(bytes_per_token, 1.0))
    return 1 << (int(most).bit_length() - 1)


@dataclass(frozen=True)
class Speed:
    """What was measured, in one place for the table and the advice."""

    title: str
    shape: RolloutShape
    dtype: str  # of the matrix products
    rates: dict[str, float]  # operations per second of a large matrix product, by dtype
    bytes_rate: float
    rollout: dict[str, float]  # seconds: total, prefill, sampling
    rollout_ceiling: tuple[float, str]
    train: float  # seconds
    operations: float  # useful ones of the training pass
    peak: float  # bytes
    bytes_per_token: float  # of a training pass, above what the process held before it
    free: float | None  # bytes of memory left on the device
    micro_batch_tokens: int
    threads: int
    by_threads: dict[int, float]  # seconds of a step, by thread count
    others: float | None  # share of the machine that others used meanwhile

    @property
    def train_share(self) -> float:
        """The share of the device's peak rate that training reached, 0 to 1."""
        return self.operations / self.train / self.rates[self.dtype]


def speed_advice(speed: Speed) -> list[str]:
    """What the numbers suggest, the most certain first; empty where nothing is to be gained."""
    advice = []
    if speed.others is not None and speed.others > 0.08:
        advice.append(f"others used {percent(speed.others)} of the machine: repeat this when it is idle")
    rate = speed.rates[speed.dtype]
    best = max(speed.rates, key=lambda name: speed.rates[name])
    short = {"float32": "fp32", "bfloat16": "bf16"}
    if speed.rates[best] > 1.5 * rate:
        advice.append(
            f"model.precision={short[best]}: its matrix products are {number(speed.rates[best] / rate)} times as fast "
            "here; try whether the run gains as much"
        )
    fastest = min(speed.by_threads, key=lambda count: speed.by_threads[count], default=speed.threads)
    if fastest != speed.threads and speed.by_threads[fastest] < 0.9 * speed.by_threads[speed.threads]:
        gain = speed.by_threads[speed.threads] / speed.by_threads[fastest]
        advice.append(f"model.threads={fastest}: a step is {number(gain)} times as fast as with {speed.threads}")
    if speed.free is not None:
        fitting = tokens_that_fit(speed.free, speed.bytes_per_token)
        if fitting < speed.micro_batch_tokens:
            advice.append(
                f"batch.micro_batch_tokens={fitting}: {speed.micro_batch_tokens} tokens of a pass would take "
                f"{memory_text(speed.micro_batch_tokens * speed.bytes_per_token)} and {memory_text(speed.free)} "
                "are free"
            )
        elif fitting >= 2 * speed.micro_batch_tokens and speed.shape.shared > speed.micro_batch_tokens:
            advice.append(f"batch.micro_batch_tokens={fitting} fits as well: fewer, larger passes")
    return advice


def speed_text(speed: Speed) -> str:
    """The small table of `whet bench`."""
    shape, total = speed.shape, speed.rollout["total"]
    parts = {"prefill": speed.rollout["prefill"], "sampling": speed.rollout["sampling"]}
    parts["decoding"] = max(0.0, total - sum(parts.values()))
    shares = ", ".join(f"{name} {percent(parts[name] / total)}" for name in ("prefill", "decoding", "sampling"))
    ceiling, limit = speed.rollout_ceiling
    lines = [speed.title, str(shape), ""]
    for name, rate in speed.rates.items():
        lines.append(_line("ceiling" if name == next(iter(speed.rates)) else "", f"{name} product", rate_text(rate)))
    lines += [
        _line("", "memory copy", f"{memory_text(speed.bytes_rate)}/s"),
        _line("rollout", f"{number(shape.written / total)} tokens/s", f"{number(total)} s: {shares}"),
        _line("", f"{percent(shape.written / total / ceiling)} of the ceiling", f"{number(ceiling)}, set by {limit}"),
        _line("training", f"{number(shape.shared / speed.train)} tokens/s", f"{number(speed.train)} s, prompts once"),
        _line(
            "", f"{percent(speed.train_share)} of the ceiling", f"{rate_text(speed.operations / speed.train)} useful"
        ),
        _line("memory", memory_text(speed.peak), f"{memory_text(speed.bytes_per_token)} per token of a training pass"),
    ]
    advice = speed_advice(speed) or ["nothing to gain from threads, precision or micro_batch_tokens"]
    return "\n".join([*lines, "", *(f"- {line}" for line in advice)])


def _line(head: str, value: str, about: str) -> str:
    return f"{head:10}{value:26}{about}"


def rate_text(rate: float) -> str:
    """A rate of operations per second as text."""
    return f"{number(rate / 1e12)} TFLOP/s" if rate >= 1e12 else f"{number(rate / 1e9)} GFLOP/s"
