"""More than a task needs: tool calls made again, and length without content (sentences said again, loops, stock
phrases, blank lines and rows of the same character)."""

from __future__ import annotations

import ast
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from whet.data.tool_syntax import ToolCall, call_of, parsed_calls
from whet.reward.defences.reading import prose, sentences, terms, word_set, words
from whet.reward.repetition import echoed_share, looped_share, repeated_sentence_share
from whet.types import Prompt

STOCK = re.compile(
    r"let(?:'s| us| me) (?:take a (?:moment|step)|think (?:about )?(?:this|it)|consider (?:this|all|every|the matter)|"
    r"reflect|ponder|delve|begin by (?:saying|noting)|be (?:very )?careful)"
    r"|(?:it is|it's) (?:very |quite |truly |also |always )?(?:important|worth|crucial|essential|vital|interesting|"
    r"helpful|useful|necessary) (?:to|noting|mentioning|remember)"
    r"|as (?:i|we) (?:have )?(?:already |just |previously )?(?:said|mentioned|noted|stated|discussed|explained)"
    r"|(?:in|with) (?:other words|this in mind|all things considered|light of (?:this|the above)|conclusion, it)"
    r"|needless to say|at the end of the day|when all is said and done|without further ado|that being said"
    r"|this is (?:a|an) (?:very |truly |really |quite )?(?:good|great|important|interesting|fascinating|deep|profound|"
    r"complex|excellent|thoughtful|challenging) (?:question|problem|point|topic|issue|matter)"
    r"|(?:deserves|requires|demands|merits) (?:careful|close|deep|thorough|our full|serious|great)"
    r"|(?:take|taking) (?:everything|all (?:of )?(?:this|these|factors|aspects))? ?into (?:account|consideration)"
    r"|there are many (?:ways|things|factors|aspects|points|angles|sides)|step by step and with (?:great )?care"
    r"|(?:careful|thorough|deep|detailed|further|close) (?:consideration|thought|thinking|reflection) (?:is|of)"
    r"|(?:keep|bear)(?:ing)? (?:this |that |all of this )?in mind|(?:i|we) (?:will|shall|want to|would like to) now "
    r"(?:continue|proceed|go on|keep)|(?:so|and) (?:on|forth)[.,]? (?:and )?so (?:on|forth)|to be (?:perfectly |very )?"
    r"(?:clear|sure|honest|thorough|precise)|continu(?:e|ing) to (?:think|reason|reflect|consider|analy[sz]e)",
    re.IGNORECASE,
)
SAME_CHARACTER = re.compile(r"([^\w])\1{11,}|(\w)\2{15,}|(?:[^\w\n]{1,3}\n){8,}|(?:[ \t]{0,80}\n){6,}", re.DOTALL)

NUMBERING = re.compile(r"^\W*(?:step )?\d*\W{0,3}")
LEAST_WORDS = 5  # of a sentence that counts as said again
DENSE_CHARACTERS = 500


def padding(
    prompt: Prompt,
    completion: str,
    *,
    most_repeated: float = 0.3,
    most_stock: float = 0.5,
    least_density: float = 0.16,
) -> float:
    """A penalty: 0 down to -1, the lower the more of the completion is filler.

    Filling is the share above `most_repeated` of words in sentences or in rows of eight words said before, or of
    characters in long runs of one; or 1 where over half of the text circles among a few words, where more than
    `most_stock` of at least five sentences are phrases that fit any question, or where a long text packs to less
    than `least_density` of its size.
    """
    said_again = repeated_sentence_share(*_counted_sentences(completion))
    repeated = max(said_again, echoed_share(terms(completion)), run_share(completion))
    suspicion = max(0.0, (repeated - most_repeated) / (1 - most_repeated)) if most_repeated < 1 else 0.0
    if (
        looped_share(terms(prose(completion))) > 0.5
        or stock_share(completion) > most_stock
        or density(completion) < least_density
    ):
        suspicion = 1.0
    return 0.0 - min(suspicion, 1.0)


def _counted_sentences(completion: str) -> tuple[list[tuple[str, int]], int]:
    """The sentences long enough to count, without their numbering, each with its words; and the words of all."""
    counted = [(sentence, len(sentence.split())) for sentence in sentences(completion)]
    bare = ((NUMBERING.sub("", sentence), length) for sentence, length in counted if length >= LEAST_WORDS)
    long = [(sentence, length) for sentence, length in bare if len(words(sentence)) >= LEAST_WORDS - 1]
    return long, sum(length for _, length in counted)


def run_share(completion: str) -> float:
    """The share of characters in long rows of the same one, blank lines too."""
    runs = [len(match[0]) for match in SAME_CHARACTER.finditer(completion)]
    return sum(runs) / len(completion) if sum(runs) >= 80 else 0.0


