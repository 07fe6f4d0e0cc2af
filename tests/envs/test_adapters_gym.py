"""Gymnasium-like environments: without a package, and Gymnasium, gem and TextArena themselves."""

from __future__ import annotations

import math
import random
import threading

import numpy
import pytest

from tests.support.packages import needs
from tests.support.scripted import ScriptedEngine, tool_tokenizer
from whet.data.chat import prompt_tokens
from whet.envs.adapters.gym import StepEnvironment, gem_environment, gym_environment
from whet.envs.adapters.shared import OwnRandom, seed_of
from whet.envs.adapters.textarena import TextArenaGame
from whet.envs.sections import OWN_TASKS, env_defaults
from whet.rollout.episode_runner import EpisodePlan
from whet.rollout.episodes import EnvironmentRunner, EpisodeLimits
from whet.types import Completion, Prompt, Sampling, StopReason, WhetError


def prompt(seed=None, content=""):
    return Prompt("row-1", ({"role": "user", "content": content},), meta={} if seed is None else {"seed": seed})


class Counting:
    """Count up to three; the answers' shape is a setting."""

    def __init__(self, step=("seen", 1.0, False, False, {})):
        self.answer, self.closed = step, False

    def reset(self, seed=None):
        return f"start {seed}", {}

    def step(self, action):
        return self.answer(action) if callable(self.answer) else self.answer

    def close(self):
        self.closed = True


class TestStepEnvironment:
    def test_an_observation_follows_the_prompt_and_answers_follow_turns(self):
        env = StepEnvironment(Counting(lambda action: (f"you said {action}", 0.5, action == "end", False, {})))
        opening = env.start(prompt(7, "Play."))
        assert opening.messages == ({"role": "user", "content": "Play.\n\nstart 7"},)
        answer = env.step(Completion("go"))
        assert (answer.messages, answer.reward, answer.done) == (
            ({"role": "user", "content": "you said go"},),
            0.5,
            False,
        )
        assert env.step(Completion("end")).done

    def test_a_row_without_a_seed_gets_the_same_one_every_time(self):
        assert seed_of(prompt()) == seed_of(prompt()) != seed_of(Prompt("row-2", ()))
        with pytest.raises(ValueError, match="has the seed 'x'; expected a whole number"):
            seed_of(prompt("x"))

    def test_four_values_as_it_was_before_gymnasium(self):
        env = StepEnvironment(Counting(("over", 2, True, {})))
        env.start(prompt(1))
        answer = env.step(Completion("a"))
        assert (answer.reward, answer.done) == (2.0, True)

    def test_any_observation_can_be_read_as_json(self):
        seen = {
            "at": numpy.array([1, 2]),
            "carries": numpy.int64(0),
            "note": "caf\u00e9",
            "parts": (numpy.float64(0.5),),
        }
        env = StepEnvironment(Counting((seen, 0.0, False, False, {})), observation="json")
        assert env.start(prompt(7)).messages[0]["content"] == '"start 7"'
        content = env.step(Completion("go")).messages[0]["content"]
        assert content == '{"at": [1, 2], "carries": 0, "note": "caf\u00e9", "parts": [0.5]}'

    def test_the_tasks_of_a_class_are_seeds_as_those_of_gymnasium_are(self):
        name = f"{__name__}:Counting"
        assert env_defaults({"env": {"name": name}}) == OWN_TASKS["gym"]
        assert env_defaults({"env": {"name": name}, "data": {"source": "task:arithmetic"}}) == {}
        assert env_defaults({"env": {"name": "examples/guessing.py:Guessing"}}) == {}
        assert env_defaults({"env": {"name": "no_such.py:Game"}}) == {}

    def test_truncated_ends_the_episode_too(self):
        env = StepEnvironment(Counting(("over", 0.0, False, numpy.bool_(True), {})))
        env.start(prompt(1))
        assert env.step(Completion("a")).done

    @pytest.mark.parametrize(
        ("answer", "complaint"),
        [
            (("seen", float("nan"), False, False, {}), "Counting.step gave a reward of nan; expected a finite number"),
            (("seen", "1", False, False, {}), "Counting.step gave a reward of '1'; expected a number"),
            (("seen", None, False, False, {}), "gave a reward of None; expected a number"),
            (
                ([1], 1.0, False, False, {}),
                "Counting.step gave a value of type list; expected text: give env.settings.observation=",
            ),
            (("seen", 1.0), r"Counting.step gave a tuple of 2; expected \(observation, reward, terminated"),
            ("seen", "Counting.step gave a str; expected"),
            (("seen", 1.0, "no", False, {}), "gave a value of type str; expected True or False"),
        ],
    )
    def test_a_wrong_answer_is_named(self, answer, complaint):
        env = StepEnvironment(Counting(answer))
        env.start(prompt(1))
        with pytest.raises((TypeError, ValueError), match=complaint):
            env.step(Completion("a"))

    def test_states_are_named_where_asked(self):
        env = StepEnvironment(Counting(), names_states=True)
        assert env.start(prompt(3)).state == "start 3"
        assert env.step(Completion("a")).state == "seen"
        assert StepEnvironment(Counting()).start(prompt(3)).state is None

    def test_it_is_closed(self):
        inner = Counting()
        StepEnvironment(inner).close()
        assert inner.closed

    def test_without_a_seed_the_shared_generators_are_the_episodes_own(self):
        class Dice:
            def reset(self):
                return f"a {random.randrange(10**9)} and a {numpy.random.randint(10**9)}"

            def step(self, action):
                return str(random.random()), 0.0, False, {}

        def played(seed):
            env = StepEnvironment(Dice())
            return [env.start(prompt(seed)).messages, *(env.step(Completion("a")).messages for _ in range(3))]

        random.seed(5)
        expected = random.random()
        random.seed(5)
        first, again, other = played(1), played(1), played(2)
        assert first == again != other
        assert random.random() == expected


