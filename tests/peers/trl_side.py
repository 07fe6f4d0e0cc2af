"""TRL's trainers answer: the real `_compute_loss` of the installed package, on a stand-in for the trainer."""

import types
from collections import defaultdict
from dataclasses import MISSING, fields

import torch
import trl
from answering import executed, gradient, serve, statements
from trl.experimental.gmpo.gmpo_config import GMPOConfig
from trl.experimental.gmpo.gmpo_trainer import GMPOTrainer
from trl.rewards import get_soft_overlong_punishment
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.rloo_config import RLOOConfig
from trl.trainer.rloo_trainer import RLOOTrainer

TRAINERS = {
    "grpo": (GRPOTrainer, GRPOConfig),
    "gmpo": (GMPOTrainer, GMPOConfig),
    "rloo": (RLOOTrainer, RLOOConfig),
}


def defaults(config, settings):
    """The config's own defaults with the settings of a question over them: nothing here is chosen by the test."""
    known = {each.name: each.default for each in fields(config) if each.default is not MISSING}
    unknown = set(settings) - set(known)
    if unknown:
        raise ValueError(f"{config.__name__} has no {', '.join(sorted(unknown))}")
    return types.SimpleNamespace(**{**known, **settings})


class Alone:
    """The accelerator of a run with one process."""

    num_processes, process_index, device = 1, 0, torch.device("cpu")

    def gather(self, value):
        return value

    def reduce(self, value, reduction="sum"):
        return value

    def pad_across_processes(self, value, dim=0, pad_index=0):
        return value


def stand_in(trainer, config, settings, passes, budget):
    """A trainer as its loss sees it: every number from the config, one optimizer step of `passes` passes."""
    arguments = defaults(config, {**settings, "steps_per_generation": settings.get("steps_per_generation", passes)})
    taken = {
        name: getattr(arguments, name)
        for name in (
            *("loss_type", "importance_sampling_level", "beta", "top_entropy_quantile", "off_policy_mask_threshold"),
            *("use_vllm", "vllm_importance_sampling_correction", "scale_rewards", "multi_objective_aggregation"),
            *("normalize_advantages", "reward_clip_range"),
        )
        if hasattr(arguments, name)
    }
    epsilon = arguments.epsilon
    trainer_now = types.SimpleNamespace(
        **taken,
        args=arguments,
        epsilon_low=epsilon,
        epsilon_high=epsilon if arguments.epsilon_high is None else arguments.epsilon_high,
        max_completion_length=budget,
        current_gradient_accumulation_steps=passes,
        accelerator=Alone(),
        model=types.SimpleNamespace(training=True),
        aux_loss_enabled=False,
        _entropy_bonus_enabled=False,
        _metrics=defaultdict(lambda: defaultdict(list)),
        get_gamma_weights=getattr(trainer, "get_gamma_weights", None),
        get_off_policy_mask=getattr(trainer, "get_off_policy_mask", None),
    )
    if hasattr(trainer, "get_high_entropy_mask"):
        trainer_now.get_high_entropy_mask = types.MethodType(trainer.get_high_entropy_mask, trainer_now)
    return trainer_now


def policy(*, trainer, settings, logp, old, ref, entropy, mask, advantage, pieces, budget, generated_tokens=None):
    """The gradient of one optimizer step whose rows are cut into `pieces`, with respect to logp."""
    kind, config = TRAINERS[trainer]
    leaf = logp.clone().requires_grad_()
    tokens = mask.sum() if generated_tokens is None else torch.tensor(generated_tokens)

    def losses():
        for rows in pieces:
            trainer_now = stand_in(kind, config, settings, len(pieces), budget)
            here = leaf[rows]
            trainer_now._get_per_token_logps_and_entropies = lambda *_, h=here, e=entropy[rows], **__: (h, e, None)
            inputs = {
                "prompt_ids": torch.zeros(len(rows), 1, dtype=torch.long),
                "prompt_mask": torch.ones(len(rows), 1, dtype=torch.long),
                "completion_ids": torch.zeros(mask[rows].shape, dtype=torch.long),
                "completion_mask": mask[rows].long(),
                "advantages": advantage[rows],
                "old_per_token_logps": old[rows],
                "old_logps": (old * mask)[rows].sum(1),
                "ref_per_token_logps": ref[rows],
                "num_items_in_batch": tokens,
            }
            loss = kind._compute_loss(trainer_now, None, inputs)
            # this trainer leaves the division by the number of passes to transformers
            yield loss / len(pieces) if trainer == "rloo" else loss

    return gradient(leaf, losses())


def advantage(*, trainer, settings, rewards, group_size, old=None, ref=None, mask=None, weights=None):
    """The trainer's own lines from rewards to advantages; `rewards` is [N, K], one column a reward function."""
    kind, config = TRAINERS[trainer]
    method = kind._generate_and_score_completions
    code = statements(method, "unscorable_mask", "advantages")
    trainer_now = stand_in(kind, config, settings, 1, 0)
    trainer_now.reward_weights = torch.ones(rewards.shape[1], dtype=rewards.dtype) if weights is None else weights
    trainer_now.reward_funcs = [None] * rewards.shape[1]
    names = {
        "self": trainer_now,
        "rewards_per_func": rewards,
        "num_generations": group_size,
        "device": torch.device("cpu"),
        "prompts": [None] * len(rewards),
        "mode": "train",
        "old_per_token_logps": old,
        "ref_per_token_logps": ref,
        "completion_mask": mask,
        "gather": lambda value: value,
    }
    return {"advantage": executed(code, method, names)["advantages"]}


def overlong(*, lengths, budget, tail):
    punish = get_soft_overlong_punishment(budget, tail)
    return {"reward": torch.tensor(punish([[0] * length for length in lengths]))}


def version():
    return {"version": trl.__version__}


if __name__ == "__main__":
    serve({"policy": policy, "advantage": advantage, "overlong": overlong, "version": version})
