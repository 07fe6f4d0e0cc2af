"""The memory of a run, copy by copy: what whet allocates, when it is alive, and the arithmetic behind each number.

W width, F width of the MLP, H heads and K key heads of size D, V vocabulary, L layers; N weights, S tokens of a
training pass, A of them with a loss.

A run goes through three phases: completions are written (rollout), scored without a gradient (scores), learned from
(train). What it needs is the largest of the three.

Gradients are dropped when an update begins, grow in the backward pass of its first micro-batch, and stay until the next
update begins. So an update has moments of its own (`_moments`), and the largest counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

from whet.tools.planner.workload import GIGA, Devices, Workload

Phase = Literal["rollout", "scores", "train"]
Part = tuple[str, float, str]  # of a moment: what, bytes, formula
PHASES: tuple[Phase, ...] = ("rollout", "scores", "train")

# Constants of the code that allocates; a test holds them together.
CHUNK_ELEMENTS = 1 << 23  # whet.model.head: logits of a chunk, times 8 on a device, times 3 with its kernels
DEVICE_CHUNKS, KERNEL_CHUNKS = 8, 3
PREFILL_TOKENS = 1 << 14  # whet.rollout.scheduler
GPU_ROWS, CPU_ROWS = 1024, 512  # whet.rollout.torch_engine: completions side by side
SMALLEST = 16  # whet.rollout.cuda_decode
KEPT_SHARE, USED_SHARE, MERGED_SHARE = 1 / 16, 0.6, 1 / 16
BLOCK = 64  # tokens that a prompt's place is rounded up to
GRADIENTS = ": gradients, "  # in the name of a line

# CUDA context, kernels and libraries, outside torch's allocator: measured 0.81 GiB in most configurations of
# results/gpu_plan_check.json (`outside_GiB`: 0.74 to 0.81 GiB, once 1.28; H200, torch 2.11). Of one card alone.
CONTEXT_BYTES = 0.813 * 2**30
# Held by the allocator beyond its tensors, rounding and gaps, as a share of them: the median of the same file
# (`reserved_GiB` over `peak_GiB`; 2% to 8% in 13 configurations and 20% in one). It is no bound.
SLACK = 0.05
# Resident beside the tensors on a CPU: Python, torch, transformers. Measured: 0.393 to 0.399 GiB at the peak of runs of
# tiny models (`benchmarks/plan_check.py --cpu --tiny`, aarch64, torch 2.13).
CPU_PROCESS = 0.396 * 2**30


@dataclass(frozen=True)
class MemoryLine:
    """One item of the memory table."""

    name: str
    bytes: float
    formula: str  # with the numbers in it
    phases: tuple[Phase, ...] = PHASES

    @property
    def gigabytes(self) -> float:
        """The bytes in units of 10^9."""
        return self.bytes / GIGA

    @property
    def stands(self) -> bool:
        """Whether the memory stays occupied between updates."""
        return {"rollout", "scores"} <= set(self.phases)


@dataclass(frozen=True)
class MemoryPlan:
    """The memory of one device, line by line."""

    lines: tuple[MemoryLine, ...]
    rows: int  # completions written side by side; 0: none are
    wanted_rows: int
    budget: float  # bytes that a device has
    outside: float = 0.0  # beside the tensors: the allocator's gaps and the context of CUDA
    loading: float = 0.0  # bytes while a model in shards is still whole: every rank reads all of it first

    def of(self, phase: Phase) -> float:
        """Bytes that torch allocates in a phase."""
        return sum(line.bytes for line in self.lines if phase in line.phases)

    @property
    def allocated(self) -> float:
        """The peak of what torch allocates."""
        return max(self.loading, *(self.of(phase) for phase in PHASES))

    @property
    def peak_phase(self) -> str:
        """The phase that needs the most."""
        phase = max(PHASES, key=self.of)
        return "load" if self.loading > self.of(phase) else phase

    @property
    def total(self) -> float:
        """Bytes that the device must have."""
        return self.allocated + self.outside

    @property
    def fits(self) -> bool:
        """Whether the peak is within the budget."""
        return self.total <= self.budget


def memory_plan(work: Workload, devices: Devices) -> MemoryPlan:
    """The plan for one of the devices."""
    models = [*_weights(work), *_others(work)]
    training, grown = _training(work, models)
    lines = [  # gradients that have not grown yet at the largest moment of an update
        replace(line, phases=("rollout", "scores")) if GRADIENTS in line.name and line.name not in grown else line
        for line in models
    ]
    lines += [*_gathered(work), *training, *_scoring(work)]
    lines += _merged_adapters(work, devices.memory)
    standing = sum(line.bytes for line in lines if line.stands)
    wanted, rows = 0, 0
    if work.samples:
        wanted = _wanted_rows(work)
        rows = wanted if work.on_cpu else _rows_that_fit(work, wanted, devices.memory - CONTEXT_BYTES - standing)
        lines += _sampler(work, rows, devices.memory)
    copies = sum(line.bytes for line in lines if line.name.startswith("sampler: a whole copy"))
    loading = 4 * work.shape.weights + copies if work.ranks > 1 else 0.0
    nonzero = tuple(line for line in lines if line.bytes > 0)
    plan = MemoryPlan(nonzero, rows, wanted, devices.memory, loading=loading)
    outside = CPU_PROCESS if work.on_cpu else CONTEXT_BYTES + SLACK * plan.allocated
    return replace(plan, outside=outside)


def _times(count: float, size: float) -> str:
    return f"{count / 1e6:,.1f}M weights x {size:g} bytes"


def _weights(work: Workload) -> Iterator[MemoryLine]:
    """The memory of the policy: its weights, gradients and optimizer states."""
    yield from _model(work, "policy", work.samples)
    trained = work.trained_weights
    kind = f"adapters of rank {work.lora_rank}" if work.lora_rank else "policy"
    if work.lora_rank:
        yield MemoryLine(f"{kind}: weights, fp32, and a copy for the products", 6 * trained, _times(trained, 6))
    yield from _states(work, kind, trained)


def _shards(work: Workload) -> tuple[float, str]:
    """What of a weight and its states lies on one device, and how to say it."""
    if work.ranks == 1:
        return 1.0, ""
    return (0.0, " (offloaded)") if work.offload else (1 / work.ranks, f" / {work.ranks} ranks")


def _gathered(work: Workload) -> Iterator[MemoryLine]:
    """What a sharded model gathers: layers while they are computed, the embedding and head for a whole pass, and the
    sampler's whole copy."""
    if work.ranks == 1:
        return
    shape, size = work.shape, _product_bytes(work)
    around = (1 if shape.tied else 2) * shape.vocabulary_weights
    layers = 2 * size * shape.layer_weights
    yield MemoryLine("two layers, gathered", layers, _times(2 * shape.layer_weights, size), ("scores", "train"))
    yield MemoryLine("embedding and head, gathered, fp32", 4 * around, _times(around, 4), ("scores", "train"))
    if not work.lora_rank:
        yield MemoryLine("their gradient before it is summed, fp32", 4 * around, _times(around, 4), ("train",))
    if work.samples:
        trunk = shape.trunk_weights
        total = size * trunk + (4 + (2 if size == 2 else 0)) * around
        words = f"{_times(trunk, size)} + {_times(around, 6 if size == 2 else 4)} of embedding and head"
        yield MemoryLine("sampler: a whole copy of the policy", total, words)


