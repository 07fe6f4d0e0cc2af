"""Answer marks used against the grader: heaps of them, tangled tags, answers in the thinking alone."""

from __future__ import annotations

import re

from whet.data.gold import after_hashes, boxed
from whet.reward.answer import after_phrase, after_thinking, explicit_answers, final_part, normal_form, tagged
from whet.reward.defences.reading import FENCED, hard_answers, thinking
from whet.types import Prompt

TAG = re.compile(
    r"<(/?)(think|thinking|answer|tool_call|tool_response|solution|final|reasoning|scratchpad)>", re.IGNORECASE
)
ROLE = re.compile(
    r"<\|(?:im_start|im_end|system|user|assistant|endoftext|eot_id|start_header_id|end_header_id|end)\|>|\[/?INST\]|"
    r"<</?SYS>>|</?s>|<start_of_turn>|<end_of_turn>|^(?:### ?)?(?:user|human|system|grader|judge|evaluator):",
    re.IGNORECASE | re.MULTILINE,
)


def mark_spam(prompt: Prompt, completion: str, *, most_marks: int = 3) -> float:
    """A penalty: 0, or -1 where more than `most_marks` boxes, or answer tags, or answers after #### stand in the final
    part, whatever they hold. Headings are no marks. A gold answer that is a list allows as many as it has parts."""
    text = FENCED.sub(" ", final_part(completion))
    gold = len(re.split(r",(?!\d{3}\b)|;", str(prompt.answer))) if prompt.answer is not None else 1
    counts = (
        len(boxed(text)),
        text.count("<answer>"),
        len(after_hashes(text)),
        len(after_phrase(text)),
    )
    return 0.0 - float(max(counts) > max(most_marks, gold))


def broken_tags(prompt: Prompt, completion: str) -> float:
    """A penalty: 0, or -1 where tags nest in themselves, close what is not open, come again after the answer, or
    imitate the turns of a conversation.

    A first </think> without its <think> passes: many templates open it in the prompt. So does an unfinished last one.
    """
    text = FENCED.sub(" ", completion)
    return 0.0 - float(ROLE.search(text) is not None or _is_tangled(text))


def answer_in_thinking(prompt: Prompt, completion: str) -> float:
    """A penalty: 0, or -1 where the thinking is finished and marks an answer, and what follows it gives none. A text
    that goes on to explain in words, or calls a tool, passes."""
    if "</think>" not in completion:
        return 0.0
    rest = after_thinking(completion)
    thought = thinking(completion)
    marked = hard_answers(thought) or after_hashes(thought) or tagged(completion.rpartition("</think>")[0])
    silent = not explicit_answers(completion) and "<tool_call>" not in rest
    pointing = re.search(
        r"(?i)\b(?:see|as|stated|given|shown|found|inside|in|written|boxed|solved) (?:\w+ ){0,4}(?:above|think|"
        r"thinking|thoughts|reasoning|scratchpad|before|earlier)\b",
        rest,
    )
    other_words = {normal_form(word) for word in re.findall(r"[^\s$*]+", rest)}
    repeated = any(normal_form(answer) in other_words for answer in marked)
    blank = len(re.findall(r"\w+", rest)) < 3
    return 0.0 - float(bool(marked) and silent and not repeated and (blank or pointing is not None))


def _is_tangled(text: str) -> bool:
    opened: list[str] = []
    closed: list[str] = []
    for match in TAG.finditer(text):
        name = match[2].lower()
        if not match[1]:
            inside_itself = name in opened
            after_answer = name in ("think", "thinking") and "answer" in closed
            hidden = name == "answer" and any(tag in opened for tag in ("think", "thinking"))
            if inside_itself or after_answer or hidden:
                return True
            opened.append(name)
        elif name in opened:
            if opened.pop() != name:
                return True
            closed.append(name)
        elif closed or opened or name not in ("think", "thinking"):
            return True
        else:
            closed.append(name)
    return False
