"""A clip rule of your own, and a method made with it, without editing the package.

    python examples/own_clip_rule.py

A hard clip drops a token the moment its ratio leaves the band. `Taper` lets it fade: from the edge of the band on, the
weight falls in a straight line and is 0 where the ratio is another `fade` away.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

import whet
from whet.objective import PRESETS, Preset
from whet.objective.component import Component
from whet.pages.methods import explanation_with_plot


@whet.register("clip")
@dataclass(frozen=True)
class Taper(Component):
    """weight = r (1 - (|r - 1| - band) / fade), between 0 and r, on the side to which A pushes; r elsewhere."""

    band: float = 0.2
    fade: float = 0.3
    name = "taper"
    uses_ratio = True

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        away = torch.where(advantage > 0, ratio - 1, 1 - ratio)
        return ratio * (1 - (away - self.band) / self.fade).clamp(0, 1)

    def surrogate(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        return self(ratio, advantage, action, logp) * advantage

    def words(self) -> str:
        return f"let a token fade out once its ratio is {self.band:g} from 1, until {self.band + self.fade:g}"

    def symbols(self) -> str:
        return f"sg[r taper(r, {self.band:g}, {self.fade:g})] A log pi"


GRPO = PRESETS["grpo"]
TAPERED = whet.register(
    "preset",
    Preset(
        replace(GRPO.objective, name="tapered_grpo", clip=Taper()),
        title="Tapered GRPO",
        paper="this file",
        formula="J = 1/G SUM_i 1/n_i SUM_t [ sg[r taper(r)] A log pi - beta k3 ]",
        fixes="the edge of a hard clip, where a token's whole gradient appears and disappears",
        breaks="two numbers to choose instead of one",
    ),
)


def main(steps: int = 4) -> whet.Run:
    print(explanation_with_plot("tapered_grpo"))
    updates = {"updates_per_step": 2, "prompts_per_step": 4, "group_size": 4}
    run = whet.train("tapered_grpo", steps=steps, batch=updates, objective={"clip": {"fade": 0.5}})
    print(run.before, run.after)
    return run


if __name__ == "__main__":
    main()