def _model(work: Workload, whose: str, samples: bool) -> Iterator[MemoryLine]:
    """The memory of kept weights and of those that products read: the same where that is bf16, else a copy."""
    shape, count = work.shape, work.shape.weights
    if work.ranks > 1:
        share, note = _shards(work)
        size = 4 if work.matrix_type == "float32" else 2
        name = "fp32" if size == 4 else "bf16"
        yield MemoryLine(f"{whose}: weights in shards, {name}", size * share * count, _times(count, size) + note)
        return
    if work.matrix_type == "float32":
        yield MemoryLine(f"{whose}: weights, fp32", 4 * count, _times(count, 4))
        if work.lora_rank:
            adapted, size = shape.adapted_weights, 4 if work.on_cpu else 2
            yield MemoryLine(f"{whose}: what the adapters stand on", size * adapted, _times(adapted, size))
        if work.compute == "bf16":
            yield MemoryLine(f"{whose}: copy for the products, bf16", 2 * count, _times(count, 2))
        elif samples and not work.on_cpu:
            yield MemoryLine(f"{whose}: copy for the sampler, fp32", 4 * count, _times(count, 4))
        return
    packed = shape.adapted_weights if work.matrix_type == "4bit" else 0
    if packed:
        bits = 0.5 + 4 / 64  # one scale of four bytes for 64 numbers
        yield MemoryLine(f"{whose}: base in 4 bits", bits * packed, _times(packed, bits))
    yield MemoryLine(f"{whose}: weights, bf16, one copy", 2 * (count - packed), _times(count - packed, 2))
    head = 0 if work.on_cpu else shape.vocabulary_weights
    yield MemoryLine(f"{whose}: the head once more, fp16", 2 * head, _times(head, 2))


