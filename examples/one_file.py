"""Reinforcement learning of a language model in one file: GRPO, from the questions to the last gradient step.

The small model used here knows how to work out a sum step by step, but mostly blurts out an answer, and then it is
wrong nine times in ten. Nobody shows it what to do instead. It tries, a rule says right or wrong, and that is enough:

  1. Sample a group.           Ask each question several times. Chance makes the completions differ.
  2. Compare with the group.   A completion is good if it did better than the other completions to the same question.
  3. Push up what was better.  Make the tokens of good completions more likely, those of bad completions less likely.
  4. Stay close.               Take small steps, and never drift far from the model the training began with.

    python examples/one_file.py                    under a minute on two CPU cores
    python examples/one_file.py --updates 2        learn twice from each batch: now the ratio in `grpo_loss` matters

Shapes: P questions, G completions to each (a group), N = P * G rows, T tokens (padded), V tokens in the vocabulary.
"""

import argparse
import copy
import hashlib
import random
import re
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from torch import Tensor

MODEL = Path(__file__).resolve().parent.parent / "src" / "whet" / "model" / "builtin" / "whetstone"
MAX_NEW_TOKENS = 64  # a longer completion is cut off
CLIP = 0.2  # how far the ratio may move from 1 before a token stops teaching
KL_WEIGHT = 0.04  # how strongly the policy is held to the reference
HELD_OUT_QUESTIONS = 200


# ---- 1. The task: questions whose answers a rule can check --------------------------------------------------------


def new_question(stream: random.Random) -> tuple[str, str]:
    """Five operations from left to right, of which only the last digit is kept: ("... 7*3+5-8*9+6", "8")."""
    value = stream.randint(0, 9)
    text = str(value)
    for _ in range(5):
        operator = stream.choice("+-*")
        # times 3, 7 or 9 no two digits become one; times an even number or 5 they do, and answers are easier to guess
        number = stream.choice((3, 7, 9)) if operator == "*" else stream.randint(1, 9)
        value = {"+": value + number, "-": value - number, "*": value * number}[operator] % 10
        text += f"{operator}{number}"
    return f"Left to right mod 10: {text}", str(value)


def new_questions(stream: random.Random, count: int, held_out: bool) -> list[tuple[str, str]]:
    """PromptDataset with answers, one in ten held out. A hash decides which: no seed puts a question on both sides."""
    found = []
    while len(found) < count:
        question, answer = new_question(stream)
        if (hashlib.sha256(question.encode()).digest()[0] % 10 == 0) == held_out:
            found.append((question, answer))
    return found


def reward_of(completion: str, answer: str) -> float:
    """1 for the right answer, else 0. Exactly one answer: otherwise naming all ten digits would always pay."""
    return float(re.findall(r"<answer>(.*?)</answer>", completion) == [answer])


# ---- 2. Sampling: the policy writes completions ----------------------------------------------------------------------


@dataclass
class Batch:
    """PromptDataset with their completions. Each row: padding, question, completion, padding."""

    tokens: Tensor  # int [N, T]
    real: Tensor  # int [N, T], 1 on tokens, 0 on padding
    action: Tensor  # bool [N, T], True where the policy chose the token: only there is something to learn
    old_logp: Tensor  # float [N, T], log-probability of each action when it was chosen, 0 elsewhere