def stock_share(completion: str) -> float:
    """The share of sentences that say nothing about the question; figures in a sentence speak for it."""
    spans = [sentence for sentence in sentences(prose(completion)) if len(sentence.split()) >= 4]
    if len(spans) < 5:
        return 0.0
    return sum(STOCK.search(sentence) is not None and not re.search(r"\d", sentence) for sentence in spans) / len(spans)


def density(completion: str) -> float:
    """Size when packed over size; 1 for a short text, where it says nothing.

    A character counts as one byte in every script that has an alphabet: in UTF-8 most scripts take two or three of
    them, of which all but the last hardly change.
    """
    alphabet = {character: index for index, character in enumerate(dict.fromkeys(completion))}
    if completion.isascii() or len(alphabet) > 256:
        raw = completion.encode(errors="replace")
    else:
        raw = bytes(alphabet[character] for character in completion)
    return len(zlib.compress(raw, 9)) / len(raw) if len(raw) >= DENSE_CHARACTERS else 1.0


CALL = re.compile(
    r"<(tool_call|function_call|functioncall|tool|invoke)>(.*?)(?:</\1>|(?=<(?:tool_call|function_call|"
    r"functioncall|tool|invoke)>)|\Z)",
    re.DOTALL | re.IGNORECASE,
)
LONGEST_CALL = 4000  # characters; a longer one is compared by its text
NAME = re.compile(r"[A-Za-z_][\w.]*")
# after one of these the world is another: asking again is no repetition
CHANGING = word_set(
    "write create delete remove update set send post put add insert move rename book buy order cancel run execute edit "
    "save install start stop open close upload apply commit reset drop append mkdir touch rm mv cp echo cd patch "
    "replace submit pay transfer login logout turn lock unlock fill sort"
)
# these may be said twice in a row: turning a page, waiting for a job
STEPPING = word_set("click press scroll next step wait sleep poll tap swipe back forward roll draw tick advance")
# verbs that bring something and change nothing
GETTING = word_set(
    "get fetch read load lookup look up retrieve show find query view open check display obtain pull inspect search "
    "list see access ask"
)
DRESSING = re.compile(
    r"(?i)request_?id|nonce|uuid|time_?stamp|^ts$|attempt|retry|retries|^try$|seed|trace|session|cache|verbose|"
    r"debug|pretty"
    r"|sort|order|format|style|lang(?:uage)?$|locale|digits|precision|places|decimals|comment|note|reason|purpose|tag$"
    r"|indent|timeout|encoding|colou?r"
)
CODE_KEYS = ("code", "script", "source", "program", "command", "cmd")
FILLERS = word_set(
    "the a an of in for is are was what which who when where how to and on at by please me give tell find"
)
FAILED = re.compile(
    r"(?i)\b(?:error|fail(?:ed|ure)?|exception|time[ -]?d? ?out|denied|unavailable|refused|reset|try again|"
    r"not found|invalid"
    r"|too many|rate limit|4\d\d|5\d\d)\b"
)
# the other ways to write a call: Action / Action Input, and functions as elements
ACTION = re.compile(
    r"^\s*(?:Action|Tool)\s*:\s*([\w. -]{1,60}?)\s*\n\s*(?:Action Input|Input|Arguments?)\s*:\s*(.{0,2000}?)$",
    re.MULTILINE | re.IGNORECASE,
)


@dataclass(frozen=True)
class Call:
    """One call of a tool."""

    name: str
    arguments: str  # in a form equal for equal calls
    values: Mapping[str, Any] = field(default_factory=dict)  # by name, where the call could be read
    after_error: bool = False  # the tool had just reported a failure


def redundant_calls(prompt: Prompt, completion: str, *, most_calls: int = 8, each_extra: float = 0.05) -> float:
    """A penalty: minus the share of calls that repeat an earlier one, `each_extra` for each call above `most_calls`
    added up to half, -1 at most.

    Equal are calls that ask for the same, whatever their order, case and spacing: flags, running numbers, other verbs
    for "get", other orders of words or terms, and the tail of an address make no new call. Code that does nothing
    counts too. A call is no repetition after one that changes something new (write, send, delete, ...), after a
    failure, nor where repeating is its point (next, wait, ...).
    """
    calls = tool_calls_of(completion)
    if not calls:
        return 0.0
    extra = min(each_extra * max(len(calls) - most_calls, 0), 0.5)
    return 0.0 - min(num_repeats(calls) / len(calls) + extra, 1.0)


def num_repeats(calls: list[Call]) -> int:
    """Calls that ask again for what an earlier one brought, or for nothing."""
    seen: set[tuple[str, str]] = set()
    changes: set[tuple[str, str]] = set()
    repeats = 0
    for call in calls:
        spoken = {word.lower() for word in re.split(r"[_.\W]+|(?<=[a-z])(?=[A-Z])", call.name)}
        if spoken & STEPPING:
            seen.clear()
            continue
        keys = {(call.name.casefold(), call.arguments), *meanings(call)}
        again = bool(keys & seen) or is_idle(call)
        repeats += again and not call.after_error
        if spoken & CHANGING and not again and not keys & changes:
            seen.clear()
            changes |= keys
        seen |= keys
    return repeats


