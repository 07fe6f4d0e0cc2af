"""The last TRL that had PPO answers: the formulas inside its training loop, executed as they stand there."""

import types
from dataclasses import MISSING, fields

import torch
import trl
from answering import executed, serve, statements
from trl.experimental.ppo import ppo_trainer
from trl.experimental.ppo.ppo_config import PPOConfig

LOOP = ppo_trainer.PPOTrainer.train


def arguments(settings):
    known = {each.name: each.default for each in fields(PPOConfig) if each.default is not MISSING}
    unknown = set(settings) - set(known)
    if unknown:
        raise ValueError(f"PPOConfig has no {', '.join(sorted(unknown))}")
    return types.SimpleNamespace(**{**known, **settings})


def advantage(*, settings, logp, ref, values, scores, length):
    """From log-probabilities, values and scores of replies [N, C] to rewards, advantages and returns."""
    code = statements(LOOP, "response_idxs", "advantages")
    names = {
        "args": arguments(settings),
        "responses": torch.zeros(logp.shape, dtype=torch.long),
        "sequence_lengths": length - 1,  # the place of the last token
        "logprobs": logp,
        "ref_logprobs": ref,
        "values": values,
        "scores": scores,
    }
    after = executed(code, LOOP, names)
    kept = {"advantage": "advantages", "target": "returns", "rewards": "rewards", "values": "values"}
    return {name: after[theirs] for name, theirs in kept.items()} | {"counted": ~after["padding_mask_p1"]}


def loss(*, settings, logp, old, predicted, values, target, advantage, length, pieces):
    """Gradients of one optimizer step in logp and in the predicted values; each pass counts 1 / passes."""
    code = statements(LOOP, "new_logprobs", "loss", skip=1)
    column = torch.arange(logp.shape[1])[None]
    policy, critic = logp.clone().requires_grad_(), predicted.clone().requires_grad_()
    total = 0.0
    for rows in pieces:
        after = executed(
            code,
            LOOP,
            {
                "args": arguments(settings),
                "context_length": 1,
                "micro_batch_inds": rows,
                "padding_mask": column > (length - 1)[:, None],
                "padding_mask_p1": column > length[:, None],
                "new_logprobs": policy[rows],
                "vpred_temp": torch.cat([critic[rows], critic.new_zeros(len(rows), 1)], 1)[..., None],
                "mb_logprobs": old[rows].masked_fill(
                    (column > (length - 1)[:, None])[rows], ppo_trainer.INVALID_LOGPROB
                ),
                "mb_values": values[rows],
                "mb_return": target[rows],
                "mb_advantage": advantage[rows],
            },
        )
        each = after["loss"] / len(pieces)
        each.backward()
        total += float(each.detach())
    return {"gradient": policy.grad, "value_gradient": critic.grad, "loss": total}


def version():
    return {"version": trl.__version__}


if __name__ == "__main__":
    serve({"advantage": advantage, "loss": loss, "version": version})
