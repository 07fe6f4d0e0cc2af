"""What does not go with rollouts ahead of the trainer is refused in one line, with the way out."""

import pytest

from tests.support.for_every import for_every
from whet.training.assembly.rl import build_objective
from whet.training.config import resolved
from whet.types import WhetError


@for_every(
    [
        ({"batch": {"staleness": 1}, "scale": {"max_staleness": 1}}, "give one of the two"),
        (
            {"env": {"tools": ["calculator"]}, "scale": {"max_staleness": 1, "engines": 1}},
            r"give scale\.engines=0 and sampling\.engine=torch",
        ),
        ({"scale": {"max_staleness": 1, "workers": 2}}, r"give scale\.workers=1"),
        ({"batch": {"routing_replay": "sampler"}, "scale": {"max_staleness": 1}}, "routed by several policies"),
        ({"scale": {"max_staleness": 1, "window": 0.3}}, "no group may be passed"),
        ({"scale": {"window": 0.3}}, "no group may be passed"),
    ]
)
def test_refused(layer, words):
    with pytest.raises(WhetError, match=words) as caught:
        resolved("grpo", layer)
    assert "\n" not in str(caught.value)


def test_other_kinds_have_nothing_that_could_be_behind():
    with pytest.raises(WhetError, match=r"scale\.max_staleness has no effect"):
        resolved("sft", {"scale": {"max_staleness": 1}})


def test_a_method_that_does_not_correct_is_refused():
    config = resolved("grpo", {"scale": {"max_staleness": 2}})
    with pytest.raises(WhetError, match=r"scale\.max_staleness is 2: completions are those of an older policy"):
        build_objective(config)
    corrected = resolved("grpo", {"scale": {"max_staleness": 2}, "objective": {"mismatch": "truncate"}})
    assert build_objective(corrected).mismatch.name == "truncate"
