"""TRL's environment class: alone, and beside TRL's own loop on the same completions."""

from __future__ import annotations

import asyncio
import copy
import json
from types import SimpleNamespace

import pytest

from tests.support.packages import needs
from whet.envs.adapters.trl import trl_environment
from whet.envs.tools.formats import Calling
from whet.rollout.call_pool import CallPool
from whet.types import Completion, Prompt, StopReason, WhetError

POOL = CallPool()


def call(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


class Counter:
    """TRL's own example of an environment, with a few more tools."""

    def __init__(self):
        self.count = self.resets = 0

    def reset(self, **row):
        self.row, self.count = row, row.get("start", 0)
        self.resets += 1
        return f" It stands at {self.count}." if self.count else None

    def increment(self, step: int) -> int:
        """Count on.

        Args:
            step: How far.
        """
        self.count += step
        return self.count

    def describe(self) -> dict:
        """Say where it stands."""
        return {"count": self.count, "is_even": self.count % 2 == 0}

    async def later(self, text: str) -> str:
        """Say it later.

        Args:
            text: What to say.
        """
        await asyncio.sleep(0)
        return text.upper()

    def fail(self) -> str:
        """Never works."""
        raise ValueError("out of order")

    def get_reward(self) -> float:
        return self.count / 10

    def _hidden(self) -> int:
        return 1


ROW = Prompt("row", ({"role": "user", "content": "Count."},), answer="9", meta={"start": 3, "note": "n"})
SCRIPT = (
    call("increment", step=4) + "\n" + call("describe"),
    call("later", text="hello") + "\n" + call("increment", step=1),
    "It stands at 8.",
)


def now(function, *arguments):
    """As the runner calls an environment."""
    return POOL.submit(function, *arguments).result(timeout=20)


def played(make, prompt, script):
    env = make()
    opening = now(env.start, prompt)
    return env, opening, [now(env.step, Completion(text)) for text in script]


def test_an_episode():
    _, opening, (first, second, last) = played(trl_environment(Counter), ROW, SCRIPT)
    assert opening.messages == ({"role": "user", "content": "Count. It stands at 3."},)
    assert [schema["function"]["name"] for schema in opening.tools] == ["describe", "fail", "increment", "later"]
    assert [message["content"] for message in first.messages] == ["7", "{'count': 7, 'is_even': False}"]
    assert [message["content"] for message in second.messages] == ["HELLO", "8"]
    assert {message["role"] for message in (*first.messages, *second.messages)} == {"tool"}
    assert (last.done, last.reward, last.messages) == (True, 0.8, ())
    assert first.reward is None and first.counts == {"tool_calls": 2}


def test_reset_gets_the_whole_row():
    rows = []

    class Noting(Counter):
        def reset(self, **row):
            rows.append(row)

    _, opening, _ = played(trl_environment(Noting), ROW, ())
    assert rows == [{"prompt": [{"role": "user", "content": "Count."}], "start": 3, "note": "n", "answer": "9"}]
    assert opening.messages == ROW.messages


def test_a_failing_tool_is_answered_and_counted():
    _, _, (answer,) = played(trl_environment(Counter), ROW, [call("fail") + call("nothing") + call("increment")])
    assert "out of order" in answer.messages[0]["content"]
    assert answer.counts["tool_errors"] == 1 and answer.counts["unknown_tools"] == 1 and not answer.done


def test_an_async_reward_and_none():
    class Judged(Counter):
        async def get_reward(self):
            await asyncio.sleep(0)
            return None if self.count == 3 else 0.5

    assert played(trl_environment(Judged), ROW, SCRIPT)[2][-1].reward == 0.5
    assert played(trl_environment(Judged), ROW, SCRIPT[2:])[2][-1].reward is None


def test_an_episode_that_a_limit_ends_is_scored_as_it_stands():
    env, _, _ = played(trl_environment(Counter), ROW, SCRIPT[:1])
    assert now(env.cut_off, StopReason.TURNS) == 0.7


def test_without_get_reward_others_score():
    class Plain:
        def reset(self, **row):
            return None

        def look(self) -> str:
            """Look."""
            return "seen"

    answer = played(trl_environment(Plain), ROW, ["done"])[2][-1]
    assert answer.done and answer.reward is None


@pytest.mark.parametrize(
    ("reward", "complaint"),
    [(float("nan"), "Scored.get_reward gave a reward of nan"), ("good", "gave a reward of 'good'; expected a number")],
)
def test_a_wrong_reward_is_named(reward, complaint):
    class Scored(Counter):
        def get_reward(self):
            return reward

    with pytest.raises((TypeError, ValueError), match=complaint):
        played(trl_environment(Scored), ROW, ["done"])


def test_a_wrong_text_of_reset_is_named():
    class Odd(Counter):
        def reset(self, **row):
            return 5

    with pytest.raises(TypeError, match=r"Odd.reset gave a value of type int; expected text or None"):
        played(trl_environment(Odd), ROW, ())


def test_several_classes_are_routed_by_the_column():
    class Other(Counter):
        def reset(self, **row):
            assert "environment" not in row
            return " Other."

    make = trl_environment({"count": Counter, "other": Other})
    routed = Prompt("row", ROW.messages, meta={"environment": "other"})
    assert played(make, routed, ())[1].messages[0]["content"] == "Count. Other."
    with pytest.raises(ValueError, match="has environment='third'; expected one of 'count', 'other'"):
        played(make, Prompt("row", ROW.messages, meta={"environment": "third"}), ())


def test_tools_beside_the_environment():
    def double(number: int) -> int:
        """Twice the number.

        Args:
            number: Any.
        """
        return 2 * number

    make = trl_environment(Counter, Calling(tools=[double]))
    _, opening, (answer,) = played(make, ROW, [call("double", number=4)])
    assert opening.tools[0]["function"]["name"] == "double"
    assert answer.messages[0]["content"] == "8"


def test_bad_classes_are_refused_before_training():
    class Untyped(Counter):
        def add(self, number):
            """Add.

            Args:
                number: Any.
            """

    class Bare:
        def reset(self, **row): ...

    class Demanding(Counter):
        def __init__(self, port):
            super().__init__()

    with pytest.raises(WhetError, match=r"'add'.*number"):
        trl_environment(Untyped)
    with pytest.raises(WhetError, match="Bare has reset and no other public method"):
        trl_environment(Bare)
    with pytest.raises(WhetError, match=r"Demanding cannot be made: TypeError.*must take no arguments"):
        trl_environment(Demanding)


class Stop(Exception):
    """Ends TRL's step where the prompts are ready."""


@pytest.fixture(scope="module")
def tokenizer():
    """A small tokenizer with Qwen3's template, as TRL changes it for training."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from trl import chat_template_utils as templates

    core = Tokenizer(
        models.BPE(vocab={c: n for n, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[])
    )
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    made.add_special_tokens({"extra_special_tokens": ["<|im_start|>"]})
    made.add_tokens(["<tool_call>", "</tool_call>", "<think>", "</think>"])
    made.chat_template = templates.qwen3_chat_template
    made = templates.add_response_schema(made)
    made.chat_template = templates.qwen3_training_chat_template  # as its trainer does
    return made


@needs("trl")
class TestBesideTrl:
    def trainer(self, kind, tokenizer, script, rows):
        """What the two methods of GRPOTrainer need of it; the completions are scripted."""
        from trl.trainer.grpo_trainer import GRPOTrainer

        instance = kind()
        tools = [getattr(instance, name) for name in ("describe", "fail", "increment", "later")]
        pool, turns = CallPool(), iter(script)

        def write(prompt_ids, *_, **__):
            ids = tokenizer(next(turns) + "<|im_end|>", add_special_tokens=False)["input_ids"]
            return [ids], [[0.0] * len(ids)]

        trainer = SimpleNamespace(
            accelerator=SimpleNamespace(device="cpu"),
            model=SimpleNamespace(training=True, config=SimpleNamespace(max_position_embeddings=10**6)),
            environment_factories={None: kind},
            _multi_environment=False,
            _environment_pool={None: [instance]},
            _env_tools={None: tools},
            _standalone_tools=[],
            tools=tools,
            max_tool_calling_iterations=10,
            max_completion_length=10**6,
            use_vllm=False,
            _is_vlm=False,
            _tokenizer=tokenizer,
            processing_class=tokenizer,
            chat_template=None,
            chat_template_kwargs={},
            async_loop=pool._event_loop(),
            _generate_single_turn=write,
        )
        trainer._get_tool_suffix_ids = lambda messages: GRPOTrainer._get_tool_suffix_ids(trainer, messages)

        def stop(prompts):
            raise Stop(copy.deepcopy(prompts))

        trainer._generate = stop
        with pytest.raises(Stop) as stopped:
            GRPOTrainer._generate_and_score_completions(trainer, rows)
        return trainer, stopped.value.args[0], write

    def test_the_same_prompt_the_same_results_the_same_reward(self, tokenizer):
        from trl.trainer.grpo_trainer import GRPOTrainer, parse_response

        row = {"prompt": [dict(message) for message in ROW.messages], **ROW.meta, "answer": ROW.answer}
        trainer, prompts, write = self.trainer(Counter, tokenizer, SCRIPT, [row])
        theirs = trainer.environments[0]
        shown = tokenizer.apply_chat_template(
            prompts[0], tools=trainer.tools, add_generation_prompt=True, tokenize=True, return_dict=False
        )
        ids, logprobs = write([shown])
        completions = [[parse_response(tokenizer, ids[0], prefix=shown, tools=trainer.tools)]]
        found = GRPOTrainer._tool_call_loop(trainer, prompts, [shown], ids, completions, logprobs, None, {})
        conversation, calls, failures = found[1][0], found[4], found[5]

        make = trl_environment(Counter, Calling(tokenizer=tokenizer))
        _, opening, answers = played(make, ROW, SCRIPT)
        assert prompts[0][0] == opening.messages[0]
        ours = tokenizer.apply_chat_template(
            [dict(message) for message in opening.messages],
            tools=list(opening.tools),
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
        )
        assert ours == shown
        results = [message for message in conversation if message["role"] == "tool"]
        mine = [dict(message) for answer in answers for message in answer.messages]
        # TRL answers the async calls of a turn behind the others, whet in the order of the calls
        assert sorted(map(str, results)) == sorted(map(str, mine)) and results[:2] == mine[:2]
        assert (calls, failures) == (sum(answer.counts.get("tool_calls", 0) for answer in answers), 0)
        assert answers[-1].reward == theirs.get_reward() == 0.8

    def test_a_failure_is_answered_in_both(self, tokenizer):
        from trl.trainer.grpo_trainer import GRPOTrainer, parse_response

        script = (call("fail") + "\n" + call("unknown"), "Over.")
        row = {"prompt": [dict(message) for message in ROW.messages], **ROW.meta}
        trainer, prompts, write = self.trainer(Counter, tokenizer, script, [row])
        ids, logprobs = write([[]])
        completions = [[parse_response(tokenizer, ids[0], prefix=[], tools=trainer.tools)]]
        found = GRPOTrainer._tool_call_loop(trainer, prompts, [[1]], ids, completions, logprobs, None, {})
        theirs = [message["content"] for message in found[1][0] if message["role"] == "tool"]
        answers = played(trl_environment(Counter), ROW, script)[2]
        mine = [message["content"] for message in answers[0].messages]
        assert found[5] == 2 == sum(answers[0].counts[key] for key in ("tool_errors", "unknown_tools"))
        assert theirs == ["{'error': 'out of order'}", "{'error': 'Tool unknown not found.'}"]
        assert all(text.startswith("error: ") for text in mine) and "out of order" in mine[0]


class Machine:
    """TRL's, with tools that are called as whet's own methods are."""

    def reset(self, **row) -> None:
        self.pressed: list[str] = []

    def start(self, speed: int) -> str:
        """Start it.

        Args:
            speed: How fast.
        """
        self.pressed.append(f"start {speed}")
        return "started"

    def step(self) -> str:
        """One step."""
        self.pressed.append("step")
        return "stepped"

    def get_reward(self) -> float:
        return float(len(self.pressed))


def test_tools_may_be_called_start_and_step():
    from whet.envs.find import as_environment

    environment = as_environment(Machine)()
    opened = now(environment.start, ROW)
    assert [tool["function"]["name"] for tool in opened.tools] == ["start", "step"]
    written = call("start", speed=3) + call("step")
    answer = now(environment.step, Completion(written, (), written))
    assert [message["content"] for message in answer.messages] == ["started", "stepped"]
    assert now(environment.step, Completion("done", (), "done")).reward == 2.0


def test_rewards_take_environments_and_are_added_to_get_reward(tmp_path):
    import whet

    seen = []

    def pressed(completions, environments, **columns):
        seen.extend(environments)
        return [0.5 + len(each.pressed) for each in environments]

    whet.train(
        "grpo",
        env=Machine,
        reward=pressed,
        steps=1,
        folder=str(tmp_path / "run"),
        batch={"prompts_per_step": 2, "group_size": 2},
        eval={"every": 0, "prompts": 2},
        sampling={"max_new_tokens": 4},
        console=False,
    )
    rows = [json.loads(line) for line in (tmp_path / "run" / "samples.jsonl").read_text().splitlines()]
    assert len(seen) == len({id(each) for each in seen}) >= 4
    assert {(row["parts"]["pressed"], row["parts"]["environment"], row["reward"]) for row in rows} == {(0.5, 0.0, 0.5)}
