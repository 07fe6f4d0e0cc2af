"""Defences against rewards being gamed: small rewards that look for one trick each.

Each is a function (prompt, completion, *, kind, ...) -> float. As a penalty (the default) it is 0 for an honest
completion and down to -1: give it a positive weight in the sum. As a gate (`kind="gate"`) it is 1 for an honest
completion and down to 0; a penalty of weight 0 serves as a gate too, with `Gate(name, least=0.0)`: the gated part then
counts only for completions without a finding. All are deterministic, need no model and no gold answer, and use one
where there is one.

Every defence has a corpus of attacks it must catch and honest completions it must not punish; `rates` gives both
shares.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from whet.reward.defences.answer_marks import answer_in_thinking, broken_tags, mark_spam
from whet.reward.defences.disguise import hidden_text, look_alikes
from whet.reward.defences.guessing import guessing
from whet.reward.defences.hollow import hollow_answer
from whet.reward.defences.incoherence import incoherent_reasoning
from whet.reward.defences.padding import padding
from whet.reward.defences.rates import Case, Defence, Rates, corpus, rates_of
from whet.reward.defences.redundancy import redundant_calls
from whet.reward.defences.support import unsupported_answer

DEFENCES: Mapping[str, Defence] = MappingProxyType(
    {
        function.__name__: function
        for function in (
            incoherent_reasoning,
            padding,
            redundant_calls,
            unsupported_answer,
            guessing,
            hollow_answer,
            mark_spam,
            broken_tags,
            answer_in_thinking,
            hidden_text,
            look_alikes,
        )
    }
)


def rates(cases: Iterable[Case] | None = None) -> dict[str, Rates]:
    """The share of attacks that each defence catches and of honest completions it punishes: on its own corpus, or on
    these cases."""
    return rates_of(DEFENCES, cases)


__all__ = ["Case", "DEFENCES", "Defence", "Rates", "corpus", "rates", *DEFENCES]
