"""Answers that were not worked out: many in the hope that one is right, one that the reasoning never reaches, and
answer marks that hold none: nothing, a placeholder, a verdict, the question again.

Where there is a gold answer, what a mark holds is compared with it by kind, whatever its words: a number is answered
with a number, and a name is not answered with words of the question.
"""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import pairwise, product

from whet.data.gold import after_hashes, boxed
from whet.reward.answer import after_phrase, explicit_answers, final_part, normal_form, tagged
from whet.reward.defences.reading import (
    WORD,
    content_stems,
    hard_answers,
    squeezed,
    thinking,
    whole_prompt,
    words,
    working,
)
from whet.reward.mathematics import units
from whet.types import Prompt

NUMBER = re.compile(r"(?<![\w.])(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|(?<![\w.])\.\d+|\d+(?:\.\d+)?")
FRACTION = re.compile(
    r"\\[dt]?frac\s?\{?\s?(-?\d{1,30})\s?\}?\s?\{?\s?(\d{1,30})|(?<!\d)(\d{1,30})\s?/\s?(\d{1,30})(?!\d)"
)
NUMBER_WORDS: dict[str, Fraction] = {
    **{word: Fraction(value) for word, value in units.NUMBER_WORDS.items()},
    **{word: Fraction(10**power) for word, power in units.SCALES.items()},
    **{"dozen": Fraction(12), "half": Fraction(1, 2), "no": Fraction(0), "none": Fraction(0), "once": Fraction(1)},
    **{"single": Fraction(1), "twice": Fraction(2), "both": Fraction(2), "pair": Fraction(2), "third": Fraction(3)},
}
CHAIN_END = re.compile(r"(?:=|\\approx|\\equiv|\\implies|\\Rightarrow|\\in|:|\\[lg]eq?)[^.\n]{0,60}\Z")
LONGEST_NUMBER = 40  # characters; longer ones are no results
MOST_NUMBERS = 60  # of the working, the last ones, that are tried against each other
MOST_ROUNDED = 1000  # of the working, the last ones, that may have been rounded
NEAR = 8  # numbers before the end whose products, sums and quotients count as worked out


def unsupported_answer(prompt: Prompt, completion: str, *, least_words: int = 8, must_reason: bool = False) -> float:
    """A penalty: 0, or -1 where nothing in the working leads to the final answer.

    A number is supported when it stands in the working, is written there as a word, fraction or percentage, or is one
    step (+ - * /) from two of its numbers. Words are supported when half of them are in the working or in the question.
    An answer that contradicts the conclusion of the thinking is not supported. A completion with fewer than
    `least_words` words and numbers of working gives nothing to compare with and passes, unless the task `must_reason`.
    """
    answers = explicit_answers(completion)
    text = working(completion)
    if not answers:
        return 0.0
    if len(words(text)) + len(NUMBER.findall(text)) < least_words:
        return 0.0 - float(must_reason)
    answer = answers[-1]
    thought = thinking(completion)
    if is_supported(answer, text, prompt.question()):
        return 0.0 - float(bool(thought) and _contradicts(answer, thought))
    # without tags the answer itself ends the working: a formula that leads into the box, a count or a word said once
    excused = not thought and (_closes_formula(final_part(completion)) or _is_count(answer) or not values_in(answer))
    return 0.0 - float(not excused)


def is_supported(answer: str, text: str, question: str) -> bool:
    """Whether the working, or the question, leads to the answer."""
    wanted = list(dict.fromkeys(values_in(answer)))[:MOST_NUMBERS]
    plain = squeezed(answer)
    if plain and len(plain) > 1 and plain in squeezed(text):
        return True
    if not wanted:
        context_words = set(words(text)) | set(words(question))
        asked = [word for word in words(answer) if word not in ("text", "frac", "boxed", "the", "a")]
        return not asked or sum(word in context_words for word in asked) >= 0.5 * len(asked) or len(plain) == 1
    there = values_in(text)
    asked_for = set(values_in(question))
    recent = set(there[-MOST_ROUNDED:])
    reached = set(there) | {rounded for number in wanted for rounded in _rounded(recent, number)}
    needed = [number for number in wanted if not _is_near(number, reached)]
    if 2 * len(needed) <= len(wanted) or all(number in asked_for for number in wanted):
        return True
    worked_out = _one_step(there)
    if _is_assembled(answer, there):
        return True
    needed = [number for number in needed if not _is_near(number, worked_out)]
    return 2 * len(needed) <= len(wanted)


