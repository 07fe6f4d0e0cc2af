"""The calls of an episode, as the tree they are: what was sampled once is never tokenised again.

A request whose messages begin with an earlier request and the completion it got goes on from there: its prompt is the
earlier prompt, the tokens as they were sampled, and what the template writes after them. Everything else is a root of
its own: another system prompt, a sub-agent, a history that the client has changed. What the client wrote itself, or
changed, is context and carries no loss.

Each leaf is a sample. Branches of an episode share its name, so that an objective can average them.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from whet.envs.serve.wire import ReportedReward, message_key
from whet.rollout.expert_log import joined_experts
from whet.rollout.scheduler import joined_support
from whet.types import Message, Sample, StopReason, Support, Turn


@dataclass(eq=False)
class ModelCall:
    """One completion that a client asked for."""

    prompt: tuple[int, ...]
    observed: tuple[Turn, ...]  # what stands between the parent's completion and this one, with its place
    parent: ModelCall | None = None
    sample: Sample | None = None  # of the engine: prompt and completion
    text: str = ""  # the completion, calls included
    calls_tools: int = 0
    malformed: int = 0
    role: str = ""  # whom the policy plays
    is_constrained: bool = False  # drawn from what a grammar left of the policy's distribution
    is_delivered: bool = False  # the client got it, as far as can be known
    request: tuple[int, int] | None = None  # (session, number) of the engine's request whose keys and values it has

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens of the prompt and the completion."""
        return self.prompt if self.sample is None else tuple(self.sample.tokens.tolist())

    @property
    def path(self) -> list[ModelCall]:
        """The calls from the root to this one."""
        calls = [self]
        while calls[-1].parent is not None:
            calls.append(calls[-1].parent)
        return calls[::-1]


