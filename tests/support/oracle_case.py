"""A batch as the papers see it: ragged lists of the trained tokens, one list a completion; numbers, and scalars to
learn."""

from dataclasses import dataclass, field

import torch

from whet.types import Extras, TokenBatch


@dataclass
class Case:
    """All lists are [completion][trained token] unless said otherwise; `logp` and the fields named so carry
    gradient."""

    logp: list  # of the policy, with gradient
    old: list
    behavior: list
    ref: list
    teacher: list
    reward: list  # [completion], None where unscorable
    groups: list  # [completion]
    budget: int
    value: list  # the critic before the update
    parts: list  # [completion][part]
    part_weight: list  # [completion][part]
    finished: list  # [completion]
    greedy: list  # [completion]
    drawn: list  # [completion], (count, mean, std)
    reference_rewards: list  # [completion][completion of the reference]
    prompt: list  # [completion]
    step_reward: list | None  # None where no step ends
    segment: list
    anchor: list
    entropy_before: list
    entropy: list  # of the pass, with gradient
    top: list  # [completion][token][k], with gradient
    chose_top: list
    divergence: list  # with gradient
    from_teacher: list  # how far the policy is from its teacher, with gradient
    new_value: list  # of the critic, with gradient
    role: list  # [completion]
    returned: list  # [completion], what of the reward the steps have earned
    truncated: list
    observed: list  # of the policy where an environment wrote, with gradient: [completion][observed token]
    demonstrated: list  # of the policy where a demonstration stands, with gradient
    episode: list  # [completion], branches of one share it
    node: list | None  # of each token, the draw that its turn came from
    leaf: list  # [completion], which branch it is: copies of one share it
    memory: dict = field(default_factory=dict)
    dropped: list | None = None  # tokens a lottery took out, as the package drew them

    @property
    def count(self):
        return len(self.logp)

    def completions(self):
        return range(self.count)

    def tokens(self, i):
        return range(len(self.logp[i]))

    def members(self, i):
        """The scored completions to the prompt of i, in the same role."""
        return [
            j
            for j in self.completions()
            if (self.groups[j], self.role[j]) == (self.groups[i], self.role[i]) and self.reward[j] is not None
        ]

    def others(self, i):
        """Those of them that are no branch of the same episode."""
        return [j for j in self.members(i) if self.episode[j] != self.episode[i]]

    def path(self, i):
        """The draws that a branch came by; none are known without trees."""
        return () if self.node is None else tuple(dict.fromkeys(self.node[i]))

    def scored(self):
        return [i for i in self.completions() if self.reward[i] is not None]

    def right(self, i):
        return self.parts[i][0] == 1 and self.reward[i] is not None


class _Later(Case):
    """Lists are made where a paper asks for them: none reads all."""

    def __init__(self, **made):
        self._made = {name: value for name, value in made.items() if callable(value)}
        vars(self).update({name: value for name, value in made.items() if not callable(value)})

    def __getattr__(self, name):
        if name not in self._made:
            raise AttributeError(name)
        vars(self)[name] = made = self._made[name]()
        return made


def case_of(batch: TokenBatch, logp: torch.Tensor, extras: Extras, memory, learns=None, rows=None) -> Case:
    """`logp` and the extras may be leaves: gradients flow back to them. `rows`: which rows these are copies of."""

    def cut(values, numbers=True, places=batch.action):
        if values is None:
            return None
        flat = values[places]
        flat = flat.tolist() if numbers else list(flat.unbind())
        rows, start = [], 0
        for count in places.sum(-1).tolist():
            rows.append(flat[start : start + count])
            start += count
        return rows

    steps = cut(batch.step_reward)
    return _Later(
        logp=lambda: cut(logp, numbers=False),
        old=lambda: cut(batch.old_logp),
        behavior=lambda: cut(batch.behavior_logp),
        ref=lambda: cut(batch.ref_logp),
        teacher=lambda: cut(batch.teacher_logp),
        reward=[None if reward != reward else reward for reward in batch.reward.tolist()],
        groups=batch.group.tolist(),
        budget=batch.max_new_tokens,
        value=lambda: cut(batch.value),
        parts=batch.parts.tolist(),
        part_weight=batch.part_weight.tolist(),
        finished=batch.finished.tolist(),
        greedy=batch.greedy_reward.tolist(),
        drawn=batch.drawn.tolist(),
        reference_rewards=[[each for each in row if each == each] for row in batch.reference_rewards.tolist()],
        prompt=batch.prompt.tolist(),
        step_reward=None if steps is None else [[None if each != each else each for each in row] for row in steps],
        segment=lambda: cut(batch.segment),
        anchor=lambda: cut(batch.anchor),
        entropy_before=lambda: cut(batch.entropy),
        entropy=lambda: cut(extras.entropy, numbers=False),
        top=lambda: [[list(each.unbind()) for each in row] for row in cut(extras.top_logp, numbers=False)],
        chose_top=lambda: cut(extras.chose_top),
        divergence=lambda: cut(extras.divergence, numbers=False),
        from_teacher=lambda: cut(extras.teacher_divergence, numbers=False),
        new_value=lambda: cut(extras.value, numbers=False),
        role=batch.role.tolist(),
        returned=[0.0] * batch.num_sequences if batch.returned is None else batch.returned.tolist(),
        truncated=lambda: cut(batch.truncated),
        observed=lambda: cut(logp, numbers=False, places=batch.observed),
        demonstrated=lambda: cut(logp, numbers=False, places=batch.demonstrated),
        episode=list(range(batch.num_sequences)) if batch.episode is None else batch.episode.tolist(),
        node=lambda: cut(batch.node),
        leaf=list(range(batch.num_sequences)) if rows is None else rows.tolist(),
        memory=dict(memory),
        dropped=None if learns is None else [[not each for each in row] for row in cut(learns)],
    )