def meanings(call: Call) -> set[tuple[str, str]]:
    """What the call asks for, however it is put: flags and running numbers left out, verbs that all mean "get", order
    of the words and of the terms of a sum, the parts of an address that lead to the same page."""
    words = [word for word in re.split(r"[_.\W]+|(?<=[a-z])(?=[A-Z])", call.name) if word]
    subject = "_".join(word.lower() for word in words if word.lower() not in GETTING) or call.name.lower()
    arguments = {key: value for key, value in call.values.items() if not _is_dressing(key, value)}
    if not call.values and call.arguments:
        return set()
    if call.values and not arguments:
        return {(subject, "")}
    values = sorted(_canonical(value) for value in arguments.values())
    # with verbs folded, a change and a look would be the same
    name = subject if not {word.lower() for word in words} & CHANGING else call.name.lower()
    return {(name, json.dumps(values))}


def is_idle(call: Call) -> bool:
    """Whether code does nothing."""
    code = next((str(value) for key, value in call.values.items() if key in CODE_KEYS), None)
    if code is None or len(code) > 200:
        return False
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return all(
        isinstance(statement, ast.Pass | ast.Import)
        or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        for statement in body
    )


def _is_dressing(key: str, value: Any) -> bool:
    """An argument that changes how a result looks, or only makes the call look new."""
    return isinstance(value, bool) or value is None or value == "" or DRESSING.search(key) is not None


def _canonical(value: Any) -> str:
    text = str(value).strip().casefold()
    if re.match(r"[a-z]+://", text):
        return re.sub(r"[#?].*$", "", text).rstrip("/").replace("//www.", "//")
    if re.fullmatch(r"[\w./~-]*/[\w./~-]*|\.|[\w~-]+\.[a-z]\w{0,4}", text):
        return text.removeprefix("./").rstrip("/").removesuffix("/.") or "."
    if (terms := _terms(text)) is not None:
        return terms
    literals = _literals(text)
    if literals is not None:
        return literals
    words = re.findall(r"[^\W_]+", text)
    return " ".join(sorted(set(words) - FILLERS) or words) if len(words) > 1 else text.strip(" .?!\"'")


def _terms(text: str) -> str | None:
    """A sum of numbers as its numbers, whatever their order, and what they are joined by."""
    if len(text) > 80 or not re.fullmatch(r"[\d\s.()+*x\u00d7^-]*\d[\d\s.()+*x\u00d7^-]*", text):
        return None
    if not re.search(r"[+*x\u00d7^-]", text):
        return f"{float(text):g}" if re.fullmatch(r"\d{1,15}(?:\.\d{1,15})?", text) else None
    signs = set(re.sub(r"[\d\s.()]", "", text.replace("x", "*").replace("\u00d7", "*")))
    numbers = re.findall(r"\d{1,15}(?:\.\d{1,15})?", text)
    if "-" in signs or "^" in signs or "**" in text:
        return re.sub(r"\s", "", text)  # the order matters
    counted = sorted(f"{float(number):g}" for number in numbers if float(number) != 0)
    return f"{''.join(sorted(signs)) if len(signs) == 1 else '*'} {' '.join(counted)}"


def _literals(code: str) -> str | None:
    """A short program by what it works on: its numbers, texts and names of files."""
    if len(code) > 160 or not re.search(r"\bprint\s?\(", code):
        return None
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    constants = sorted({repr(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant)})
    return f"program {' '.join(constants)}" if constants else None


def tool_calls_of(completion: str) -> list[Call]:
    """Every call between call tags, or written as other formats write them."""
    calls: list[Call] = []
    end = 0
    for match in CALL.finditer(completion):
        failed = FAILED.search(completion[end : match.start()]) is not None
        made = _calls(match[2].strip())
        calls += [replace(call, after_error=failed) for call in made]
        end = match.end()
    return calls or [_action(match[1], match[2].strip()) for match in ACTION.finditer(completion)]


def _action(name: str, arguments: str) -> Call:
    return _readable(call_of({"name": name, "arguments": arguments}) or ToolCall(name, {"": arguments}))


def _calls(body: str) -> list[Call]:
    read = parsed_calls(body) if len(body) <= LONGEST_CALL else None
    if read is not None:
        return [_readable(call) for call in read]
    name = NAME.match(body)
    return [Call(name[0] if name else "", _plain(body))] if body else []


def _readable(call: ToolCall) -> Call:
    values = {str(index): value for index, value in enumerate(call.positional)} | dict(call.arguments)
    written = _plain(json.dumps([call.positional, call.arguments], sort_keys=True, default=str))
    # the order of values without names has a meaning that nobody here knows
    return Call(call.name, written, values if len(call.positional) < 2 else {})


def _plain(text: str) -> str:
    return re.sub(r"[\s\"'`]+", " ", text).strip(" .?!").casefold()