@dataclass(eq=False)
class CallRecord:
    """The calls of one episode, or of everybody who uses a server without episodes."""

    name: str = ""
    number: int = 0  # of the episode in its batch: calls are admitted in this order
    seed: tuple[int | str, ...] = (0,)
    most_calls: int = 0  # 0: no limit
    most_tokens: int = 0  # after the first prompt of a conversation; 0: the context
    keeps: int = 0  # how many calls are remembered; 0: all
    is_open: bool = True
    ended_by: StopReason | None = None  # the limit it ran into
    reward: ReportedReward = None
    is_scored: bool = False  # the program reported a reward, be it None
    metrics: dict[str, float] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    calls: list[ModelCall] = field(default_factory=list)
    num_calls: int = 0
    _known: OrderedDict[bytes, ModelCall] = field(default_factory=OrderedDict)  # by all that was said
    _asked: Counter[bytes] = field(default_factory=Counter)  # how often a prompt was asked for

    def find(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> tuple[ModelCall, int] | None:
        """The newest completion that these messages continue, and how many of them it covers."""
        keys = _prefix_keys(messages, tools)
        for length in range(len(messages) - 1, 0, -1):
            if messages[length - 1]["role"] == "assistant" and (call := self._known.get(keys[length - 1])) is not None:
                return call, length
        return None

    def longest_prefix(self, tokens: tuple[int, ...]) -> ModelCall | None:
        """The call with the most tokens that these begin with."""
        known = [call for call in self.calls if call.sample is not None and tokens[: len(call.tokens)] == call.tokens]
        return max(known, key=lambda call: len(call.tokens), default=None)

    def remember(
        self, call: ModelCall, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], answer: Message
    ) -> None:
        """Note what was sent to the client, so that a later request can continue from it."""
        key = _prefix_keys([*messages, answer], tools)[-1]
        self._known[key] = call
        self._known.move_to_end(key)
        while self.keeps and len(self._known) > self.keeps:
            self._known.popitem(last=False)

    def add(self, call: ModelCall) -> None:
        """Count a call; it is stored only where the record keeps all calls (`keeps` is 0)."""
        self.num_calls += 1
        if not self.keeps:
            self.calls.append(call)

    def call_seed(self, prompt: Sequence[int]) -> tuple[int | str, ...]:
        """A seed for the next completion of a prompt: the order in which calls arrive has no part in it."""
        if self.keeps:
            self._asked[b""] += 1
            return (*self.seed, self._asked[b""])
        digest = hashlib.sha256(json.dumps(list(prompt)).encode()).digest()
        self._asked[digest] += 1
        return (*self.seed, digest.hex(), self._asked[digest])

    def room(self, call: ModelCall, context: int) -> int:
        """Tokens that the completion of a call may have."""
        rooms = [context - len(call.prompt)] if context else []
        if self.most_tokens:
            rooms.append(self.most_tokens - (len(call.prompt) - len(call.path[0].prompt)))
        return min(rooms) if rooms else 2**31

    def score(self, reward: ReportedReward, metrics: Mapping[str, float]) -> None:
        """Take a report; the newest counts."""
        self.reward, self.is_scored = reward, True
        self.metrics.update(metrics)

    def earned(self, role: str) -> float | None:
        """What a role is paid: its own reward, or the one that all share."""
        return self.reward.get(role) if isinstance(self.reward, dict) else self.reward

    def samples(self, decode: Any, fallback: Sequence[int], failed: bool) -> list[Sample]:
        """A sample for each leaf, in an order that does not depend on time; one without actions where there is none.

        `fallback` are the tokens of an episode in which nothing was sampled. A completion that no client got is left
        out; what it went on from is not.
        """
        written = [call for call in self.calls if call.sample is not None]
        got = [call for call in written if call.is_delivered]
        continued = {call for delivered in got for call in delivered.path[:-1]}
        self.counts["undelivered_calls"] += sum(not call.is_delivered and call not in continued for call in written)
        leaves = sorted((call for call in got if call not in continued), key=lambda leaf: leaf.tokens)
        stop = StopReason.FAILED if failed else self.ended_by or StopReason.END
        samples = [self._sample(leaf, decode, stop, None if failed else self.earned(leaf.role)) for leaf in leaves]
        if not samples:
            nothing = torch.zeros(len(fallback))
            tokens = torch.tensor(list(fallback), dtype=torch.long)
            ended = StopReason.FAILED if failed or self.ended_by is None else self.ended_by
            samples = [Sample(tokens, nothing.bool(), nothing, (0, 0), ended, "", episode=self.name)]
        return samples

    def _sample(self, leaf: ModelCall, decode: Any, stop: StopReason, returned: float | None) -> Sample:
        assert leaf.sample is not None
        path = leaf.path
        tokens = leaf.sample.tokens
        action, logp = torch.zeros(len(tokens), dtype=torch.bool), torch.zeros(len(tokens))
        first = len(path[0].prompt)
        turns = [Turn("prompt", str(decode(list(path[0].prompt))), 0, first)]
        supports, versions, experts = [], [], []
        for call in path:
            written = call.sample
            assert written is not None
            start, end = len(call.prompt), len(written.tokens)
            # what was sampled is what is trained on
            assert torch.equal(written.tokens, tokens[:end])
            chosen, support = chosen_tokens(written, start) if call.is_constrained else (True, written.support)
            action[start:end] = chosen
            logp[start:end] = torch.where(action[start:end], written.behavior_logp[start:], 0.0)
            supports.append((support, int(action[start:end].sum())))
            experts.append(written.routed_experts)
            versions.append(written.versions)
            counts = {"tool_calls": call.calls_tools, "malformed_calls": call.malformed}
            turns += call.observed
            turns.append(
                Turn(
                    *("assistant", call.text, start, end),
                    ended=written.stop,
                    counts={name: count for name, count in counts.items() if count},
                )
            )
        if stop is StopReason.END and leaf.sample.stop is StopReason.LENGTH:
            stop = StopReason.LENGTH
        return Sample(
            tokens=tokens,
            action=action,
            behavior_logp=logp,
            versions=(min(oldest for oldest, _ in versions), max(newest for _, newest in versions)),
            stop=stop,
            completion=leaf.text,
            support=joined_support(supports),
            turns=tuple(turns),
            returned=returned,
            episode=self.name,
            role=leaf.role,
            metrics=dict(self.metrics),
            routed_experts=joined_experts(experts),
        )


def chosen_tokens(written: Sample, start: int) -> tuple[Tensor, Support | None]:
    """bool [L - start]: the tokens of a constrained completion that are trained on, and what else could be drawn there.

    A token is the policy's choice where the grammar left it one. Its probability is that among the tokens allowed
    there, for the sampler and the trainer alike; where neither those nor the others could be noted, it is left out.
    """
    tokens, support = written.tokens[start:], written.support
    if support is None:  # nobody trains on it
        return torch.zeros(len(tokens), dtype=torch.bool), None
    counts, last = support.counts.long(), support.counts.cumsum(0) - 1
    alone = support.ids[last.clamp(min=0)]  # the only id, where there is one
    chosen = ~((counts == 1) & ((alone == tokens) | (alone == -1)))
    return chosen, Support(support.ids[torch.repeat_interleave(chosen, counts)], support.counts[chosen])


def _prefix_keys(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[bytes]:
    """One key for each beginning of the messages, the first message's first."""
    running = hashlib.sha256(json.dumps(list(tools), sort_keys=True).encode())
    keys = []
    for message in messages:
        key = message_key(message).encode()
        running.update(len(key).to_bytes(8, "little") + key)
        keys.append(running.digest())
    return keys
