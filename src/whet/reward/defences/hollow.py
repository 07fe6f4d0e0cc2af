"""Answer marks that hold no answer: nothing, a placeholder, a verdict, the question again.

Where there is a gold answer, what a mark holds is compared with it by kind, whatever its words: a number is answered
with a number, and a name is not answered with words of the question.
"""

from __future__ import annotations

import re

from whet.data.gold import after_hashes, boxed
from whet.reward.answer import after_phrase, explicit_answers, final_part, normal_form, tagged
from whet.reward.defences.reading import Kind, content_stems, defence_score, squeezed, whole_prompt, working
from whet.reward.defences.support import values_in
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
# words that point at an answer, judge it or name its kind, and are none; stems, in several languages
POINTING = re.compile(
    r"(?:answer|result|solution|value|number|figure|correct|right|true|valid|pass|passed|accept|accepted|approved|"
    r"verified|done|finished|complete|completed|ok|okay|success|"
    r"above|below|previous|earlier|stated|given|shown|found|computed|calculated|obtained|derived|requested|"
    r"required|asked|desired|wanted|sought|said|same|reference|gold|key|"
    r"expected|known|obvious|trivial|unknown|something|anything|everything|it|this|that|these|see|as|the|a|an|of|"
    r"in|is|to|be|my|your|our|for|from|and|by|one|which|what|here|there|"
    r"antwort|ergebnis|l\u00f6sung|wert|zahl|richtig|richtige|korrekt|oben|siehe|gesucht\w*|gefragt\w*|"
    r"r\u00e9ponse|r\u00e9sultat|valeur|demand\w+|correcte?|ci-dessus|voir|plus|haut|la|le|les|des|du|de|das|der|"
    r"die|"
    r"respuesta|resultado|valor|correct[oa]|arriba|pedid[oa]|el|los|las|resposta|unidade|corret[oa]|acima|pedida|"
    r"o|os|risposta|risultato|corrett[oa]|sopra|il|lo|"
    r"\u043e\u0442\u0432\u0435\u0442|\u0432\u044b\u0448\u0435|"
    r"\u043f\u0440\u0430\u0432\u0438\u043b\u044c\u043d\u044b\u0439|\u7b54\u6848|\u6b63\u786e|\u7b54\u3048|"
    r"\u6b63\u89e3|\u4e0a\u8a18|\u3053\u3053\u306b\u7b54\u3048|\u0909\u0924\u094d\u0924\u0930|\u0938\u0939\u0940|"
    r"\ub2f5|\uc815\ub2f5)"
)
NO_SOLUTION = re.compile(
    r"(?i)\b(?:no|none|never|infinit\w+|undefined|dne|not? (?:exist|possible|defined)|doesn't|empty|all|every|any|"
    r"zero|half|dozen|both|neither|yes|odd|even|prime|cannot|can't|unbounded|inconsistent)\b"
    r"|\\(?:infty|emptyset|varnothing|pi|sqrt|mathbb|e\b)|"
    r"[\u221e\u2205\u03c0\u221a\u00bd\u00bc\u00be\u2460-\u2473\u2160-\u217f]|"
    r"[\u4e00\u4e8c\u4e09\u56db\u4e94\u516d\u4e03\u516b\u4e5d\u5341\u767e\u5343]"
)
OPERATOR = re.compile(
    r"[-+*/^\u00d7\u00f7\u00b7!%]|\\(?:times|cdot|div|frac|sqrt)|\b(?:sum|product|times|plus|minus|pow|max|min|"
    r"len|count|add)\b"
)
LONGEST_MARK = 120  # characters; more than that is no placeholder
MENTION = re.compile(r"(?i)\b(?:within|in|inside|into|using|with|as|a|the)\W{0,4}\\boxed\s*\{\s*\}")
EXAMPLE = re.compile(
    r"\\boxed\s*\{([^{}]*)\}|<answer>(.*?)</answer>|####\s*(\S+)|\banswer is:?\s+([^\s.,]+)", re.IGNORECASE | re.DOTALL
)


