"""TRL's preference trainers answer: the real losses of the installed package, on stand-ins for trainer and model."""

import types
from collections import defaultdict

import torch
import trl
from answering import serve
from trl.experimental.cpo.cpo_trainer import CPOTrainer
from trl.experimental.orpo.orpo_trainer import ORPOTrainer
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.kto_trainer import KTOTrainer
from trl.trainer.reward_trainer import RewardTrainer
from trl_side import Alone, defaults


class Accelerator(Alone):
    def gather_for_metrics(self, value):
        return value


class Model:
    """A model whose log-probabilities are given."""

    training, is_gradient_checkpointing = True, False

    def __init__(self, **outputs):
        self.outputs = outputs

    def __call__(self, **_):
        return types.SimpleNamespace(aux_loss=None, **self.outputs)


def outputs(logp, square):
    rest = {name: torch.zeros_like(logp) for name in ("entropy", "mean_logits")}
    return Model(log_probs=logp, log_sum_sq_probs=square, is_top1=torch.zeros_like(logp).bool(), **rest)


def stand_in(model, ref_model, **taken):
    return types.SimpleNamespace(
        **taken,
        model=model,
        ref_model=ref_model,
        accelerator=Accelerator(),
        precompute_ref_logps=False,
        aux_loss_enabled=False,
        _metrics=defaultdict(lambda: defaultdict(list)),
        _total_train_tokens=0,
        _tp_size=1,
    )


def inputs(mask):
    """Tokens beside their mask, one place in front of it that nobody predicts."""
    first = torch.zeros(len(mask), 1, dtype=torch.long)
    completion = torch.cat([first, mask.long()], 1)
    return {"input_ids": completion * 0, "attention_mask": completion * 0 + 1, "completion_mask": completion}


def gradient(leaf, loss):
    loss.backward()
    return {"gradient": leaf.grad, "loss": loss.detach()}


def pairs(*, settings, logp, ref, square, mask):
    """`logp` is [B, 2, T]; TRL's rows are all chosen replies, then all rejected ones."""

    def stacked(values):
        return torch.cat([values[:, 0], values[:, 1]])

    loss_types = settings.pop("loss_type", ["sigmoid"])
    arguments = defaults(DPOConfig, settings)
    leaf = logp.clone().requires_grad_()
    inside = stacked(mask)
    model = outputs(torch.where(inside, stacked(leaf), 0.0), stacked(square))
    reference = outputs(torch.where(inside, stacked(ref), 0.0), stacked(square))
    trainer = stand_in(
        model,
        reference,
        args=arguments,
        loss_types=loss_types,
        loss_weights=arguments.loss_weights or [1.0] * len(loss_types),
        use_weighting=arguments.use_weighting,
        beta=arguments.beta,
        label_smoothing=arguments.label_smoothing,
        ld_alpha=arguments.ld_alpha,
        f_divergence_type=arguments.f_divergence_type,
        f_alpha_divergence_coef=arguments.f_alpha_divergence_coef,
    )
    return gradient(leaf, DPOTrainer._compute_loss(trainer, model, inputs(inside), False))


def labelled(*, loss_type, beta, weights, logp, ref, mask, good, other, other_ref):
    """`logp` is [B, T]; `other` and `other_ref` are the summed log-probabilities of mismatched replies."""
    leaf = logp.clone().requires_grad_()
    model = outputs(torch.where(mask, leaf, 0.0), torch.zeros_like(logp))
    reference = outputs(torch.where(mask, ref, 0.0), torch.zeros_like(logp))
    trainer = stand_in(
        model,
        reference,
        args=types.SimpleNamespace(gradient_checkpointing_kwargs=None),
        loss_type=loss_type,
        calculate_KL=loss_type == "kto",
        beta=beta,
        desirable_weight=weights[0],
        undesirable_weight=weights[1],
    )
    trainer._compute_kl_logps = lambda asked, _: other if asked is model else other_ref
    return gradient(leaf, KTOTrainer._compute_loss(trainer, model, {**inputs(mask), "label": good}, False))


def without_reference(*, settings, chosen, rejected):
    """`chosen` and `rejected` are [B], summed or averaged as the loss wants them."""
    leaf = torch.stack([chosen, rejected], 1).requires_grad_()
    trainer = types.SimpleNamespace(accelerator=Accelerator(), **settings)
    losses, *_ = CPOTrainer.cpo_loss(trainer, leaf[:, 0], leaf[:, 1])
    return gradient(leaf, losses.mean())


def odds(*, beta, chosen, rejected):
    """The preference term of the odds; its sign in the trainer's loss is minus."""
    leaf = torch.stack([chosen, rejected], 1).requires_grad_()
    trainer = types.SimpleNamespace(accelerator=Accelerator(), beta=beta)
    losses, *_ = ORPOTrainer.odds_ratio_loss(trainer, leaf[:, 0], leaf[:, 1])
    return gradient(leaf, -losses.mean())


def reward(*, score, margin=None, centre=None):
    """`score` is [B, 2]."""
    leaf = score.clone().requires_grad_()
    model = Model(logits=torch.cat([leaf[:, 0], leaf[:, 1]])[:, None])
    trainer = stand_in(model, None, args=types.SimpleNamespace(center_rewards_coefficient=centre))
    given = {"attention_mask": torch.ones(2 * len(score), 1), **({} if margin is None else {"margin": margin})}
    return gradient(leaf, RewardTrainer.compute_loss(trainer, model, given))


def version():
    return {"version": trl.__version__}


if __name__ == "__main__":
    questions = (pairs, labelled, without_reference, odds, reward, version)
    serve({question.__name__: question for question in questions})
