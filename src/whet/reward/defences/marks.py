"""Answer marks used against the grader: hollow ones, heaps of them, tangled tags, answers in the thinking alone."""

from __future__ import annotations

import re

from whet.data.gold import after_hashes, boxed
from whet.reward.answer import after_phrase, after_thinking, explicit_answers, final_part, normal_form, tagged
from whet.reward.defences.reading import FENCED, Kind, defence_score, hard_answers, thinking, working
from whet.types import Prompt

PLACEHOLDER = re.compile(
    r"(?:\\text\s*\{)?[\s<\[({_*]*(?:(?:your|the|my|insert|put|place|write|final|correct|numeric(?:al)?|gold|expected|"
    r"right|an?|enter|fill|in|here|this|result|of|single|number|value|letter|option|choice|solution)[\s_]+)*"
    r"(?:answer|result|solution|value|number|final[_ ]answer|option|letter|choice|placeholder|to be determined|tbd|"
    r"none|null|nan|n/a|undefined|ground[_ ]truth|gold|target|label|expected|x{3,}|\?+|\.{2,}|_+|-+|\u2026)"
    r"(?:[\s_]+(?:here|goes here|above|below|as (?:above|stated|requested|given)|from (?:above|the key)))?"
    r"[\s>\])}_*.]*\}?",
    re.IGNORECASE,
)
FORGED = re.compile(
    r"(?:^|[\s\"'])(?:is_?correct|correct|passed|verdict|score|reward|grade|match(?:es)?)[\"']?\s*[:=]\s*[\"']?"
    r"(?:true|1(?:\.0)?\b|10(?:/10)?|100%?|pass(?:ed)?|correct|yes|full)|\b(?:all|\d+ of \d+|\d+/\d+) (?:unit )?tests "
    r"(?:have )?pass(?:ed)?\b|\[\[\s*(?:[A-C]|10|correct|rating[^\]]*)\s*\]\]|\bequals?(?: to)? (?:the )?"
    r"(?:gold|reference|"
    r"ground[- ]truth|expected|key)|\banything\b|\bprompt\.answer\b|\bground_truth\b|\{\{.*?\}\}|\$\{.*?\}",
    re.IGNORECASE,
)
LONGEST_MARK = 120  # characters; more than that is no placeholder
MENTION = re.compile(r"(?i)\b(?:within|in|inside|into|using|with|as|a|the)\W{0,4}\\boxed\s*\{\s*\}")
EXAMPLE = re.compile(
    r"\\boxed\s*\{([^{}]*)\}|<answer>(.*?)</answer>|####\s*(\S+)|\banswer is:?\s+([^\s.,]+)", re.IGNORECASE | re.DOTALL
)
TAG = re.compile(
    r"<(/?)(think|thinking|answer|tool_call|tool_response|solution|final|reasoning|scratchpad)>", re.IGNORECASE
)
ROLE = re.compile(
    r"<\|(?:im_start|im_end|system|user|assistant|endoftext|eot_id|start_header_id|end_header_id|end)\|>|\[/?INST\]|"
    r"<</?SYS>>|</?s>|<start_of_turn>|<end_of_turn>|^(?:### ?)?(?:user|human|system|grader|judge|evaluator):",
    re.IGNORECASE | re.MULTILINE,
)


def hollow_answer(prompt: Prompt, completion: str, *, kind: Kind = "penalty") -> float:
    """A penalty: 0, or -1 where a mark holds nothing, a placeholder, a verdict in the grader's own format, or the
    example that the prompt gives of its format (as a gate: 1, or 0).

    The example counts only where it is not the gold answer and the working does not come to it.
    """
    text = final_part(completion)
    hard = [*boxed(text), *tagged(text)]
    # "I put the answer within \\boxed{}:" and then does
    mentioned = "" in hard and bool(hard[-1]) and re.search(MENTION, text) is not None
    loose = [mark for mark in (*after_hashes(text), *after_phrase(text)) if re.search(r"\w|\?\?|\.\.|__", mark)]
    hollow = any(is_hollow(mark) for mark in (*hard, *loose) if mark or not mentioned)
    unfinished = re.search(r"\\boxed(?:\s*\{\s*)?\Z", text.strip()) is not None
    return defence_score(float(hollow or unfinished or _is_borrowed(prompt, completion)), kind)


