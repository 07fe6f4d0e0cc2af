"""The settings of the judge, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from whet.model.server_client import check_url
from whet.reward.judge.cache import AtBudgetEnd
from whet.types import WhetError

Compare = Literal["none", "reference", "group"]
Asides = Literal["lower", "unscorable", "keep"]

DAY = 86_400.0  # seconds
BOUNDS: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(("attempts", "concurrency"), (1, 1000)),
    **dict.fromkeys(("retries", "temperature"), (0, 1000)),
    **dict.fromkeys(("opponents", "max_new_tokens", "max_calls", "max_tokens"), (0, 10**15)),
    **{"longest_completion": (1, 10**9), "first_wait": (0, DAY), "timeout": (0.001, DAY)},
}


@dataclass(frozen=True, kw_only=True)
class JudgeSettings:
    """How a judge is called. Without `base_url` the engine it is given answers."""

    name: str = "judge"
    base_url: str = ""  # http://localhost:8000/v1
    model: str = ""
    key_variable: str = ""  # the environment variable that holds the key; "" for a server that wants none
    rubric: str | Mapping[str, Any] = ""  # text, a file, or a table with criteria
    compare: Compare = "none"  # marks; or better than the reference answer; or better than the rest of the group
    opponents: int = 0  # in a group: how many of the others each completion meets; 0 for all
    reference: str = ""  # the column with the reference answer; "" for the gold answer
    show_reference: bool = False  # to the judge, beside what it judges
    show_thinking: bool = False
    asides: Asides = "lower"  # of a mark that falls when words beside the question are cut; "keep": never look
    longest_completion: int = 40_000  # characters shown; the rest is cut, and the judge is told so
    temperature: float = 0.0
    max_new_tokens: int = 1024  # 0 leaves it to the server
    structured: bool = False  # ask the server for JSON by a schema (response_format), where it offers that
    extra: Mapping[str, Any] = field(default_factory=dict)  # further fields of the request
    attempts: int = 3  # at a readable answer
    retries: int = 5  # of a call that fails
    first_wait: float = 1.0  # seconds before the first retry; doubled each time
    timeout: float = 60.0  # seconds, of one call
    concurrency: int = 8
    cache: str = ""  # a file; "" for none
    max_calls: int = 0  # 0: no limit
    max_tokens: int = 0  # 0: no limit
    at_budget_end: AtBudgetEnd = "stop"
    alone: bool = False  # may be the only reward

    def __post_init__(self) -> None:
        literals = {"compare": Compare, "at_budget_end": AtBudgetEnd, "asides": Asides}
        for key, choices in ((key, get_args(literal)) for key, literal in literals.items()):
            value = getattr(self, key)
            if value not in choices:
                raise WhetError(f"{key} of reward 'judge' is {value!r}; give one of {', '.join(choices)}")
        for key, (least, most) in BOUNDS.items():
            value = getattr(self, key)
            if isinstance(value, bool) or not least <= value <= most:
                raise WhetError(f"{key} of reward 'judge' is {value}; give a number from {least:g} to {most:g}")
        if self.opponents and self.compare != "group":
            raise WhetError("opponents of reward 'judge' has no effect without compare=group; set that, or drop it")
        if self.structured and not self.base_url:
            raise WhetError("structured of reward 'judge' has no effect without base_url; set that, or drop it")
        if self.base_url:
            check_url(self.base_url, "the judge")
            if not self.model:
                raise WhetError(f"reward 'judge' asks {self.base_url} for no model; give model=NAME")

    @property
    def request(self) -> dict[str, Any]:
        """The model and its settings: with the question itself, all that an answer depends on. No secret."""
        extra = dict(self.extra)
        structured = {"structured": True} if self.structured else {}
        return {"base_url": self.base_url, "model": self.model, "extra": extra, **structured, **self.drawn}

    @property
    def drawn(self) -> dict[str, Any]:
        """How the answer is sampled."""
        return {"temperature": self.temperature, "max_tokens": self.max_new_tokens}

    def payload(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a request beside the model and the messages."""
        drawn = self.drawn if self.max_new_tokens else {"temperature": self.temperature}
        structured = {"response_format": schema} if self.structured else {}
        return {**drawn, **structured, **self.extra}