@torch.no_grad()
def sample(model, tokenizer, questions: list[str], greedy: bool = False) -> Batch:
    """One completion to each question, token by token, at temperature 1 (or always the likeliest token, if greedy)."""
    chats = [[{"role": "user", "content": text}] for text in questions]
    texts = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False) for chat in chats]
    # Padded on the left, so that all completions begin in the same column. Today's models see only how far apart two
    # tokens are (rotary positions), so a question that padding moved to the right is still the same question.
    encoded = tokenizer(texts, padding=True, padding_side="left", add_special_tokens=False, return_tensors="pt")
    tokens = encoded.input_ids.to(model.device)  # [N, question length], and one column longer each round
    real = encoded.attention_mask.to(model.device)
    action = torch.zeros_like(tokens, dtype=torch.bool)
    old_logp = torch.zeros_like(tokens, dtype=torch.float)
    alive = torch.ones_like(tokens[:, :1], dtype=torch.bool)  # [N, 1], False once a completion has ended
    cache = None  # keys and values of what the model has read, so that each round reads only what is new
    for _ in range(MAX_NEW_TOKENS):
        unread = tokens if cache is None else tokens[:, -1:]
        output = model(unread, attention_mask=real, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        logp = output.logits[:, -1].log_softmax(-1)  # [N, V], of every token that could come next
        chosen = logp.argmax(-1, keepdim=True) if greedy else torch.multinomial(logp.exp(), 1)  # [N, 1]
        tokens = torch.cat([tokens, chosen.where(alive, tokenizer.pad_token_id)], 1)
        real = torch.cat([real, alive.long()], 1)
        action = torch.cat([action, alive], 1)
        old_logp = torch.cat([old_logp, logp.gather(-1, chosen).where(alive, 0.0)], 1)
        alive = alive & (chosen != tokenizer.eos_token_id)
        if not alive.any():
            break
    return Batch(tokens, real, action, old_logp)


def completions_of(batch: Batch, tokenizer) -> list[str]:
    """The actions of each row as text."""
    rows = zip(batch.tokens, batch.action, strict=True)
    return [tokenizer.decode(tokens[action], skip_special_tokens=True) for tokens, action in rows]


def token_logp(model, batch: Batch) -> Tensor:
    """[N, T]: log-probability of each token given all before it, read in one go. With gradient, unlike `sample`."""
    logits = model(batch.tokens, attention_mask=batch.real).logits  # [N, T, V]
    # what the model says at place t is about the token at t + 1
    logp = logits[:, :-1].log_softmax(-1).gather(-1, batch.tokens[:, 1:, None]).squeeze(-1)  # [N, T - 1]
    return torch.nn.functional.pad(logp, (1, 0))  # nothing precedes the first token: 0, and it is never an action


# ---- 3. Advantage: better than what? Than the other completions to the same question ---------------------------------


def group_advantage(reward: Tensor) -> Tensor:
    """reward [P, G] -> advantage [P, G] = (reward - mean) / std, both over the group.

    The mean makes it a comparison: an easy question that everyone solves teaches nothing, and a rare success on a
    hard one teaches much. If all rewards of a group are equal, all its advantages are 0.
    """
    mean, std = reward.mean(-1, keepdim=True), reward.std(-1, keepdim=True)  # [P, 1]
    return (reward - mean) / (std + 1e-6)


# ---- 4. The loss: push up what was better, stay close --------------------------------------------------------------


def grpo_loss(logp: Tensor, ref_logp: Tensor, advantage: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """logp [N, T], ref_logp [N, T], advantage [N, 1] -> the loss; and to watch, the mean KL and the share clipped.

    Row i has n_i actions, and every row counts the same however long it is:

        loss = SUM_it  share_it * (-weight_it * advantage_i * logp_it  +  KL_WEIGHT * kl_it),  share_it = 1 / (N * n_i)

    The first term is the whole of policy gradients: where the advantage is positive, a smaller loss means a larger
    logp. Descending it moves the weights along  SUM share * weight * advantage * grad logp.
    """
    # ratio = pi / pi_old, how much likelier an action is now than when it was sampled: it corrects for learning from
    # completions of an older policy. In the first update of a batch pi is pi_old and the ratio is 1 (but for rounding);
    # from the second on (--updates 2) it moves. It is a factor, not a thing to push on: hence no gradient.
    ratio = (logp - batch.old_logp).detach().exp()
    # PPO maximises  min(ratio * A, clip(ratio, 1 - c, 1 + c) * A).  The gradient of that is  ratio * A * grad logp,  or
    # 0 where an action has already moved by more than c in the direction its advantage A asked for. As a weight:
    clipped = ((advantage > 0) & (ratio > 1 + CLIP)) | ((advantage < 0) & (ratio < 1 - CLIP))
    weight = ratio.masked_fill(clipped, 0.0)
    # KL(pi || ref) estimated from the sampled actions alone ("k3"):  exp(u) - u - 1  with  u = ref_logp - logp.
    # Never negative, and 0 where both agree. It jumps when a completion comes up that the policy has almost given up.
    gap = ref_logp - logp
    kl = gap.exp() - gap - 1

    num_actions = batch.action.sum(-1, keepdim=True)  # [N, 1], the n_i of the formula
    share = batch.action / (len(logp) * num_actions)  # [N, T], 0 on questions and padding
    loss = (share * (-weight * advantage * logp + KL_WEIGHT * kl)).sum()
    return loss, (share * kl).sum().detach(), (share * clipped).sum()


# ---- 5. The loop ---------------------------------------------------------------------------------------------------


def greedy_accuracy(model, tokenizer, problems: list[tuple[str, str]]) -> tuple[float, str]:
    """Share of right answers without chance, and the first completion to look at."""
    completions = completions_of(
        sample(model, tokenizer, [question for question, _ in problems], greedy=True), tokenizer
    )
    correct = [reward_of(completion, answer) for completion, (_, answer) in zip(completions, problems, strict=True)]
    return sum(correct) / len(correct), completions[0]


def train(model, tokenizer, options: argparse.Namespace) -> None:
    """Sample, score, compare, update: `options.steps` times."""
    reference = copy.deepcopy(model).requires_grad_(False)  # the model as it was: what the KL holds the policy to
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate, weight_decay=0.0)
    stream = random.Random(options.seed)
    for step in range(1, options.steps + 1):
        start = time.perf_counter()
        problems = new_questions(stream, options.prompts, held_out=False)
        rows = [problem for problem in problems for _ in range(options.group_size)]  # N, a group side by side
        batch = sample(model, tokenizer, [question for question, _ in rows])
        scored = zip(completions_of(batch, tokenizer), rows, strict=True)
        reward = torch.tensor(
            [reward_of(completion, answer) for completion, (_, answer) in scored], device=model.device
        )  # [N]
        advantage = group_advantage(reward.view(options.prompts, options.group_size)).view(-1, 1)  # [N, 1]
        with torch.no_grad():
            ref_logp = token_logp(reference, batch)
        for _ in range(options.updates):
            logp = token_logp(model, batch)
            loss, kl, clipped = grpo_loss(logp, ref_logp, advantage, batch)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # one odd batch must not undo the others
            optimizer.step()
        length = batch.action.sum() / len(rows)
        seen = f"reward {reward.mean():.2f}  kl {kl:.3f}  clipped {clipped:.3f}  length {length:.1f}"
        print(f"step {step:3}  {seen}  {time.perf_counter() - start:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description="GRPO in one file: a small model learns to think before it answers.")
    parser.add_argument("--model", default=str(MODEL), help="folder of a chat model (default: the built-in one)")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--prompts", type=int, default=16, help="questions a step")
    parser.add_argument("--group-size", type=int, default=8, help="completions to each question, at least 2")
    parser.add_argument("--updates", type=int, default=1, help="gradient steps on each batch")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.group_size < 2:
        parser.error(f"--group-size is {options.group_size}: nothing to compare a completion with, give 2 or more")

    torch.manual_seed(options.seed)
    transformers.utils.logging.disable_progress_bar()
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = transformers.AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    if model.num_parameters() < 10_000_000:
        torch.set_num_threads(1)  # in so small a model threads wait for each other longer than they work
    model.eval()  # no dropout: the policy that is trained must be the policy that wrote the completions

    start = time.perf_counter()
    held_out = new_questions(random.Random("held out"), HELD_OUT_QUESTIONS, held_out=True)  # the same for every seed
    before, completion_before = greedy_accuracy(model, tokenizer, held_out)
    print(f"before: {before:.1%} of {len(held_out)} held-out questions right")
    train(model, tokenizer, options)
    after, completion_after = greedy_accuracy(model, tokenizer, held_out)
    print(f"after:  {after:.1%} right, in {time.perf_counter() - start:.0f} s\n")
    print(f"question  {held_out[0][0]} (answer {held_out[0][1]})")
    print(f"before    {completion_before}\nafter     {completion_after}")


if __name__ == "__main__":
    main()
