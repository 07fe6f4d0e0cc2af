"""verl answers: its advantage estimators by their registered names, and `ppo_loss`, the loss its engines call."""

import numpy as np
import torch
import verl
from answering import gradient, serve
from tensordict import TensorDict
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos
from verl.utils import tensordict_utils
from verl.workers.config import ActorConfig, PolicyLossConfig
from verl.workers.utils.losses import ppo_loss


def jagged(rows):
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def micro_batch(rows, columns, length, counts):
    """A micro-batch as the default trainer hands it over: nested, padded only to its own longest completion."""
    fields = {
        "prompts": jagged([torch.zeros(1, dtype=torch.long) for _ in rows]),
        "responses": jagged([torch.zeros(length[row], dtype=torch.long) for row in rows]),
        **{name: jagged([values[row, : length[row]] for row in rows]) for name, values in columns.items()},
    }
    data = TensorDict(fields, batch_size=len(rows))
    tensordict_utils.assign_non_tensor(data, **counts)
    return data


def actor(settings, loss):
    return ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        policy_loss=PolicyLossConfig(**loss),
        **settings,
    )


def policy(*, loss, settings, logp, old, ref, mask, advantage, length, pieces):
    """The gradient of one optimizer step whose rows are cut into `pieces`, with respect to logp."""
    leaf = logp.clone().requires_grad_()
    config = actor(settings, loss)
    columns = {"response_mask": mask.long(), "old_log_probs": old, "advantages": advantage, "ref_log_prob": ref}
    counts = {"dp_size": 1, "batch_num_tokens": int(mask.sum()), "global_batch_size": len(logp)}

    def losses():
        for rows in pieces:
            torch.manual_seed(0)
            # the model's output at a position is about the token after it, hence the last one says nothing
            output = torch.cat([torch.cat([leaf[row, : length[row]], leaf.new_zeros(1)]) for row in rows])
            yield ppo_loss(config, {"log_probs": output}, micro_batch(rows, columns, length, counts))[0]

    return gradient(leaf, losses())


def advantage(*, name, rewards, mask, group, settings=None, **more):
    """Token rewards [N, T] to advantages and returns [N, T]."""
    estimator = core_algos.get_adv_estimator_fn(name)
    if name == "gae":
        found = estimator(rewards, more["values"], mask, more["gamma"], more["lam"])
    else:
        config = AlgoConfig(**(settings or {}))
        if "norm_adv_by_std_in_grpo" in (settings or {}) and name.startswith("grpo"):
            more["norm_adv_by_std_in_grpo"] = settings["norm_adv_by_std_in_grpo"]
        index = np.array([str(each) for each in group.tolist()], dtype=object)
        found = estimator(token_level_rewards=rewards, response_mask=mask, index=index, config=config, **more)
    return {"advantage": found[0], "target": found[1]}


def by_part(*, parts, weights, mask, length, group):
    """The estimator that standardises every reward on its own; it reads them by name, in float32."""
    names = [f"part{column}" for column in range(parts.shape[1])]
    index = np.array([str(each) for each in group.tolist()], dtype=object)
    column = torch.arange(mask.shape[1])[None]
    batch = {
        "prompts": torch.zeros(len(parts), 1, dtype=torch.long),
        "attention_mask": torch.cat([torch.ones(len(parts), 1), column < length[:, None]], 1).long(),
    }
    found = core_algos.compute_gdpo_outcome_advantage(
        token_level_rewards=torch.zeros(mask.shape),
        response_mask=mask.float(),
        index=index,
        config={"gdpo_reward_keys": names, "gdpo_reward_weights": weights},
        non_tensor_batch={name: parts[:, place].numpy() for place, name in enumerate(names)},
        batch=batch,
    )
    return {"advantage": found[0]}


def aggregate(*, mode, matrix, mask, pieces, divisor=None):
    """d loss / d matrix of `agg_loss`, with the counts of the whole step."""
    leaf = matrix.clone().requires_grad_()
    counts = {"batch_num_tokens": int(mask.sum()), "global_batch_size": len(matrix)}
    calls = (
        core_algos.agg_loss(leaf[rows], mask[rows].to(leaf.dtype), mode, loss_scale_factor=divisor, **counts)
        for rows in pieces
    )
    return gradient(leaf, calls)


def kl(*, kind, logp, ref):
    """The value of a KL estimate and its gradient in logp, token by token."""
    leaf = logp.clone().requires_grad_()
    value = core_algos.kl_penalty(leaf, ref, kind)
    value.sum().backward()
    return {"value": value.detach(), "gradient": leaf.grad}


def value(*, predicted, old, target, mask, clip):
    leaf = predicted.clone().requires_grad_()
    loss, _ = core_algos.compute_value_loss(leaf, target, old, mask, clip)
    return gradient(leaf, [loss])


def version():
    return {"version": verl.__version__}


if __name__ == "__main__":
    serve(
        {
            "policy": policy,
            "advantage": advantage,
            "by_part": by_part,
            "aggregate": aggregate,
            "kl": kl,
            "value": value,
            "version": version,
        }
    )