def test_episodes_side_by_side_keep_their_own_numbers():
    def drawn(seed, out):
        own = OwnRandom(seed)
        for _ in range(50):
            with own():
                out.append(random.random())

    alone = []
    drawn(1, alone)
    together = [[] for _ in range(4)]
    threads = [threading.Thread(target=drawn, args=(number % 2, out)) for number, out in enumerate(together)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together[1] == together[3] == alone != together[0]


@needs("gymnasium")
class TestGymnasium:
    names = ("left", "down", "right", "up")

    def lake(self, **settings):
        return gym_environment(
            "FrozenLake-v1", **{"observation": "render", "actions": self.names, "is_slippery": False, **settings}
        )

    def test_frozen_lake_is_crossed(self):
        env = self.lake()
        (message,) = env.start(prompt(1)).messages
        assert message["content"].split() == ["[S]FFF", "FHFH", "FFFH", "HFFG"]
        answers = [env.step(Completion(f"I go {move}")) for move in ["down", "down", "right", "right", "down", "right"]]
        assert [answer.done for answer in answers] == [False] * 5 + [True]
        assert [answer.reward for answer in answers] == [0.0] * 5 + [1.0]
        assert "(Down)\nSFFF\n[F]HFH" in answers[0].messages[0]["content"]
        env.close()

    def test_an_action_that_cannot_be_read_is_counted_and_the_episode_goes_on(self):
        said = Counting(lambda action: (f"you said {action}", 0.5, False, False, {}))
        environment = StepEnvironment(said, action=int)
        environment.start(Prompt("1", (), ""))
        answer = environment.step(Completion("nothing", [], ""))
        assert answer.counts == {"malformed_calls": 1} and not answer.done and answer.reward == 0.0
        assert answer.messages[0]["content"].startswith("No action could be read (ValueError: ")
        assert environment.step(Completion("7", [], "")).reward == 0.5

    def test_a_number_beyond_the_space_is_no_action_and_costs_no_episode(self):
        env = self.lake(action=lambda written: int(written) if written else None)
        env.start(prompt(1))
        for written, read in (("99", "99"), ("", "None")):
            answer = env.step(Completion(written))
            assert answer.messages[0]["content"] == f"No action was read: {read} is not in Discrete(4)."
            assert answer.counts == {"malformed_calls": 1} and not answer.done and answer.reward == 0.0
        assert "(Right)" in env.step(Completion("2")).messages[0]["content"]

    def test_an_action_is_the_last_that_is_named(self):
        env = self.lake()
        env.start(prompt(1))
        assert "(Right)" in env.step(Completion("not up, but RIGHT")).messages[0]["content"]
        assert "(Left)" in env.step(Completion("2? No: 0")).messages[0]["content"]
        answer = env.step(Completion("upwards, 17"))
        assert answer.messages[0]["content"] == "No action was found. Write one of: left, down, right, up."
        assert answer.counts == {"malformed_calls": 1} and not answer.done

    def test_slippery_ice_is_the_same_for_the_same_seed(self):
        def way(seed):
            env = self.lake(is_slippery=True)
            env.start(prompt(seed))
            return [env.step(Completion("right")).messages for _ in range(3)]

        assert way(3) == way(3)
        assert len({str(way(seed)) for seed in range(6)}) > 1

    @pytest.mark.parametrize(
        ("settings", "complaint"),
        [
            (
                {"id": "FrozenLake-v1"},
                "observations are of the space Discrete, and a policy reads text; give env.settings.observation=render",
            ),
            ({"id": "FrozenLake-v9"}, "the gym environment 'FrozenLake-v9' cannot be made: VersionNotFound"),
            ({"id": "CartPole-v1"}, "of the space Box"),
            (
                {"id": "Pendulum-v1", "observation": str},
                "its actions are of the space Box; give env.settings.action=file.py:function",
            ),
            ({"id": "FrozenLake-v1", "observation": "text"}, "observation is 'text'; give env.settings.observation="),
            ({"id": "FrozenLake-v1", "observation": str, "actions": ["up"]}, "actions has 1 names, and its space 4"),
            ({"id": "FrozenLake-v1", "observation": str, "actions": "left"}, "actions is the text 'left'; expected a"),
        ],
    )
    def test_what_does_not_fit_is_refused_when_it_is_made(self, settings, complaint):
        with pytest.raises(WhetError, match=complaint):
            gym_environment(**settings)

    def test_an_observation_function_writes_the_text(self):
        env = gym_environment("CartPole-v1", observation=lambda seen: f"{len(seen)} numbers")
        assert env.start(prompt(1)).messages[0]["content"] == "4 numbers"
        assert env.step(Completion("1")).reward == 1.0


@needs("gem")
class TestGem:
    def test_a_number_is_guessed(self):
        env = gem_environment("game:GuessTheNumber-v0-easy", max_turns=10)
        opening = env.start(prompt(5))
        assert "between 1 and 10" in opening.messages[0]["content"]
        low, high, answers = 1, 10, []
        while not answers or not answers[-1].done:
            guess = (low + high) // 2
            answers.append(env.step(Completion(f"\\boxed{{{guess}}}")))
            seen = "".join(message["content"] for message in answers[-1].messages)
            low, high = (guess + 1, high) if "higher" in seen else (low, guess - 1)
        assert answers[-1].reward == 1.0
        assert all(answer.messages[0]["content"].endswith("\nEnter your next guess.") for answer in answers[:-1])

    def test_the_seed_decides_the_game_and_the_log_stays_quiet(self):
        import logging

        def board(seed):
            return gem_environment("game:Minesweeper-v0-easy").start(prompt(seed)).messages, [
                gem_environment("game:Mastermind-v0-easy").start(prompt(seed)).messages
            ]

        assert board(3) == board(3)
        assert logging.getLogger().level == logging.WARNING

    def test_a_game_whose_words_are_missing_is_one_line(self, capfd, monkeypatch):
        import nltk

        def missing(*_, **__):
            print("[nltk_data] Error loading words")
            raise LookupError("*****\n  Resource 'words' not found.\n  Please use the NLTK Downloader")

        monkeypatch.setattr(nltk, "download", missing)
        with pytest.raises(WhetError, match=r"'game:Wordle-v0-easy' needs nltk's data 'words'; run python -m nltk\."):
            gem_environment("game:Wordle-v0-easy")
        assert capfd.readouterr() == ("", "")

    def test_an_unknown_game_is_one_line(self):
        with pytest.raises(WhetError, match=r"gem has no environment 'game:Sudoku-v0'.*did you mean 'game:Sudoku-v0-"):
            gem_environment("game:Sudoku-v0")


# of TextArena 0.7.4, with the network cut
ONE_PLAYER = (
    *("2048", "Bandit", "Blackjack", "Countdown", "Crosswords", "Cryptarithm", "FifteenPuzzle", "FrozenLake"),
    *("GuessTheNumber", "LightsOut", "LogicPuzzle", "Mastermind", "Minesweeper", "PegJump", "RushHour", "Secretary"),
    *("Set", "Slitherlink", "Sokoban", "Sudoku", "ThreeCardMonte", "TowerOfHanoi"),
)
LAID_OUT = ("RushHour", "Sokoban")  # seconds until a board is found that can be solved
GAMES = [pytest.param(game, marks=pytest.mark.slow) if game in LAID_OUT else game for game in ONE_PLAYER]


@needs("textarena")
class TestTextArena:
    @pytest.mark.parametrize("game", GAMES)
    def test_a_game_is_played_to_its_end_and_again(self, game, capfd):
        """Whatever is written, a game ends with a finite reward; the same seed plays the same game."""
        numbers = random.Random(7)
        written = [f"[{numbers.randrange(9)} {numbers.randrange(9)}] [up]" for _ in range(60)]
        found = []
        for _ in range(2):
            env = TextArenaGame(f"{game}-v0")
            turns = [env.start(prompt(11)).messages]
            for text in written:
                answer = env.step(Completion(text))
                turns.append((answer.messages, answer.reward, answer.done))
                if answer.done:
                    break
                assert answer.messages[0]["content"] and answer.reward == 0.0
            found.append(turns)
        assert found[0] == found[1]
        assert turns[-1][2] and isinstance(turns[-1][1], float)
        assert capfd.readouterr() == ("", "")

    @pytest.mark.parametrize("game", ["Bandit", "Countdown", "GuessTheNumber", "Sudoku"])
    def test_a_game_is_played_by_the_runner_and_prints_nothing(self, game, capfd):
        tokenizer, numbers = tool_tokenizer(), random.Random(7)
        tokenizer.model_max_length = 100_000
        engine = ScriptedEngine(tokenizer, lambda *_: f"[{numbers.randrange(9)} {numbers.randrange(9)}] [up]")
        runner = EnvironmentRunner(
            engine, tokenizer, lambda: TextArenaGame(f"{game}-v0"), EpisodeLimits(max_turns=40), context=100_000
        )
        row = prompt(1)
        (samples,) = runner.play(EpisodePlan([row], [prompt_tokens(tokenizer, row)], 2, Sampling(60), (0,)))
        notes = runner.take_notes()
        assert notes.failures == () and len(samples) == 2
        for sample in samples:
            assert sample.stop in (StopReason.END, StopReason.TURNS) and math.isfinite(sample.returned)
            roles = [turn.role for turn in sample.turns]
            assert roles[:3] == ["prompt", "assistant", "user"] and sample.turns[2].text.startswith("[GAME] ")
        assert capfd.readouterr() == ("", "")

    def test_a_game_is_won(self):
        env = TextArenaGame("TowerOfHanoi-v0")
        assert env.start(prompt(1)).messages[0]["content"].startswith("[GAME] ")
        moves = ["A C", "A B", "C B", "A C", "B A", "B C", "A C"]
        answers = [env.step(Completion(f"[{move}]")) for move in moves]
        assert [answer.done for answer in answers] == [False] * 6 + [True]
        assert answers[-1].reward == 1.0 and answers[-1].metrics["turn_count"] >= 6

    def test_only_what_is_new_is_shown(self):
        env = TextArenaGame("TowerOfHanoi-v0")
        first = env.start(prompt(1)).messages[0]["content"]
        seen = env.step(Completion("[A C]")).messages[0]["content"]
        assert first not in seen and len(seen) < len(first) + 200

    def test_the_policy_plays_all_seats_without_an_opponent(self):
        """Three in a row for the first player: each seat is a conversation and a sample with a return of its own."""
        tokenizer, moves = tool_tokenizer(), iter("031425")
        tokenizer.model_max_length = 100_000
        runner = EnvironmentRunner(
            ScriptedEngine(tokenizer, lambda *_: f"[{next(moves)}]"),
            tokenizer,
            lambda: TextArenaGame("TicTacToe-v0", players=2),
            EpisodeLimits(max_turns=40),
            context=100_000,
        )
        row = Prompt(
            "1", ({"role": "system", "content": "Win."}, {"role": "user", "content": "Play."}), meta={"seed": 1}
        )
        (samples,) = runner.play(EpisodePlan([row], [prompt_tokens(tokenizer, row)], 1, Sampling(60), (0,)))
        assert [(sample.role, sample.returned) for sample in samples] == [("player 0", 1.0), ("player 1", -1.0)]
        assert {sample.episode for sample in samples} == {"1#0"}
        for sample, own in zip(samples, ("012", "34"), strict=True):
            assert [turn.text for turn in sample.turns if turn.role == "assistant"] == [f"[{move}]" for move in own]
            assert "Win." in sample.turns[0].text and "Play." in sample.turns[0].text
        with pytest.raises(WhetError, match="seat has no effect without opponent"):
            TextArenaGame("TicTacToe-v0", players=2, seat=1)

    def test_a_game_for_other_players_is_refused(self):
        with pytest.raises(WhetError, match="cannot be made: AssertionError: The number of players has to be 2"):
            TextArenaGame("TicTacToe-v0")
        with pytest.raises(WhetError, match="'SpiteAndMalice-v0' is for several players, and players is 1"):
            TextArenaGame("SpiteAndMalice-v0")

    @pytest.mark.parametrize(("seat", "reward"), [(0, 1.0), (1, -1.0)])
    def test_a_game_for_two_against_an_opponent(self, seat, reward):
        """Three in a row for the first player, whichever seat the policy has."""
        rows = {0: iter("012"), 1: iter("345")}
        env = TextArenaGame("TicTacToe-v0", players=2, seat=seat, opponent=lambda seen: f"[{next(rows[1 - seat])}]")
        assert "Player" in env.start(prompt(1)).messages[0]["content"]
        answers = []
        while not answers or not answers[-1].done:
            answers.append(env.step(Completion(f"[{next(rows[seat])}]")))
        assert answers[-1].reward == reward

    def test_the_process_keeps_its_random_numbers(self):
        random.seed(3)
        expected = random.random()
        random.seed(3)
        env = TextArenaGame("2048-v0")
        env.start(prompt(1))
        env.step(Completion("[up]"))
        assert random.random() == expected

    def test_a_game_whose_words_are_missing_is_one_line(self, capfd, monkeypatch):
        import nltk

        def missing(*_, **__):
            print("[nltk_data] Error loading words")
            raise LookupError("*****\n  Resource 'words' not found.\n  Please use the NLTK Downloader")

        monkeypatch.setattr(nltk, "download", missing)
        with pytest.raises(
            WhetError, match=r"'Wordle-v0' needs nltk's data 'words'; run python -m nltk.downloader words"
        ):
            TextArenaGame("Wordle-v0")
        assert capfd.readouterr() == ("", "")

    def test_an_unknown_game_is_one_line(self):
        with pytest.raises(WhetError, match=r"textarena has no game 'Sudoko-v0' \(did you mean 'Sudoku-v0'\?\)"):
            TextArenaGame("Sudoko-v0")