def _is_near(number: Fraction, reached: set[Fraction]) -> bool:
    """Whether the number was reached, up to its sign or as a percentage."""
    return any(value in reached for value in (number, -number, number * 100, number / 100))


def _rounded(numbers: set[Fraction], wanted: Fraction) -> list[Fraction]:
    """The wanted number where another one rounds to it, up or down, at the places it has."""
    places = 1
    while (wanted * places).denominator != 1 and places < 10**6:
        places *= 10
    return [wanted for number in numbers if number != wanted and abs(number - wanted) * places < 1]


def _is_assembled(answer: str, there: list[Fraction]) -> bool:
    """A number whose digits the working found one by one."""
    digits = re.sub(r"\D", "", answer)
    return 2 < len(digits) < 8 and {Fraction(digit) for digit in digits} <= set(there[-MOST_NUMBERS:])


def _is_count(answer: str) -> bool:
    return re.fullmatch(r"\W*\d{1,2}\W*", answer) is not None


def values_in(text: str) -> list[Fraction]:
    """Every number of a text, exactly and in order: figures, fractions and number words."""
    plain = text.replace("{,}", ",").replace("\\!", "").replace("\\,", "")
    values = [(match.end(), _fraction(match)) for match in FRACTION.finditer(plain)]
    figures = (match for match in NUMBER.finditer(plain) if len(match[0]) <= LONGEST_NUMBER)
    values += [(match.end(), Fraction(match[0].replace(",", ""))) for match in figures]
    spoken = [(match.end(), NUMBER_WORDS.get(match[0].casefold())) for match in WORD.finditer(plain)]
    values += [(end, number) for end, number in spoken if number is not None]
    for (_, first), (end, second) in pairwise(spoken):
        if first is not None and second is not None:
            values += [(end, first + second), (end, first * second)]
    return [number for _, number in sorted(values, key=lambda located: located[0])]


def _fraction(match: re.Match[str]) -> Fraction:
    above, below = (match[1], match[2]) if match[1] is not None else (match[3], match[4])
    return Fraction(int(above), int(below)) if int(below) else Fraction(0)


def _one_step(numbers: list[Fraction]) -> set[Fraction]:
    """Sums, differences, products and quotients of numbers near each other, and of the last ones all together."""
    recent = numbers[-MOST_NUMBERS:]
    pairs = [*pairwise(recent), *zip(recent, recent[2:], strict=False), *product(recent[-NEAR:], repeat=2)]
    results: set[Fraction] = set()
    for first, second in pairs:
        results |= {first + second, first - second, second - first, first * second}
        results |= {above / below for above, below in ((first, second), (second, first)) if below}
    results |= {number + offset for number in recent[-NEAR:] for offset in (1, -1)}
    for start in range(max(len(recent) - 6, 0), len(recent)):
        results.add(sum(recent[start:], Fraction(0)))
    return results


def _contradicts(answer: str, thought: str) -> bool:
    """The thinking concludes on another number, and does not come to this one afterwards."""
    concluded = explicit_answers(thought)
    wanted, last = values_in(answer), values_in(concluded[-1]) if concluded else []
    if not wanted or not last or set(wanted) & set(last) or len(wanted) > 1 or len(last) > 1:
        return False
    if normal_form(answer) == normal_form(concluded[-1]):
        return False
    afterwards = thought[thought.rfind(concluded[-1]) + len(concluded[-1]) :]
    return wanted[0] not in values_in(afterwards) and wanted[0] not in _one_step(values_in(afterwards))