def _states(work: Workload, whose: str, trained: int) -> Iterator[MemoryLine]:
    """What learning adds: gradients as the weights are kept, and AdamW's moments."""
    narrow = work.weights == "bfloat16" and not work.lora_rank
    size, name = (2, "bf16") if narrow else (4, "fp32")
    share, note = _shards(work)
    yield MemoryLine(f"{whose}: gradients, {name}", size * share * trained, _times(trained, size) + note)
    bytes_per_weight, kind = 8.0, "fp32"
    if work.moments == "int8":
        bytes_per_weight, kind = 2 + 8 / 256, "int8"  # two bytes, and two scales of four bytes for 256 numbers
    yield MemoryLine(
        f"{whose}: AdamW's two moments, {kind}",
        bytes_per_weight * share * trained,
        _times(trained, bytes_per_weight) + note,
    )


def _others(work: Workload) -> Iterator[MemoryLine]:
    """Reference, critic, teacher and reward model."""
    shape, count = work.shape, work.shape.weights
    if work.needs_reference and not work.lora_rank and work.reference != "stored":
        phases: tuple[Phase, ...] = PHASES if work.reference == "memory" else ("scores",)
        read = "" if work.reference == "memory" else ", read at every step"
        for line in _model(work, f"reference{read}", False):
            yield MemoryLine(line.name, line.bytes, line.formula, phases)
    if work.has_critic and work.critic == "own":
        learns = work.trained_weights if work.lora_rank else count - (0 if shape.tied else shape.vocabulary_weights)
        yield from _model(work, "critic", False)
        yield from _states(work, "critic", learns)
    if work.teacher is not None:
        size, held = _product_bytes(work), work.teacher.weights
        yield MemoryLine(f"teacher ({work.teacher.name})", size * held, _times(held, size))
    if work.reward_model is not None:
        size = 4 if work.on_cpu else 2
        held = work.reward_model.weights
        yield MemoryLine(f"reward model ({work.reward_model.name})", size * held, _times(held, size))


def _product_bytes(work: Workload) -> int:
    return 2 if work.compute == "bf16" else 4


def saved_bytes_per_token(work: Workload) -> tuple[float, str]:
    """Bytes that one layer keeps of a token for the backward pass, and how they come about."""
    shape, size = work.shape, _product_bytes(work)
    width, heads = shape.hidden, shape.heads * shape.head_size
    side_by_side = (shape.heads + 2 * shape.key_heads) * shape.head_size
    padded, padded_words = 2 * size * (heads + side_by_side), f" + {2 * size} (2 H + 2 K) D for padded rows"
    if work.recompute == "layers":
        # without kernels for ragged rows the graph of attention is no saved tensor, which a second pass would replace
        return (4 + size) * width + padded * work.on_cpu, f"{4 + size} W{padded_words * work.on_cpu}"
    total: float = 8 * width + size * heads + size * side_by_side + 4 * shape.heads
    words = f"8 W + {size} H D + {size} (H + 2 K) D + 4 H"
    if shape.head_norms:
        total, words = total + size * side_by_side, f"{words} + {size} (H + 2 K) D for the norms of heads"
    if work.on_cpu:  # attention without kernels for ragged rows keeps padded copies of its inputs and its output
        total, words = total + padded, f"{words}{padded_words}"
    if work.recompute == "none":
        total, words = total + 2 * size * shape.inner, f"{words} + {2 * size} F"
    return total, words


