"""The decode step of a described model as few, large operations on preallocated buffers: made to be a CUDA graph."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from whet.model.decode_state import TokenRows
from whet.model.fused_weights import DecodeWeights, GroupFactors
from whet.model.norms import enter_in_place, leave_in_place, norm_whole_heads

LONG_PROMPT = 256  # tokens from which a prompt is read once for all its rows, in a pass of its own
PROGRAMS = 256  # that such a pass should have: two on each of an H200's multiprocessors
PART = 256  # keys that a program reads at least


@dataclass(frozen=True)
class Caches:
    """Keys and values: of prompts, once each, and of what rows have written. One list entry per layer."""

    tables: tuple[Tensor, Tensor]  # cosine and sine of every position, float32 [context, D]
    prompt_k: list[Tensor]  # [P, K, L, D]
    prompt_v: list[Tensor]
    lengths: Tensor  # int32 [P], tokens of each prompt
    members: Tensor  # int32 [P, M], the rows of each prompt, -1 where none
    slot: Tensor  # int32 [B], the prompt of each row, -1 where none
    own_k: list[Tensor]  # [B, K, budget, D]
    own_v: list[Tensor]

    @property
    def num_bytes(self) -> int:
        """Bytes of all keys and values."""
        return 2 * sum(cache.nbytes for cache in (*self.own_k, *self.prompt_k))


@dataclass(frozen=True)
class Workspace:
    """What a step writes on its way, for B rows. What goes into a product has columns more where adapters are apart."""

    position: Tensor  # int64 [B], of the newest token
    written: Tensor  # int64 [B], its place in the own cache; -1: nothing is kept of it
    uniform: Tensor  # float32 [B], the random number that draws the next one
    residual: Tensor  # float32 [B, W]
    normed: Tensor  # [B, W]
    qkv: Tensor
    mixed: Tensor  # [B, H D]
    added: Tensor  # [B, W]
    gate_up: Tensor
    opened: Tensor
    last: Tensor  # [B, W], what the head reads, in its dtype
    logits: Tensor  # [B, V]
    shares: tuple[Tensor, Tensor, Tensor] | None  # of long prompts: largest scores, masses, mixtures by part


def prompt_parts(weights: DecodeWeights, longest: int, prompts_at_once: int) -> int:
    """Into how many parts a pass over prompts cuts each of them; 0: every row reads its prompt itself."""
    if longest <= LONG_PROMPT:
        return 0
    enough = -(-PROGRAMS // max(1, prompts_at_once * weights.sizes.num_key_heads))
    return max(1, min(enough, longest // PART))


def workspace(weights: DecodeWeights, rows: int, parts: int) -> Workspace:
    """Buffers for steps of so many rows; `parts` as `prompt_parts` gives them."""
    sizes, dtype, device = weights.sizes, weights.dtype, weights.embedding.device

    def empty(*shape: int, kind: torch.dtype = dtype) -> Tensor:
        return torch.empty(rows, *shape, dtype=kind, device=device)

    def ranks(*groups: int) -> int:
        """Columns that the adapters of these groups of products need behind their input."""
        held = [block.factors[number] for block in weights.blocks for number in groups]
        return max((len(factors.down) for factors in held if factors is not None), default=0)

    heads, size = sizes.num_heads, sizes.head_size
    shares = None
    if parts:  # zeros: rows that are not in use read them too
        top, mass = (torch.zeros(parts, rows, heads, device=device) for _ in range(2))
        shares = (top, mass, torch.zeros(parts, rows, heads, size, device=device))
    return Workspace(
        position=empty(kind=torch.long),
        written=empty(kind=torch.long),
        uniform=empty(kind=torch.float32),
        residual=empty(sizes.width, kind=torch.float32),
        normed=empty(sizes.width + ranks(0, 2)),
        qkv=empty((heads + 2 * sizes.num_key_heads) * size),
        mixed=empty(heads * size + ranks(1)),
        added=empty(sizes.width),
        gate_up=empty(2 * sizes.inner),
        opened=empty(sizes.inner + ranks(3)),
        last=empty(sizes.width, kind=weights.head.dtype),
        logits=empty(sizes.vocabulary, kind=weights.head.dtype),
        shares=shares,
    )


def decode_step(
    weights: DecodeWeights, caches: Caches, work: Workspace, rows: TokenRows, starts: Tensor, read: Tensor
) -> Tensor:
    """Logits [B, V] behind each row's newest token, whose keys and values go to the row's own cache.

    `starts` [B] are the lengths of the rows' prompts, `read` [B] the own tokens that earlier turns left. A row that is
    done reads and keeps nothing of its own: its logits mean nothing.
    """
    from whet.model import decode_kernels, layer_kernels

    sizes = weights.sizes
    normed, mixed = work.normed[:, : sizes.width], work.mixed[:, : sizes.num_heads * sizes.head_size]
    opened = work.opened[:, : sizes.inner]
    shares = None if work.shares is None else decode_kernels.PromptShares(*work.shares)

    place, context = (work.position, work.written), len(caches.tables[0])
    decode_kernels.begin(rows, starts, read, weights.embedding, context, (*place, work.uniform, work.residual))
    added: Tensor | None = None
    for number, block in enumerate(weights.blocks):
        enter_in_place(work.residual, added, block.before_attention, sizes.epsilon, normed)
        entering, leaving, widening, narrowing = block.factors
        entered = _continued(work.normed, sizes.width, entering)
        if block.qkv_bias is None:
            torch.mm(entered, block.qkv.t(), out=work.qkv)
        else:
            torch.addmm(block.qkv_bias, entered, block.qkv.t(), out=work.qkv)
        head_norms = block.head_norms
        if head_norms is not None and len(head_norms[0]) != sizes.head_size:
            norm_whole_heads(work.qkv, head_norms, sizes.epsilon)
            head_norms = None
        heads = decode_kernels.Heads(
            sizes.num_heads, sizes.num_key_heads, sizes.head_size, sizes.scale, sizes.epsilon, caches.tables, head_norms
        )
        prompts = decode_kernels.PromptCache(
            caches.prompt_k[number], caches.prompt_v[number], caches.lengths, caches.members, caches.slot
        )
        if shares is not None:
            decode_kernels.prompt_shares(work.qkv, work.position, heads, prompts, shares)
        own = (caches.own_k[number], caches.own_v[number])
        decode_kernels.attention(work.qkv, place, heads, prompts, own, shares, mixed)
        torch.mm(_continued(work.mixed, mixed.shape[1], leaving), block.output.t(), out=work.added)
        leave_in_place(work.added, block.after_attention, sizes.epsilon)
        enter_in_place(work.residual, work.added, block.before_mlp, sizes.epsilon, normed)
        torch.mm(_continued(work.normed, sizes.width, widening), block.gate_up.t(), out=work.gate_up)
        layer_kernels.gated(work.gate_up, opened)
        torch.mm(_continued(work.opened, sizes.inner, narrowing), block.down.t(), out=work.added)
        leave_in_place(work.added, block.after_mlp, sizes.epsilon)
        added = work.added
    enter_in_place(work.residual, added, weights.last_norm, sizes.epsilon, work.last)
    torch.mm(work.last, weights.head.t(), out=work.logits)
    return work.logits


def _continued(buffer: Tensor, width: int, factors: GroupFactors | None) -> Tensor:
    """The columns of a buffer that go into a product: its input, and behind it what `down` makes of that."""
    if factors is None:
        return buffer[:, :width]
    end = width + len(factors.down)
    torch.mm(buffer[:, :width], factors.down.t(), out=buffer[:, width:end])
    return buffer[:, :end]
