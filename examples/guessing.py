"""A game of several turns: find a hidden digit, told "higher" or "lower" after each guess.

    whet train grpo --env examples/guessing.py:Guessing --data seeds:1000 --set optimizer.learning_rate=5e-4

By default it is a digit from 1 to 3, and there are two guesses: 2 first, and then what is told, always wins. The
built-in model knows nothing of the game and writes any digit. `--set env.settings.highest=7` with
`--set env.settings.guesses=3` takes longer to learn. The row's seed is the game: all episodes of a group look for the
same digit.
"""

import random
import re

from whet.types import Completion, InitialObservation, Prompt, StepResult

QUESTION = "Left to right mod 10: ?+?"  # to which the built-in model answers with a digit, any of the ten
ANSWER = re.compile(r"<answer>(\d)</answer>")


class Guessing:
    """One game. A turn that is anything but a guess loses it."""

    def __init__(self, highest: int = 3, guesses: int = 2) -> None:
        self.highest, self.left = highest, guesses
        self.hidden = 0
        self.known = "nothing"  # to the policy: it names the state that a guess is made in

    def start(self, prompt: Prompt) -> InitialObservation:
        self.hidden = random.Random(prompt.meta["seed"]).randint(1, self.highest)
        return InitialObservation(({"role": "user", "content": QUESTION},), state=self.known)

    def step(self, completion: Completion) -> StepResult | float:
        found = ANSWER.fullmatch(completion)
        guess = int(found[1]) if found else None
        self.left -= 1
        if guess == self.hidden:
            return 1.0
        if guess is None or self.left == 0:
            return 0.0
        told = "higher" if guess < self.hidden else "lower"
        self.known += f", {told} than {guess}"
        return StepResult(({"role": "user", "content": told},), state=self.known)