def _layer_backward(work: Workload, tokens: int) -> tuple[float, str]:
    """Bytes at work while one layer's gradient is computed, in a pass over S tokens."""
    shape, size = work.shape, _product_bytes(work)
    side_by_side = (shape.heads + 2 * shape.key_heads) * shape.head_size
    wide = 5 if work.recompute != "none" else 3
    token = wide * size * shape.inner + size * (shape.heads * shape.head_size + side_by_side)
    token += (12 + 5 * size) * shape.hidden
    again = 0.0
    if work.recompute == "layers":
        again, _ = saved_bytes_per_token(replace(work, recompute="wide"))
    grads = 0 if work.lora_rank else (2 if work.weights == "bfloat16" else 4) * shape.layer_weights
    total = tokens * (token + again) + grads
    words = f"S ({wide * size} F + {size} (2 H + 2 K) D + {12 + 5 * size} W) + 4 bytes x a layer's weights"
    return total, words


def chunk_rows(work: Workload) -> int:
    """Tokens whose logits are built at a time."""
    rows = max(1, CHUNK_ELEMENTS * (1 if work.on_cpu else DEVICE_CHUNKS) // work.shape.vocabulary)
    return rows if work.on_cpu else rows * KERNEL_CHUNKS


def _head(work: Workload, learns: bool, actions: int) -> Iterator[Part]:
    """The vocabulary head on A states."""
    shape, size = work.shape, _product_bytes(work)
    rows = min(actions, chunk_rows(work))
    copies = 1 + learns if size == 2 and not work.on_cpu else int(size == 2)
    shares = 2 if work.on_cpu else 1
    trains = learns and not work.lora_rank
    weight = shape.vocabulary_weights
    chunk = shares * size * rows * shape.vocabulary
    buffers = size * copies * weight + (4 + (size if size == 2 else 0)) * weight * trains
    yield "head: a chunk of logits", chunk, f"{rows:,} tokens x V x {shares * size} bytes"
    if buffers:
        words = [f"{copies} copies of the weight x {size} bytes"] if copies else []
        words += ["its gradient x 4 bytes, and one product"] if trains else []
        yield "head: weight and gradient", buffers, f"V W x ({' + '.join(words)})"
    if work.on_cpu:  # measured on aarch64: a product packs the weight, and the entropy multiplies a chunk by another
        packed = max(size * weight, size * rows * shape.vocabulary)
        yield "head: within a product", packed, f"V x the larger of W and {rows:,} tokens x {size} bytes"
    states = (8 + 4 * learns + copies * size) * actions * shape.hidden
    yield "head: states and their gradients", states, f"A W x {8 + 4 * learns + copies * size} bytes"


@dataclass(frozen=True)
class _Moment:
    """One moment of an update: the parts at work, and the names of the gradients that are held in full."""

    parts: tuple[Part, ...]
    grown: frozenset[str]


def _moments(work: Workload, gradients: Sequence[MemoryLine]) -> Iterator[_Moment]:
    """The moments that may use the most memory. The critic's trunk is walked back before the policy's."""
    shape, pairs = work.shape, work.update_rows
    every = frozenset(line.name for line in gradients)
    of_critic = frozenset(name for name in every if name.startswith("critic"))
    apart = work.has_critic and work.critic == "own"
    critic = replace(work, recompute=work.critic_recompute or work.recompute)
    learns = work.has_head and not work.lora_rank
    matrix, words = 4.0 * shape.vocabulary_weights, "V W x 4 bytes"
    waiting: Part = ("gradient of the tied head, waiting for the embedding's", matrix * (learns and shape.tied), words)
    for tokens, follows in zip(work.passes, (False, True), strict=True):
        if not tokens:
            continue
        there, actions = every if follows else frozenset(), work.actions(tokens, *pairs)
        held = _activations(work, "", tokens)
        layer = ("backward pass of a layer", *_layer_backward(work, tokens))
        if apart:
            known = work.updates == 1  # then it was taken in the forward pass
            early: Part = ("head: its gradient, waiting", matrix * (learns and known), words)
            again = ("backward pass of a layer", *_layer_backward(critic, tokens))
            yield _Moment((held, _activations(critic, "critic: ", tokens), again, early), there)
        new: Part = ("gradient of the head", matrix * (learns and not shape.tied and not follows), words)
        if work.has_head:
            yield _Moment((held, *_head(work, True, actions)), there | of_critic)
        yield _Moment((held, layer, waiting, new), there | of_critic)
        last: Part = ("gradient of the embedding, not yet added", matrix * (not work.lora_rank), words)
        yield _Moment((layer,), every)
        yield _Moment((last, waiting) if follows else (waiting,), every)


def _activations(work: Workload, whose: str, tokens: int) -> Part:
    saved, words = saved_bytes_per_token(work)
    layers = work.shape.layers
    # Measured (aarch64; 4 turns and 4 leaves, 6 and 8): without kernels for ragged rows a tree holds about
    # as much more than chains as a copy of each branch's path would take, to a twentieth.
    if work.on_cpu and work.path_keys:
        saved += work.path_keys * 2 * work.shape.heads * work.shape.head_size * _product_bytes(work)
        words = f"{words} + {work.path_keys:.1f} keys and values of paths x H D x {_product_bytes(work)}"
    formula = f"S = {tokens:,} tokens x L = {layers} x ({words} = {saved:,.0f} bytes)"
    return f"{whose}activations, recompute={work.recompute}", tokens * layers * saved, formula


def _training(work: Workload, copies: Sequence[MemoryLine]) -> tuple[list[MemoryLine], frozenset[str]]:
    """The largest moment of an update, and the gradients that are there in full."""
    gradients = [line for line in copies if GRADIENTS in line.name]

    def needed(moment: _Moment) -> float:
        grown = sum(line.bytes for line in gradients if line.name in moment.grown)
        return grown + sum(size for _, size, _ in moment.parts)

    largest = max(_moments(work, gradients), key=needed)
    lines = [MemoryLine(name, size, words, ("train",)) for name, size, words in largest.parts]
    if work.has_head and not any(line.name.startswith("head: a chunk") for line in lines):
        parts = _head(work, True, work.actions(work.pass_tokens, *work.update_rows))
        lines += [MemoryLine(name, size, words, ()) for name, size, words in parts]  # at another moment
    return lines, largest.grown


def _forward(work: Workload, tokens: float) -> tuple[float, str]:
    """Bytes at work in a forward pass that keeps nothing."""
    shape, size = work.shape, _product_bytes(work)
    token = (12 + 4 * size) * shape.hidden + size * (2 * shape.heads + 2 * shape.key_heads) * shape.head_size
    token += 3 * size * shape.inner
    words = f"{tokens:,.0f} tokens x ({12 + 4 * size} W + {size} (2 H + 2 K) D + {3 * size} F = {token:,} bytes)"
    return tokens * token, words


def _scoring(work: Workload) -> Iterator[MemoryLine]:
    """Passes without a gradient: the reference, the policy as it was, the critic's values, the teacher."""
    if work.teacher is not None:
        forward, words = _forward(replace(work, shape=work.teacher), work.score_tokens)
        yield MemoryLine("teacher: forward pass, nothing kept", forward, words, ("scores",))
    if not (work.needs_reference or work.has_critic or work.updates > 1):
        return
    forward, words = _forward(work, work.score_tokens)
    rows = work.prompts_per_rank * work.group_size
    head = list(_head(work, False, work.actions(work.score_tokens, work.prompts_per_rank, rows)))
    if sum(size for _, size, _ in head) > forward:
        for name, size, words in head:
            yield MemoryLine(name, size, words, ("scores",))
    else:
        yield MemoryLine("forward pass, nothing kept", forward, words, ("scores",))


def _merged_adapters(work: Workload, memory: float) -> Iterator[MemoryLine]:
    """The sampler's copies of matrices with the adapters in them, where they take little of the device."""
    size = 2 * work.shape.adapted_weights
    apart = work.lora_rank and work.base == work.matrix_type == "bfloat16" and work.compute == "bf16"
    if apart and work.samples and not work.on_cpu and work.ranks == 1 and size <= MERGED_SHARE * memory:
        yield MemoryLine("sampler: matrices with the adapters in them, bf16", size, _times(size / 2, 2))


def _requests(work: Workload) -> int:
    """Completions that a rank writes at a time."""
    drawn = work.prompts_per_rank * work.group_size if work.draws else 0
    return max(drawn, -(-work.eval_prompts // work.ranks), 1)


def _wanted_rows(work: Workload) -> int:
    if work.on_cpu:
        return min(CPU_ROWS, _requests(work))
    return min(GPU_ROWS, ceil(_requests(work) / SMALLEST) * SMALLEST)


def _bytes_per_token(work: Workload) -> int:
    return work.shape.cache_width * _product_bytes(work)


def _rows_that_fit(work: Workload, rows: int, free: float) -> int:
    """The rows the sampler would decode at once: those that fit in six tenths of free memory, or the smallest graph."""
    group = min(work.group_size if work.draws else 1, 32)
    share = work.prompt_tokens / group
    prompt = max((2 if group > 1 else 1.125) * share, min(8 * share, work.completion_tokens))
    if work.turns > 1:
        prompt = _slots_per_row(work) * work.prompt_tokens
    logits = 2 * work.shape.vocabulary * _product_bytes(work)
    bytes_per_row = _bytes_per_token(work) * (work.completion_tokens + prompt) + logits
    fitting = int(USED_SHARE * max(free, 0) / bytes_per_row) // SMALLEST * SMALLEST
    return max(SMALLEST, min(rows, fitting))


def _slots_per_row(work: Workload) -> float:
    """Prompt slots per row of conversations, as a session of the sampler sets them."""
    return 1.0 if work.on_cpu else min(1.0, max(0.25, work.completion_tokens / work.prompt_tokens))


def _sampler(work: Workload, rows: int, memory: float) -> Iterator[MemoryLine]:
    shape, size = work.shape, _product_bytes(work)
    bytes_per_token, budget = _bytes_per_token(work), work.completion_tokens
    group = min(work.group_size if work.draws else 1, 32, rows)
    num_prompts = ceil(_requests(work) / group)
    longest = ceil(work.prompt_tokens / BLOCK) * BLOCK
    at_once = ceil(rows / group)
    if work.on_cpu:
        slots, longest = min(num_prompts, rows, 2 * at_once + 1), work.prompt_tokens
    else:
        least = int((2 if group > 1 else 1.125) * at_once) + 1
        slots = min(num_prompts, max(least, min(8 * at_once, rows * budget // longest)))
    if work.turns > 1:
        slots = max(1, int(_slots_per_row(work) * rows))
    own, prompts = rows * budget * bytes_per_token, slots * longest * bytes_per_token
    stays = not work.on_cpu and own + prompts <= KEPT_SHARE * memory
    phases: tuple[Phase, ...] = PHASES if stays else ("rollout",)
    per_token = (
        f"L = {shape.layers} x 2 x K D = {shape.key_heads * shape.head_size} x {size} bytes = {bytes_per_token:,}"
    )
    yield MemoryLine(
        "sampler: keys and values of completions", own, f"{rows} rows x {budget} tokens x ({per_token})", phases
    )
    yield MemoryLine(
        "sampler: keys and values of prompts",
        prompts,
        f"{slots} prompts x {longest} tokens x {bytes_per_token:,}",
        phases,
    )
    log = rows * (budget + 1) * 16 + slots * shape.vocabulary * 4
    if work.on_cpu:
        copy = 4 * (shape.trunk_weights if work.compute == "fp32" else 0)
        yield MemoryLine("sampler: weights of the layers side by side, fp32", copy, _times(copy / 4, 4), phases)
        draws = 2 * 4 * rows * shape.vocabulary
        yield MemoryLine("sampler: logits and their distribution", draws, f"{rows} rows x V x 8 bytes", ("rollout",))
        return
    graph = size * (4 * shape.hidden + 3 * shape.inner + shape.vocabulary) + 4 * shape.hidden
    graph += size * (2 * shape.heads + 2 * shape.key_heads) * shape.head_size
    words = f"{rows} rows x (V x {size} + W x {4 * size + 4} + F x {3 * size} + ...) and a log"
    yield MemoryLine("sampler: buffers of the CUDA graphs", rows * graph + log, words, phases)
    prefill, prefill_words = _forward(work, min(PREFILL_TOKENS, slots * work.prompt_tokens))
    draw = 8 * rows * shape.vocabulary
    if prefill > draw:
        yield MemoryLine("sampler: a pass over prompts", prefill, prefill_words, ("rollout",))
    else:
        yield MemoryLine("sampler: the first tokens", draw, f"{rows} rows x V x 8 bytes", ("rollout",))