def _closes_formula(text: str) -> bool:
    """The box ends an equation or a chain of steps, as in "x = 2 + 3 = \\boxed{5}"."""
    before, _, box = text.replace("\\fbox", "\\boxed").rpartition("\\boxed")
    return bool(box) and CHAIN_END.search(before) is not None


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


def hollow_answer(prompt: Prompt, completion: str) -> float:
    """A penalty: 0, or -1 where a mark holds nothing, a placeholder, a verdict in the grader's own format, or the
    example that the prompt gives of its format.

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
    return 0.0 - float(hollow or unfinished or other_kind or _is_borrowed(prompt, completion))


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
    stems = [stem for stem in content_stems(mark) if not POINTING.fullmatch(stem)]
    names_it = (
        bool(content_stems(gold)) and content_stems(gold) <= asked
    )  # the answer is one of the words of the question
    return bool(stems) and not names_it and set(stems) <= asked


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


# "or" in the languages models write; a slash between words
OR = (
    r"\bor\b|\\text\s*\{\s*or\s*\}|\boder\b|\bou\b|\bo bien\b|\boppure\b|\bof wel\b|\b\u0438\u043b\u0438\b|"
    r"\u307e\u305f\u306f|\u3042\u308b\u3044\u306f|\u3082\u3057\u304f\u306f"
    r"|\u6216\u8005|\u6216|\u8fd8\u662f|\ub610\ub294|\u0e2b\u0e23\u0e37\u0e2d|\u092f\u093e|\u09ac\u09be|"
    r"\u0623\u0648|\batau\b|\bveya\b|\blub\b|\beller\b"
)
ALTERNATIVE = re.compile(rf"\s*(?:{OR})\s*|\s*/\s*(?![\d(])", re.IGNORECASE)
LISTED = re.compile(r"\s*(?:,(?!\d{3}\b)|;|\s+and\s+|\\text\s*\{\s*and\s*\}|\\quad|\n|\|)\s*", re.IGNORECASE)
HEDGE = re.compile(
    r"\bor (?:maybe|perhaps|possibly|else|it could|it might|it may|even)\b"
    r"|\b(?:could|might|may) (?:also|well|equally) be\b"
    r"|\banswer (?:could|might|may) be\b|\btake your pick\b|\bwhichever\b|\bnot sure (?:which|if)\b"
    r"|\b(?:any|one|all) of (?:these|those|them|the following) (?:is|are|could|must|should|will|may|might)\b"
    r"|\balternatively,? (?:it is |it's |the answer is )?\$?-?\d"
    r"|\b(?:failing that|if not)\b,? (?:then )?(?:it is |try )?\$?-?\d"
    r"|\bif (?:that|this|it) is(?: wrong|n't right| not right| not correct| incorrect)\b"
    r"|\botherwise (?:it is|it's|the answer|try|use)\b",
    re.IGNORECASE,
)
JOINED_MARKS = re.compile(
    r"\}[\s$.,\\)\]]{0,12}(?:\\quad\s{0,3}|\\text\s*\{\s*)*(?:and|or equivalently)\b.{0,40}?\\boxed", re.DOTALL
)
CLAIM = re.compile(
    r"\banswer(?:\*\*)?(?: (?:could|might|may)(?: also| well)? be| is(?: also| maybe| probably| possibly| not)?"
    r"|\s{0,3}:)\s{0,3}:?\s{0,3}\$?(-?\d[\d./,]{0,30}|\([A-H]\)|[A-H]\b)",
    re.IGNORECASE,
)
MOST_LISTED = 20  # plain numbers in one mark, where no gold answer says how many
LONGEST_ANSWER = 300  # characters that are read
CHOICES = re.compile(r"\(?\b([A-H])\b\)?")


def guessing(prompt: Prompt, completion: str, *, most_answers: int = 1) -> float:
    """A penalty: 0, or -1 where the completion commits to more than `most_answers` different answers.

    A gold answer that is itself a list allows as many as it has. Without a gold answer, a list in one box and boxes
    joined by "and" are taken for an honest set.
    """
    gold = 0 if prompt.answer is None else num_listed(str(prompt.answer))
    allowed = max(most_answers, gold)
    text = final_part(completion)
    answers = list(dict.fromkeys(normal_form(squeezed(answer)) for answer in _committed(completion, text)))
    if gold == 0 and JOINED_MARKS.search(text):
        allowed = max(allowed, len(hard_answers(text)))
    caught = len(answers) > allowed or any(
        _is_hedged(answer, allowed, gold, prompt.question()) for answer in _committed(completion, text)
    )
    caught = caught or _is_hedged_after(text, answers, allowed)
    if gold == 1 and allowed == 1:
        caught = caught or _covers(prompt, text)
    return 0.0 - float(caught)


def _covers(prompt: Prompt, text: str) -> bool:
    """One answer is asked for, and the reply leaves room for several, however it says so."""
    gold = str(prompt.answer).strip()
    marks = [answer for answer in hard_answers(text) if answer.strip()]
    marks = marks or [answer for answer in (*after_hashes(text), *after_phrase(text)) if answer.strip()]
    final = marks[-1][:LONGEST_ANSWER] if marks else ""
    if final and normal_form(squeezed(final)) != normal_form(squeezed(gold)):
        if _leaves_room(final, gold) or _lists_more(final, gold, prompt.question()):
            return True
        after = text[text.rfind(final) + len(final) :]
        if _stands_in(gold, after) and not re.search(r"[=\u2260]", after) and not _stands_in(gold, prompt.question()):
            return True  # a wrong answer is given, and the right one added after it
    if not marks and len(_bullets(text)) > 1 and _stands_in(gold, " ".join(_bullets(text))):
        return True
    if _stands_for_several(final, text):
        return True
    return _is_among(gold, final, prompt.question()) if marks else _is_among(gold, text, prompt.question())


def _leaves_room(answer: str, gold: str) -> bool:
    """A range, a margin, or a chain of things that are not equal."""
    room = re.compile(
        r"\\(?:leq?|geq?|pm|in|sim|approx|to|ldots|dots)(?![a-z])|[<>\u2264\u2265\u00b1\u2208]|\.\.|\bto\b|"
        r"\bbetween\b|\d\s?[\u2013\u2014]\s?\d"
    )
    if room.search(answer) and not room.search(gold):
        return True
    plain = re.compile(r"[-\d.,\s/{}$]|\\[dt]?frac")
    known = [values_in(side)[0] for side in answer.split("=") if values_in(side) and not plain.sub("", side)]
    return len(set(known)) > 1


def _lists_more(answer: str, gold: str, question: str) -> bool:
    """The gold answer among at least two others of its kind: capitals, symbols or figures that the question lacks."""
    if not _stands_in(gold, answer) or " " in gold:
        return False
    letters = set(re.findall(r"\b[A-H]\b", answer))
    if re.fullmatch("[A-H]", gold) and len(letters & set(re.findall(r"\b[A-H]\b", question))) > 1:
        return True
    kind = r"\d+(?:\.\d+)?" if re.fullmatch(r"[-\d.,]+", gold) else r"\b[A-Z][^\W_]*\b"
    if re.search(r"[+*^=\\]", answer):
        return False
    return len({guess for guess in re.findall(kind, answer) if guess != gold and not _stands_in(guess, question)}) > 1


def _bullets(text: str) -> list[str]:
    """The short items of the last list."""
    lines = [line.strip() for line in text.strip().splitlines()]
    items: list[str] = []
    while lines and (match := re.match(r"(?:[-*\u2022]|\(?\w[.)])\s+(.{1,20})$", lines[-1])):
        items.append(match[1])
        lines.pop()
    return items


def _stands_for_several(answer: str, text: str) -> bool:
    """The answer is a letter that the text lets be one of several things."""
    letter = answer.strip(" $.")
    if not re.fullmatch(r"[A-Za-z]", letter):
        return False
    listed = (
        rf"\b{letter}\b[^.\n]{{0,25}}?(?:be|=|in|is|\\in|\u2208)\s[^.\n]{{0,10}}?\d[^.\n]{{0,40}}?"
        rf"(?:{OR}|,)[^.\n]{{0,10}}?\d"
    )
    return re.search(listed, text) is not None


def _is_among(gold: str, text: str, question: str) -> bool:
    """The gold answer joined by "or" to something else, in the sentence that answers."""
    if re.search(OR, question, re.IGNORECASE) or len(gold) > 40:
        return False
    last = [sentence for sentence in re.split(r"(?<=[.!?\u3002])\s*|\n+", text) if sentence.strip()][-2:]
    if not re.search(r"\d", gold) and any(len(re.findall(OR, sentence, re.IGNORECASE)) > 1 for sentence in last):
        return True
    near = rf"(?:{re.escape(gold)}\W{{0,6}}(?:{OR})|(?:{OR})\W{{0,6}}{re.escape(gold)})(?![\w.,]*\d)"
    return any(re.search(near, sentence, re.IGNORECASE) for sentence in last)


def _stands_in(piece: str, text: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(piece)}(?![\w]|[.,]\d)", text) is not None


def num_listed(answer: str) -> int:
    """How many answers one text holds; what stands in brackets is one."""
    flat = re.sub(r"\([^()]*\)|\[[^\[\]]*\]|\\\{.*?\\\}|\\frac\{[^{}]*\}\{[^{}]*\}", "x", answer)
    pieces = [piece for part in ALTERNATIVE.split(flat) for piece in LISTED.split(part) if piece and piece.strip(" .$")]
    return max(len(pieces), 1) if "\\{" not in answer and "(" not in answer else max(len(pieces), 9)


def _committed(completion: str, text: str) -> list[str]:
    """Boxes and tags that hold something; else the looser marks, where they hold figures or a choice."""
    hard = [answer for answer in hard_answers(text) if answer.strip()]
    if hard:
        return hard
    claims = [match[1].rstrip(".,") for match in CLAIM.finditer(text)]
    loose = [answer for answer in explicit_answers(completion) if re.match(r"\W*(?:-?\d|[A-Ha-h]\W*$)", answer)]
    return claims if len(set(map(normal_form, claims))) > 1 else loose


def _is_hedged(answer: str, allowed: int, gold: int, question: str) -> bool:
    """One mark that holds alternatives: joined by "or", hedged, or longer than the gold list where there is one."""
    answer = answer[:LONGEST_ANSWER]
    if HEDGE.search(answer):
        return True
    letters = CHOICES.findall(answer.upper())
    offered = gold or len(set(re.findall(r"\b[A-H]\b", question))) > 1
    if offered and len(set(letters)) > allowed and not re.sub(r"(?i)[()\s,;/&.]|\b(?:or|and)\b|[A-H]", "", answer):
        return True
    alternatives = [piece for piece in ALTERNATIVE.split(answer) if piece.strip(" $.")]
    if len(alternatives) > max(allowed, 2 if gold == 0 else 1):
        return True
    answer = re.sub(r"\d+/\d+", "1", answer)
    numbers = re.findall(r"(?<![\w.\\{^_])-?\d+(?:\.\d+)?(?![\w}])", re.sub(r"(?<=\d),(?=\d{3}\b)", "", answer))
    plain = re.fullmatch(r"[-\d.,;\s/|]+(?:(?:and|or)[-\d.,;\s/|]+)*", answer) is not None
    return plain and len(set(numbers)) > (allowed if gold else MOST_LISTED)


def _is_hedged_after(text: str, answers: list[str], allowed: int) -> bool:
    """ "The answer is 4, or maybe 5": a hedge with another answer in the sentence that gives the answer."""
    if not answers or allowed > 1:
        return False
    for sentence in re.split(r"(?<=[.!?])\s+|\n+", text):
        marked = re.search(r"(?i)\\boxed|<answer>|####|\banswer\b", sentence)
        hedge = HEDGE.search(sentence)
        if marked and hedge and len(set(re.findall(r"\d+(?:\.\d+)?|\b[B-H]\b", sentence))) > 1:
            return True
    return False
