"""Rows as others write them, rewritten to the columns of `whet.data.prompts`.

Demonstrations: Alpaca's instruction, input and output (also as several `instances`), ShareGPT's `conversations` of
{from, value}, plain `text`. Preferences: explicit or implicit prompts, two numbered completions with a verdict,
transcripts of "Human:" and "Assistant:", completions with scores or ranks, and message trees. Nothing is judged here
beyond what the shape itself needs.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, takewhile
from typing import Any

from whet.data.gold import with_gold
from whet.data.rows import JOINED, Row, mistake, value_text

SPEAKERS = {
    **dict.fromkeys(("human", "user", "prompter"), "user"),
    **dict.fromkeys(("gpt", "assistant", "function_call", "tool_call", "bot", "model", "chatgpt"), "assistant"),
    **dict.fromkeys(("observation", "tool", "function_response", "tool_response", "function"), "tool"),
    "system": "system",
}
CALLERS = ("function_call", "tool_call")  # speakers whose words are a call as JSON
OUTPUTS = (
    "output",
    "response",
    "reply",
    "solution",
    "answer",
)  # the completion of a demonstration, where it has another name
QUESTIONS = ("question", "Question", "problem", "query", "input")
# what a question begins with, and the white space after it
BODIES = {"context": "\n\n", "body": " ", "Body": " "}
CONTEXTS = ("input", "context")  # what an instruction is about
RIVALS = (
    ("output_1", "output_2"),
    ("response1", "response2"),
    ("response_a", "response_b"),
    ("completion_1", "completion_2"),
    ("reply_1", "reply_2"),
)
RANKED = ("completions", "replies", "responses")
STEPPED = ("steps", "reasoning_steps", "modified_process")
VERDICTS = ("label", "preference", "winner", "choice")
FIRST, SECOND, TIE = ("1", "a", "model_a", "first"), ("2", "b", "model_b", "second"), ("0", "tie", "both", "none")
TURN = re.compile(r"\n\n(Human|Assistant):[ \t]?")


def holds_pair(row: Row) -> bool:
    """Two completions to one prompt, whichever was called better."""
    values = row.values
    return "chosen" in values or any(all(name in values for name in rivals) for rivals in RIVALS)


def holds_ranking(row: Row) -> bool:
    """A message tree, or several completions with scores or ranks."""
    values, prompt = row.values, row.values.get("prompt")
    if isinstance(prompt, Mapping):
        return "replies" in prompt
    return not holds_pair(row) and any(isinstance(values.get(name), list | tuple) for name in RANKED)


def holds_completion(row: Row) -> bool:
    """One completion that was judged on its own."""
    values = row.values
    labelled = any(values.get(name) is not None for name in ("label", "right", "correct"))
    return labelled and not holds_pair(row) and not holds_steps(row)


def holds_steps(row: Row) -> bool:
    """Whether a row has a solution in steps."""
    listed = [name for name, value in row.values.items() if isinstance(value, list | tuple)]
    return any(name in listed for name in STEPPED) or {"completions", "labels"} <= set(listed)


def prompt_row(row: Row) -> Row:
    """The row with a `prompt` or `messages`, and with its gold `answer`, whichever of the known formats it has."""
    values = row.values
    if isinstance(values.get("prompt"), Mapping) and "text" in values["prompt"]:  # the root of a message tree
        row = row.changed({**values, "prompt": values["prompt"]["text"]}, prompt="prompt.text")
    elif holds_pair(row) and not _filled(values.get("prompt")):
        row = _opening_of_pair(row)
    elif _filled(values.get("prompt")) or not (_filled(values.get("messages")) or _filled(values.get("conversations"))):
        row = with_prompt(row)
        text = row.values.get("text")
        if not _filled(row.values.get("prompt")) and isinstance(text, str):
            row = row.changed({**row.values, "prompt": text}, prompt="text")
    else:
        row = _with_messages(row)
    return with_gold(row)


def _opening_of_pair(row: Row) -> Row:
    """What two completions answer, as `prompt`."""
    pair = pair_row(row)
    chosen = pair.values.get("chosen")
    if _filled(pair.values.get("prompt")) or not isinstance(chosen, list):
        return pair
    return pair.changed({**pair.values, "messages": chosen}, messages="chosen")


def with_prompt(row: Row) -> Row:
    """The row with a `prompt`, where one of the known shapes holds it under another name."""
    values = dict(row.values)
    if _filled(values.get("prompt")):
        values["prompt"] = _as_messages(_turns_of(values["prompt"]) or values["prompt"])
        return row.changed(values)
    completions_apart = any(
        _filled(values.get(name)) for name in ("chosen", "completion", "reply", "completions", "replies", "steps")
    )
    if _filled(values.get("conversations")):
        return _moved(row, "conversations", "prompt")
    if _filled(values.get("messages")) and completions_apart:
        return _moved(row, "messages", "prompt")
    return _with_question(row)


def _moved(row: Row, name: str, target: str) -> Row:
    """The row with one of its columns under another name."""
    values = {target if column == name else column: value for column, value in row.values.items() if column != target}
    return row.changed({**values, target: _as_messages(values[target])}, **{target: row.names.get(name, name)})


def _with_question(row: Row) -> Row:
    """The row with the text of its instruction or question as `prompt`, and what stands beside it."""
    values = dict(row.values)
    asked = ("instruction", *QUESTIONS)
    name = next((column for column in asked if _filled(values.get(column))), None)
    name = name or next((column for column in asked if column in values), None)  # empty: told by the name that it has
    if name is None or "prompt" in values:
        return row
    value = values.pop(name)
    before, after = (BODIES, ()) if name != "instruction" else ((), CONTEXTS)
    used = [name]
    for beside in (*before, *after):
        text = values.get(beside)
        if isinstance(value, str) and isinstance(text, str) and text.strip():
            value = f"{text}{BODIES[beside]}{value}" if beside in before else f"{value}\n\n{text}"
            used.insert(0 if beside in before else len(used), beside)
            del values[beside]
    if name == "instruction":
        values.pop("input", None)
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):  # a conversation of one turn each
        value = value[0]
    return row.changed({**values, "prompt": _as_messages(value)}, prompt=JOINED.join(used))


def demonstration_rows(row: Row) -> Iterator[Row]:
    """The row with `prompt` and `completion`, `messages`, or `text` alone; one for each of its `instances`."""
    values = dict(row.values)
    instances = values.pop("instances", None)
    if isinstance(instances, list | tuple) and instances and all(isinstance(member, Mapping) for member in instances):
        name = values.get("id")
        for number, instance in enumerate(instances):
            own = {"id": f"{name}/{number}"} if name is not None and len(instances) > 1 else {}
            where = row.where if len(instances) == 1 else f"{row.where}, instances[{number}]"
            yield from demonstration_rows(Row({**values, **instance, **own}, where, row.names))
        return
    if _filled(row.values.get("completion")) or _filled(row.values.get("messages")):
        yield row.changed({**row.values, **_spoken(row.values)})
        return
    if _filled(row.values.get("conversations")):
        yield _with_messages(row)
        return
    values = dict(row.values)
    asks = any(name in values for name in ("prompt", "instruction", *QUESTIONS))
    output = next((name for name in OUTPUTS if _filled(values.get(name))), None)
    output = output or next((name for name in OUTPUTS if name in values), None)
    if not asks:
        yield row
    elif output is not None:
        yield with_prompt(_moved(row, output, "completion"))
    else:
        yield with_prompt(row.changed(values, completion=OUTPUTS[0]) if "instruction" in values else row)


def _with_messages(row: Row) -> Row:
    """The row with `messages`, also where they are called `conversations`, with a `system` beside them."""
    values = dict(row.values)
    if _filled(values.get("messages")):
        return row.changed({**values, **_spoken(values)})
    system = values.pop("system", None)
    turns = _as_messages(values.pop("conversations"))
    if isinstance(turns, list) and isinstance(system, str) and system.strip():
        turns = [{"role": "system", "content": system}, *turns]
    return row.changed({**values, "messages": turns}, messages="conversations")


def _spoken(values: Mapping[str, Any]) -> dict[str, Any]:
    """`messages` whose turns are {from, value}, as {role, content}."""
    return {"messages": _as_messages(values["messages"])} if _filled(values.get("messages")) else {}


def pair_row(row: Row) -> Row:
    """The row with `prompt`, `chosen` and `rejected`, or two conversations that hold the prompt."""
    row = with_prompt(_as_pair(row))
    values = dict(row.values)
    for side in ("chosen", "rejected"):
        if side in values:
            value = values[side]
            values[side] = _as_messages([value] if isinstance(value, Mapping) else value)
    chosen, rejected = values.get("chosen"), values.get("rejected")
    if not _filled(values.get("prompt")) and isinstance(chosen, str) and isinstance(rejected, str):
        turns = _turns_of(chosen, open_end=False), _turns_of(rejected, open_end=False)
        if turns[0] and turns[1]:
            values["chosen"], values["rejected"] = turns
        else:
            values.update(_parted(row, chosen, rejected))
    return row.changed(values)


def completion_row(row: Row) -> Row:
    """The row of a single judged completion, with `prompt` and `completion` or `messages`, and `label`."""
    values = dict(row.values)
    names: dict[str, str] = {}
    if not _filled(values.get("messages")) and _filled(values.get("conversations")):
        values["messages"], names["messages"] = _as_messages(values.pop("conversations")), "conversations"
    for wanted, others in (("completion", ("reply", "response", "output")), ("label", ("right", "correct"))):
        name = next((column for column in others if values.get(column) is not None), None)
        if values.get(wanted) is None and name is not None:
            values[wanted], names[wanted] = values.pop(name), name
    if values.get("label") in (0, 1) and not isinstance(values["label"], bool):
        values["label"] = bool(values["label"])
    if "completion" in values:
        value = values["completion"]
        values["completion"] = _as_messages([value] if isinstance(value, Mapping) else value)
    spoken = row.changed(values, **names)
    return spoken if _filled(values.get("messages")) and values.get("completion") is None else with_prompt(spoken)


def ranked_rows(row: Row) -> Iterator[Row]:
    """Rows with `prompt`, `completions` and `ranks` (0 is best); a message tree gives one for each ranked turn."""
    root = row.values.get("prompt")
    if isinstance(root, Mapping) and "replies" in root:
        yield from _branches(row, root, [], str(row.values.get("message_tree_id") or root.get("message_id") or ""))
        return
    row = _as_pair(row)
    values = dict(row.values)
    name = next((column for column in RANKED if _filled(values.get(column))), None)
    if name is None and "chosen" in values:
        pair = pair_row(row)
        both = dict(pair.values)
        if _filled(both.get("prompt")):
            both["completions"], both["ranks"] = [_text(both.pop("chosen")), _text(both.pop("rejected"))], [0, 1]
        yield pair.changed(both)
        return
    if name is None:
        raise mistake(
            row, "'completions'", "is missing", "a list of completions to the prompt", "name the column 'completions'"
        )
    completions = values.pop(name)
    if (
        isinstance(completions, list | tuple)
        and completions
        and all(isinstance(completion, Mapping) for completion in completions)
    ):
        values.setdefault(
            "scores", [completion.get("overall_score", completion.get("score")) for completion in completions]
        )
        completions = [
            completion.get("response", completion.get("content", completion.get("text"))) for completion in completions
        ]
    values["completions"] = completions
    values["ranks"] = _ranks(row, values, completions)
    yield with_prompt(row.changed(values, **({} if name == "completions" else {"completions": name})))


def _ranks(row: Row, values: dict[str, Any], completions: Any) -> list[int]:
    columns = ("ranks", "scores", "rewards", "order")
    names = [column for column in columns if _filled(values.get(column)) and not _is_blank(values[column])]
    names = names or [column for column in columns if _filled(values.get(column))]
    if not names:
        raise mistake(
            row, "'scores'", "is missing", "a score for each completion, or their order", "add 'scores' or 'order'"
        )
    ranks = _ranks_by(row, names[0], values.pop(names[0]), completions)
    for name in names[1:]:
        others = _ranks_by(row, name, values[name], completions)
        if any((ranks[one] - ranks[two]) * (others[one] - others[two]) < 0 for one, two in _couples(len(ranks))):
            fault = f"puts the completions in another order than {row.shown(names[0])!r}"
            raise mistake(row, name, fault, "one order", "drop the column that is wrong")
    return ranks


def _is_blank(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(member is None for member in value)


def _couples(count: int) -> Iterator[tuple[int, int]]:
    return combinations(range(count), 2)


def _ranks_by(row: Row, name: str, values: Any, completions: Any) -> list[int]:
    """0 for the best completion, by one of the columns that say it."""
    if (
        not isinstance(completions, list | tuple)
        or not isinstance(values, list | tuple)
        or len(values) != len(completions)
    ):
        sizes = f"has {_size(values)} for {_size(completions)} completions"
        raise mistake(row, name, sizes, "one for each completion", "correct the row or drop it")
    if any(
        isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score) for score in values
    ):
        raise mistake(row, name, f"is {value_text(values)}", "numbers", "fill in the missing ones or drop the row")
    if name == "order":
        if sorted(values) != list(range(len(values))):
            expected = f"each of 0 to {len(values) - 1} once, the best completion's number first"
            raise mistake(row, name, f"is {value_text(values)}", expected, "correct the row")
        return [values.index(number) for number in range(len(values))]
    ladder = sorted(set(values), reverse=name != "ranks")
    return [ladder.index(score) for score in values]


def _branches(row: Row, node: Mapping[str, Any], before: list[dict[str, str]], name: str) -> Iterator[Row]:
    """One row for each user turn of a tree with at least two ranked answers."""
    here = [*before, {"role": SPEAKERS.get(str(node.get("role")), "user"), "content": str(node.get("text") or "")}]
    below = node.get("replies") or ()
    if not isinstance(below, list | tuple) or not all(isinstance(child, Mapping) for child in below):
        raise mistake(row, "replies", f"is {value_text(below)}", "a list of messages", "correct the tree or drop it")
    answers = [child for child in below if not child.get("deleted")]
    ranked = [child for child in answers if child.get("rank") is not None]
    if len(ranked) > 1:
        completions = [candidate.get("text") for candidate in ranked]
        number = node.get("message_id") or f"{name}/{len(here)}"
        ranks = [candidate["rank"] for candidate in ranked]
        if any(isinstance(rank, bool) or not isinstance(rank, int) for rank in ranks):
            raise mistake(row, "rank", f"is {value_text(ranks)}", "whole numbers", "correct the tree or drop it")
        yield Row({"id": f"{number}", "prompt": here, "completions": completions, "ranks": ranks}, row.where)
    for answer in answers:
        yield from _branches(row, answer, here, name)


def _as_pair(row: Row) -> Row:
    """Two numbered completions and a verdict become `chosen` and `rejected`."""
    values = dict(row.values)
    rivals = next((pair for pair in RIVALS if all(name in values for name in pair)), None)
    if rivals is None or "chosen" in values:
        return row
    first, second = (values.pop(name) for name in rivals)
    winner = _winner(row, values)
    for name in (*VERDICTS, *(name for name in list(values) if re.fullmatch(r"annotator_?\d+", name))):
        values.pop(name, None)
    better, worse = rivals if winner == 1 else rivals[::-1]
    values["chosen"], values["rejected"] = (first, second) if winner == 1 else (second, first)
    return row.changed(values, chosen=better, rejected=worse)


def _winner(row: Row, values: Mapping[str, Any]) -> int:
    votes = [value for name, value in values.items() if re.fullmatch(r"annotator_?\d+", name)]
    field = (
        "the annotators' vote" if votes else next((name for name in VERDICTS if values.get(name) is not None), "label")
    )
    votes = votes or [values.get(field)]
    counted = Counter(_vote(row, field, vote) for vote in votes).most_common()
    tied = counted[0][0] == 0 or (len(counted) > 1 and counted[0][1] == counted[1][1])
    if tied:
        raise mistake(
            row, field, "calls it a tie", "a completion that is better", "drop the row: a tie teaches no order"
        )
    return counted[0][0]


def _vote(row: Row, field: str, vote: Any) -> int:
    word = str(vote).strip().lower()
    for number, words in ((1, FIRST), (2, SECOND), (0, TIE)):
        if word in words and not isinstance(vote, bool):
            return number
    raise mistake(row, field, f"is {value_text(vote)}", "1 or 2, the better completion", "write 1, 2, or 0 for a tie")


def _parted(row: Row, chosen: str, rejected: str) -> dict[str, str]:
    """The words both texts begin with are the prompt; a word that goes on differently belongs to the completions."""
    same = (first == second for first, second in zip(chosen, rejected, strict=False))
    common = chosen[: sum(takewhile(bool, same))]
    cut = max((at for at, letter in enumerate(common, 1) if letter.isspace()), default=0)
    if chosen == rejected:
        fix = "drop the row or correct it"
        raise mistake(row, "rejected", "is the same text as 'chosen'", "two different completions", fix)
    if not common[:cut].strip():
        fault = "begin differently and there is no 'prompt'"
        raise mistake(row, "chosen and rejected", fault, "a prompt that both continue", "add the column 'prompt'")
    return {"prompt": common[:cut], "chosen": chosen[cut:], "rejected": rejected[cut:]}


def _turns_of(text: Any, open_end: bool = True) -> list[dict[str, str]] | None:
    """A transcript as messages; None for any other text. With `open_end` an empty last answer is left out."""
    if not isinstance(text, str) or not TURN.match(text):
        return None
    pieces = TURN.split(text)[1:]
    turns = [
        {"role": SPEAKERS[speaker.lower()], "content": content.strip()}
        for speaker, content in zip(pieces[::2], pieces[1::2], strict=True)
    ]
    unanswered = turns[-1]["role"] == "assistant" and not turns[-1]["content"]
    return turns[:-1] if open_end and unanswered else turns


def _as_messages(value: Any) -> Any:
    """Turns given as {from, value}, turned into {role, content}; anything else unchanged."""
    if not isinstance(value, list | tuple) or not all(isinstance(message, Mapping) for message in value):
        return value
    if not all("from" in message and "value" in message for message in value):
        return value
    return [_as_message(str(message["from"]), message["value"]) for message in value]


def _as_message(speaker: str, text: Any) -> dict[str, Any]:
    """One turn; a call that is written as JSON becomes a tool call."""
    if speaker in CALLERS:
        try:
            calls = json.loads(text)
        except (TypeError, ValueError):
            calls = None
        calls = [calls] if isinstance(calls, Mapping) else calls
        if isinstance(calls, list) and calls and all(isinstance(call, Mapping) and "name" in call for call in calls):
            listed = [{"type": "function", "function": dict(call)} for call in calls]
            return {"role": "assistant", "content": "", "tool_calls": listed}
    return {"role": SPEAKERS.get(speaker, speaker), "content": text}


def _text(completion: Any) -> Any:
    """The words of a completion written as one message."""
    if isinstance(completion, Sequence) and not isinstance(completion, str) and len(completion) == 1:
        return completion[0].get("content") if isinstance(completion[0], Mapping) else completion[0]
    return completion


def _filled(value: Any) -> bool:
    return value is not None and value != "" and value != [] and value != ()


def _size(value: Any) -> str:
    return str(len(value)) if isinstance(value, list | tuple) else value_text(value)
