"""The games of TextArena, played by the policy alone, in all seats, or against opponents of yours.

The package shows a player the whole history at every turn. A conversation has it already, so only what is new is
shown: its observation wrappers are taken off, its action wrappers stay. A game's reward comes at its end; the turns
before it get 0, so that a game that runs into a limit has lost.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any

from whet.envs.adapters.shared import (
    OwnRandom,
    cannot_be_made,
    flag,
    function_of,
    number,
    numbers,
    opened,
    optional,
    quiet,
    seed_of,
    text,
)
from whet.types import Completion, InitialObservation, Message, Prompt, StepResult, WhetError, did_you_mean

INSTALL = "pip install 'whet[textarena]'"


class TextArenaGame:
    """One game. `players` take part, and the policy has all seats: self-play, with a role and a return for each.

    With an `opponent`, a function from what a player sees to what it writes, the policy has the seat `seat` and the
    opponent all others. `settings` are the game's own.
    """

    answers_as = "user"

    def __init__(
        self,
        id: str,
        *,
        players: int = 1,
        seat: int | None = None,
        opponent: Callable[[str], str] | str | None = None,
        **settings: Any,
    ) -> None:
        if seat is not None and opponent is None and players > 1:
            raise WhetError(
                "textarena: seat has no effect without opponent: the policy has all seats; drop it, or give one"
            )
        if seat is not None and not 0 <= seat < players:
            raise WhetError(f"textarena: seat is {seat} of {players} players; give 0 to {players - 1}")
        self._id, self._players = id, players
        self.seats = 1 if opponent is not None else players  # that the policy has
        self._seat: int | None = None if self.seats > 1 else seat or 0  # its only one
        self._opponent = None if opponent is None else function_of(opponent, "opponent")
        _check_players(id, players)
        self._game = _game(id, settings)
        self._random = OwnRandom(0)

    def start(self, prompt: Prompt) -> InitialObservation:
        """Reset the game with the row's seed and play the opponents' moves up to the policy's first turn."""
        seed = seed_of(prompt)
        self._random = OwnRandom(seed)
        with self._random():
            self._game.reset(num_players=self._players, seed=seed)
            done = self._play_others()
            seen = self._seen()
        if done:
            raise ValueError(f"textarena: {self._id!r} was over before the policy's first turn with the seed {seed}")
        self._prompt = prompt
        self._seen_first = {self._game.state.current_player_id}
        return InitialObservation(opened(prompt, seen), role=self._role())

    def step(self, completion: Completion) -> StepResult:
        """Play the policy's move and those of the opponents; the reward comes when the game is over."""
        with self._random():
            done = self._moved(str(completion)) or self._play_others()
            if not done:
                return self._next_turn()
            rewards, infos = self._game.close()
        where = f"textarena's {self._id!r}"
        mine = range(self._players) if self._seat is None else [self._seat]
        missing = [player for player in mine if player not in (rewards or {})]
        if missing:
            raise ValueError(f"{where} ended without a reward for player {missing[0]}")
        about = {player: infos.get(player, {}) for player in mine}
        earned = {player: number(_unswapped(rewards[player], about[player]), where) for player in mine}
        reason = next((str(info["reason"]) for info in about.values() if info.get("reason")), "")
        last = ({"role": "user", "content": f"[GAME] {reason}"},) if reason else ()
        if self._seat is None:
            by_role = {_role(player): reward for player, reward in earned.items()}
            return StepResult(last, done=True, rewards=by_role)
        return StepResult(last, reward=earned[self._seat], done=True, metrics=numbers(about[self._seat]))

    def _role(self) -> str:
        """The role the policy plays now; none in particular where the game has a single seat."""
        return "" if self._seat is not None else _role(self._game.state.current_player_id)

    def _next_turn(self) -> StepResult:
        player, seen = self._game.state.current_player_id, self._seen()
        if player in self._seen_first or self._seat is not None:
            messages: tuple[Message, ...] = ({"role": "user", "content": seen},)
        else:  # its conversation begins as the first player's did
            messages = opened(self._prompt, seen)
        self._seen_first.add(player)
        return StepResult(messages, reward=0.0, role=self._role())

    def _play_others(self) -> bool:
        """The opponents' turns, until it is the policy's or the game is over."""
        while self._seat is not None and self._game.state.current_player_id != self._seat:
            if self._opponent is None:
                raise ValueError(f"textarena: {self._id!r} asks player {self._game.state.current_player_id} for a turn")
            if self._moved(text(self._opponent(self._seen()), "the opponent")):
                return True
        return False

    def _moved(self, written: str) -> bool:
        done, _ = self._game.step(action=written)
        return flag(done, f"textarena's {self._id!r}")

    def _seen(self) -> str:
        """What is new to the player whose turn it is; its own moves are in the conversation already.

        Some games hand over the parts of an observation in the wrong order, always of a player's own move.
        """
        player, observed = self._game.get_observation()
        names = self._game.state.role_mapping
        lines = [
            f"[{names.get(sender, f'Player {sender}')}] {message}"
            for sender, message, _ in observed
            if sender != player and isinstance(message, str)
        ]
        return "\n".join(lines)


def _role(player: int) -> str:
    return f"player {player}"


def _unswapped(reward: Any, about: Mapping[str, Any]) -> Any:
    """Reward and reason in this order: some games swap the two for an invalid move."""
    reason = str(about.get("reason", "")).removeprefix("Invalid Move: ")
    if isinstance(reward, str):
        with contextlib.suppress(ValueError):
            return float(reason)
    return reward


@functools.cache
def _check_players(id: str, players: int) -> None:
    """A game for two can be reset with one player and then wait for ever for the other's turn."""
    with quiet():
        game = _game(id, {})
        try:
            with OwnRandom(0)():
                game.reset(num_players=players, seed=0)
        except Exception as error:
            raise cannot_be_made(
                f"textarena's {id!r} with players={players}", error, "choose another number, with an opponent for two"
            ) from error
    is_single = type(game.state).__name__ == "SinglePlayerState"
    if is_single != (players == 1):
        needed = "is for one player" if is_single else "is for several players"
        raise WhetError(f"textarena's {id!r} {needed}, and players is {players}; choose another number")


def _game(id: str, settings: dict[str, Any]) -> Any:
    with optional("textarena", INSTALL):
        import textarena
        from textarena.envs.registration import ENV_REGISTRY
    if id not in ENV_REGISTRY:
        raise WhetError(
            f"textarena has no game {id!r}{did_you_mean(id, ENV_REGISTRY)}; it has {len(ENV_REGISTRY)} games"
        )
    try:
        with OwnRandom(0)():
            game = textarena.make(id, **settings)
    except Exception as error:
        fix = "it needs a newer Python" if isinstance(error, SyntaxError) else "check its settings"
        raise cannot_be_made(f"textarena's {id!r}", error, f"{fix}, or choose another game") from error
    wrappers = []
    while isinstance(game, textarena.Wrapper):
        wrappers.append(type(game))
        game = game.env
    _silence(type(game).__module__)
    for wrapper in reversed(wrappers):
        if not issubclass(wrapper, textarena.ObservationWrapper):
            game = wrapper(game)
    return game


def _silence(game: str) -> None:
    """Stop the modules of this game from printing, which would break the run's own lines."""
    package = game.rpartition(".")[0]
    for name, module in list(sys.modules.items()):
        if package and name.startswith(package):
            vars(module)["print"] = lambda *_, **__: None