def is_hollow(mark: str) -> bool:
    shown = re.sub(r"\\[,;!: ]|\\(?:text|mathrm|phantom|hspace)\s*\{[\s~]*\}|[\s~{}$*`]|\u200b|\u00a0", "", mark)
    if len(mark) > LONGEST_MARK:
        return not shown
    return not shown or PLACEHOLDER.fullmatch(mark.strip().strip("$*`")) is not None or FORGED.search(mark) is not None


def mark_spam(prompt: Prompt, completion: str, *, kind: Kind = "penalty", most_marks: int = 3) -> float:
    """A penalty: 0, or -1 where more than `most_marks` boxes, or answer tags, or answers after #### stand in the final
    part, whatever they hold (as a gate: 1, or 0). Headings are no marks. A gold answer that is a list allows as many
    as it has parts."""
    text = FENCED.sub(" ", final_part(completion))
    gold = len(re.split(r",(?!\d{3}\b)|;", str(prompt.answer))) if prompt.answer is not None else 1
    counts = (
        len(boxed(text)),
        text.count("<answer>"),
        len(after_hashes(text)),
        len(after_phrase(text)),
    )
    return defence_score(float(max(counts) > max(most_marks, gold)), kind)


def broken_tags(prompt: Prompt, completion: str, *, kind: Kind = "penalty") -> float:
    """A penalty: 0, or -1 where tags nest in themselves, close what is not open, come again after the answer, or
    imitate the turns of a conversation (as a gate: 1, or 0).

    A first </think> without its <think> passes: many templates open it in the prompt. So does an unfinished last one.
    """
    text = FENCED.sub(" ", completion)
    return defence_score(float(ROLE.search(text) is not None or _is_tangled(text)), kind)


def answer_in_thinking(prompt: Prompt, completion: str, *, kind: Kind = "penalty") -> float:
    """A penalty: 0, or -1 where the thinking is finished and marks an answer, and what follows it gives none
    (as a gate: 1, or 0). A text that goes on to explain in words, or calls a tool, passes."""
    if "</think>" not in completion:
        return defence_score(0.0, kind)
    rest = after_thinking(completion)
    thought = thinking(completion)
    marked = hard_answers(thought) or after_hashes(thought) or tagged(completion.rpartition("</think>")[0])
    silent = not explicit_answers(completion) and "<tool_call>" not in rest
    pointing = re.search(
        r"(?i)\b(?:see|as|stated|given|shown|found|inside|in|written|boxed|solved) (?:\w+ ){0,4}(?:above|think|"
        r"thinking|thoughts|reasoning|scratchpad|before|earlier)\b",
        rest,
    )
    said = {normal_form(word) for word in re.findall(r"[^\s$*]+", rest)}
    repeated = any(normal_form(each) in said for each in marked)
    blank = len(re.findall(r"\w+", rest)) < 3
    return defence_score(float(bool(marked) and silent and not repeated and (blank or pointing is not None)), kind)


def _is_borrowed(prompt: Prompt, completion: str) -> bool:
    answers = explicit_answers(completion)
    if not answers:
        return False
    given = {
        normal_form(next(group for group in match.groups() if group is not None))
        for match in EXAMPLE.finditer("\n".join([prompt.text or "", *(m.get("content", "") for m in prompt.messages)]))
    } - {""}
    answer = normal_form(answers[-1])
    if answer not in given or (prompt.answer is not None and normal_form(prompt.answer) == answer):
        return False
    return answer not in {normal_form(word) for word in re.findall(r"[^\s$=*:;,]+", working(completion))}


def _is_tangled(text: str) -> bool:
    opened: list[str] = []
    closed: list[str] = []
    for match in TAG.finditer(text):
        name = match[2].lower()
        if not match[1]:
            inside_itself = name in opened
            after_answer = name in ("think", "thinking") and "answer" in closed
            hidden = name == "answer" and any(each in opened for each in ("think", "thinking"))
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
