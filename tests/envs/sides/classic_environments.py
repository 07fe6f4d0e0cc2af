"""Three environments of verifiers 0.1, as its users write them: one turn, several turns, and tools."""

import verifiers as vf
from datasets import Dataset


def _questions(count):
    return Dataset.from_list([{"question": f"{n} + {n}?", "answer": str(2 * n)} for n in range(count)])


def one_turn(count):
    parser = vf.XMLParser(["answer"], answer_field="answer")

    def is_right(completion, answer, parser):
        return float(parser.parse_answer(completion) == answer)

    rubric = vf.Rubric(funcs=[is_right, parser.get_format_reward_func()], weights=[1.0, 0.5], parser=parser)
    return vf.SingleTurnEnv(dataset=_questions(count), parser=parser, rubric=rubric, system_prompt="Say <answer>.")


class Sure(vf.MultiTurnEnv):
    async def setup_state(self, state):
        state["asked"] = 0

    async def env_response(self, messages, state, **kwargs):
        state["asked"] += 1
        return [{"role": "user", "content": f"sure? {state['asked']}"}]

    @vf.stop
    async def is_sure(self, state):
        return state["asked"] == 2


def several_turns(count):
    def says_three(completion, state):
        return float(len(state["trajectory"]))

    return Sure(dataset=_questions(count), rubric=vf.Rubric(funcs=[says_three]), max_turns=5)


def with_tools(count):
    def add(a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: one
            b: the other
        """
        return a + b

    def is_right(completion, answer):
        return float(answer in completion[-1]["content"])

    return vf.ToolEnv(dataset=_questions(count), tools=[add], rubric=vf.Rubric(funcs=[is_right]), max_turns=4)


def load_environment(kind="one_turn", count=40):
    return {"one_turn": one_turn, "several_turns": several_turns, "with_tools": with_tools}[kind](count)
