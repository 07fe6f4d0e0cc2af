"""What a run does about its own problems, where it was told to: stop, save a checkpoint, lower the learning rate.

A problem must hold for some consecutive steps, and is acted on again after as many more. What evaluations alone say is
acted on after each evaluation that says it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from whet.record.health.diagnosis import RULES
from whet.record.health.finding import ACTIONS, recorded_finding
from whet.record.sections import HealthSection

HealthAction = Literal["stop", "checkpoint", "lower_rate"]


@dataclass
class HealthWatch:
    """How many steps each problem has held, and what is left of the learning rate; part of every checkpoint."""

    policy: HealthSection  # with the names of rules
    streaks: dict[str, int] = field(default_factory=dict)
    rate_factor: float = 1.0

    def look(self, health: Sequence[str], is_evaluated: bool = False) -> dict[HealthAction, str]:
        """What to do after a step with these problems, each with a sentence that is recorded with the step.

        `is_evaluated`: there was an evaluation since the step before.
        """
        held = {recorded_finding(text).name for text in health}
        self.streaks = {name: self.streaks.get(name, 0) + 1 for name in self.policy.on_problem if name in held}
        taken: dict[HealthAction, str] = {}
        for name, count in self.streaks.items():
            action = self.policy.on_problem[name]
            if action == "report":
                continue
            is_due = is_evaluated if RULES[name].by_evaluation else count % self.policy.after_steps == 0
            if is_due and action not in taken:
                lasted = "" if RULES[name].by_evaluation else f" has held for {count} steps"
                taken[action] = f"{ACTIONS[action]}: {name}{lasted}{self._effect(name, action)}."
        return taken

    def _effect(self, name: str, action: HealthAction) -> str:
        if action == "stop" and RULES[name].by_evaluation:  # it would hold in the first step of a resume, too
            return f"; to go on, resume with health.on_problem.{name.replace(' ', '_')}=report"
        if action != "lower_rate":
            return ""
        self.rate_factor *= self.policy.rate_factor
        return f"; the learning rate is now {self.rate_factor:.3g} times what the schedule says"
