"""The critic: a scalar head on a trunk of its own or on the policy's, from the policy or from a reward model."""

from dataclasses import replace

import pytest
import torch

from whet.model.causal_lm import causal_lm
from whet.model.critic import critic_on
from whet.model.token_logp import Details, token_logp
from whet.types import WhetError


@pytest.fixture
def policy(llama):
    return causal_lm(llama)


@pytest.fixture
def make_judge(make_llama):
    """A sequence-classification model of the policy's shape."""

    def make(**changes):
        from transformers import LlamaForSequenceClassification

        config = make_llama(**changes).config
        torch.manual_seed(4)
        return LlamaForSequenceClassification(config).eval()

    return make


TOKENS = torch.tensor([[3, 4, 5, 6, 7], [8, 9, 3, 4, 0]])
ACTION = torch.tensor([[False, False, True, True, True], [False, True, True, False, False]])


def test_a_new_critic_thinks_every_state_is_worth_nothing(policy):
    for shared in (True, False):
        critic = critic_on(policy, shared=shared)
        assert (critic.values(critic.states(policy, TOKENS, ACTION)) == 0).all()
        assert (critic.trunk is None) == shared
        names = set(critic.tensors())
        assert {"head.weight", "head.bias"} <= names and (len(names) == 2) == shared


def test_the_value_of_an_action_is_that_of_the_state_before_it(policy):
    """Changing the token that is judged, or one behind it, changes nothing."""
    critic = critic_on(policy, shared=False)
    torch.nn.init.normal_(critic.head.weight, generator=torch.Generator().manual_seed(0))
    whole = policy.trunk(input_ids=TOKENS).last_hidden_state @ critic.head.weight[0]
    before = critic.values(critic.states(policy, TOKENS, ACTION))
    expected = torch.cat([whole[0, 1:4], whole[1, 0:2]])
    torch.testing.assert_close(before, expected)
    other = TOKENS.clone()
    other[0, 4] = 11
    assert torch.equal(critic.values(critic.states(policy, other, ACTION)), before)
    other[0, 1] = 11
    assert not torch.allclose(critic.values(critic.states(policy, other, ACTION))[:3], before[:3])


def test_a_trunk_of_its_own_does_not_touch_the_policy(policy):
    critic = critic_on(policy, shared=False)
    torch.nn.init.ones_(critic.head.weight)
    critic.values(critic.states(policy, TOKENS, ACTION)).sum().backward()
    assert all(parameter.grad is None for parameter in policy.model.parameters())
    assert any(parameter.grad is not None for parameter in critic.modules()["trunk"].parameters())


def test_a_shared_trunk_gives_its_states_with_the_policys_pass(policy):
    critic = critic_on(policy, shared=True)
    torch.nn.init.normal_(critic.head.weight, generator=torch.Generator().manual_seed(0))
    found = token_logp(policy, TOKENS, ACTION, details=Details(states=True))
    torch.testing.assert_close(critic.values(found.states), critic.values(critic.states(policy, TOKENS, ACTION)))
    critic.values(found.states).sum().backward()
    assert any(parameter.grad is not None for parameter in policy.model.parameters())


def test_a_critic_is_restored(policy):
    first, second = critic_on(policy, shared=False), critic_on(policy, shared=False)
    with torch.no_grad():
        for parameter in first.modules().parameters():
            parameter.add_(0.1)
    second.restore(first.tensors())
    assert all(torch.equal(value, second.tensors()[name]) for name, value in first.tensors().items())


def test_a_reward_model_is_a_start(policy, make_judge, tmp_path):
    judge = make_judge(num_labels=1)
    judge.save_pretrained(tmp_path / "judge")
    critic = critic_on(policy, shared=False, start=str(tmp_path / "judge"))
    hidden = judge.model(input_ids=TOKENS).last_hidden_state
    scores = judge.score(hidden)[..., 0]
    expected = torch.cat([scores[0, 1:4], scores[1, 0:2]])
    torch.testing.assert_close(critic.values(critic.states(policy, TOKENS, ACTION)), expected)
    assert expected.abs().max() > 1e-4


@pytest.mark.parametrize(
    ("settings", "shared", "words"),
    [
        (None, False, "no such folder"),
        ({"num_labels": 2}, False, "one label"),
        ({"num_labels": 1, "vocab_size": 77}, False, "same tokenizer"),
        ({"num_labels": 1}, True, "critic.trunk=own"),
    ],
)
def test_a_start_that_cannot_work_is_a_mistake_with_its_fix(policy, make_judge, tmp_path, settings, shared, words):
    folder = tmp_path / "judge"
    if settings is not None:
        make_judge(**settings).save_pretrained(folder)
    with pytest.raises(WhetError, match=words):
        critic_on(policy, shared=shared, start=str(folder))


def test_a_trunk_of_its_own_recomputes_as_the_policy_does(policy):
    for recompute in ("none", "wide", "layers"):
        assert critic_on(replace(policy, recompute=recompute), shared=False).trunk.recompute == recompute