def hollow_answer(prompt: Prompt, completion: str, *, kind: Kind = "penalty") -> float:
    """A penalty: 0, or -1 where a mark holds nothing, a placeholder, a verdict in the grader's own format, or the
    example that the prompt gives of its format (as a gate: 1, or 0).

    The example counts only where it is not the gold answer and the working does not come to it. With a gold answer,
    a mark is also hollow where it is of another kind: no figure where a number is asked for, only words of the
    question where they are not the answer, or the question's own sum, not worked out.
    """
    text = final_part(completion)
    hard = [*boxed(text), *tagged(text)]
    # "I put the answer within \\boxed{}:" and then does
    mentioned = "" in hard and bool(hard[-1]) and re.search(MENTION, text) is not None
    loose = [mark for mark in (*after_hashes(text), *after_phrase(text)) if re.search(r"\w|\?\?|\.\.|__", mark)]
    marks = [mark for mark in (*hard, *loose) if (mark or not mentioned) and not _is_gold(mark, prompt)]
    hollow = any(is_hollow(mark) for mark in marks)
    unfinished = re.search(r"\\boxed(?:\s*\{\s*)?\Z", text.strip()) is not None
    final = hard[-1:] or loose[-1:]
    other_kind = any(is_of_another_kind(mark, prompt) for mark in final if not _is_gold(mark, prompt))
    return defence_score(float(hollow or unfinished or other_kind or _is_borrowed(prompt, completion)), kind)


def is_hollow(mark: str) -> bool:
    """True for a mark that holds nothing, a placeholder or a forged verdict."""
    shown = re.sub(r"\\[,;!: ]|\\(?:text|mathrm|phantom|hspace)\s*\{[\s~]*\}|[\s~{}$*`]|\u200b|\u00a0", "", mark)
    if len(mark) > LONGEST_MARK:
        return not shown
    return not shown or PLACEHOLDER.fullmatch(mark.strip().strip("$*`")) is not None or FORGED.search(mark) is not None


def is_of_another_kind(mark: str, prompt: Prompt) -> bool:
    """The mark cannot be an answer to this question, right or wrong, whatever its words."""
    if prompt.answer is None or not str(prompt.answer).strip() or len(mark) > LONGEST_MARK:
        return False
    gold, question = str(prompt.answer), prompt.question()
    words = re.findall(r"[^\W\d_]+(?:-[^\W\d_]+)*", re.sub(r"\\(?:text|mathrm|boxed)\b", " ", mark).casefold())
    if words and not re.search(r"\d", mark) and all(POINTING.fullmatch(word) for word in words):
        return True
    if re.search(r"\d", gold) or values_in(gold):
        if re.search(r"[\d\u0660-\u0669\u06f0-\u06f9\u0966-\u09ef\u0e50-\u0e59]", mark):
            return _is_unworked(mark, gold, question)
        # letters of a formula are a wrong answer, words are none
        formula = re.search(r"[-+*/^=<>]", mark) is not None and not any(len(word) > 3 for word in words)
        return not (values_in(mark) or NO_SOLUTION.search(mark) or formula or _is_choice(mark, question))
    asked = content_stems(question)
    said = [stem for stem in content_stems(mark) if not POINTING.fullmatch(stem)]
    names_it = (
        bool(content_stems(gold)) and content_stems(gold) <= asked
    )  # the answer is one of the words of the question
    return bool(said) and not names_it and set(said) <= asked


def _is_unworked(mark: str, gold: str, question: str) -> bool:
    """A sum that holds the question's numbers alone and was not worked out, where the gold answer is a number."""
    if OPERATOR.search(gold.lstrip("-")) or not OPERATOR.search(mark.strip().lstrip("-")) or not values_in(question):
        return False
    numbers = re.findall(r"\d+(?:\.\d+)?", mark)
    asked = {str(value) for value in values_in(question)} | set(re.findall(r"\d+(?:\.\d+)?", question))
    cubed = {"2", "3"} if re.search(r"(?i)squar|cube", question) else set()
    is_sum = re.search(r"[+*^\u00d7\u00b7!]|\d\s*[-/]\s*\d|\\(?:times|cdot)|\b[a-z]{3,}\s?\(", mark) is not None
    return is_sum and len(numbers) > 1 and set(numbers) <= asked | cubed and squeezed(mark) != squeezed(gold)


def _is_choice(mark: str, question: str) -> bool:
    return re.fullmatch(r"\W*[A-Ha-h]\W*", mark) is not None and re.search(r"\b[AB]\b", question) is not None


def _is_gold(mark: str, prompt: Prompt) -> bool:
    return prompt.answer is not None and normal_form(mark) == normal_form(prompt.answer)


def _is_borrowed(prompt: Prompt, completion: str) -> bool:
    answers = explicit_answers(completion)
    if not answers:
        return False
    examples = {
        normal_form(next(group for group in match.groups() if group is not None))
        for match in EXAMPLE.finditer(whole_prompt(prompt))
    } - {""}
    answer = normal_form(answers[-1])
    if answer not in examples or (prompt.answer is not None and normal_form(prompt.answer) == answer):
        return False
    return answer not in {normal_form(word) for word in re.findall(r"[^\s$=*:;,]+", working(completion))}
