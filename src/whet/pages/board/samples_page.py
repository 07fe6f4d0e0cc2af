"""Samples of a run: a list to search, filter and sort, and one sample with its tokens and its group."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import urlencode

from whet.pages.board.access import Refusal
from whet.pages.board.board_app import Board, BoardApp, BoardRequest, BoardResponse, json_response
from whet.pages.board.files import RUN, FoundFolder, visible
from whet.pages.board.sample_index import (
    SORTS,
    FoundSamples,
    SampleFinder,
    SampleIndex,
    SampleQuery,
    folded,
    numbers_of_group,
    place_in_step,
    rewards_by_step,
    token_line,
    token_values,
)
from whet.pages.chart_specs import chart, fits_unit, line
from whet.pages.render import Figure, TextCard
from whet.pages.run_report import sample_card
from whet.record.log import TOKENS
from whet.record.text import number

PER_PAGE = 25
MOST_PER_PAGE = 200
INDEX_SECONDS, SEARCH_SECONDS = 0.35, 0.4  # that a request may read on
LONG_SECONDS = 3.0
SNIPPET, LONGEST_TEXT = 280, 20_000  # characters of a text in the list, and beside its group
MOST_SIBLINGS = 64
MOST_SEARCHED = 500  # characters of a text to look for
FIELDS = ("search", "from", "to", "low", "high", "part", "stop", "prompt", "sort", "fold")
KINDS = {
    "advantage": "advantage",
    "weight": "weight in the update",
    "gap": "log-prob, trainer minus sampler",
    "logp": "log-prob of the sampler",
}


finder_of = lru_cache(maxsize=16)(SampleFinder)  # one for each index; it remembers what was searched


def add_routes(app: BoardApp, board: Board) -> None:
    """The samples of a run, one of them, and its tokens."""

    def asked(request: BoardRequest) -> tuple[FoundFolder, SampleIndex, SampleQuery, FoundSamples]:
        run = board.find(request.path["run"], RUN)
        index = board.samples(run.id)
        index.refresh(INDEX_SECONDS)
        query = sample_query(request)
        return run, index, query, finder_of(index).find(query, SEARCH_SECONDS)

    def page(request: BoardRequest) -> BoardResponse:
        run, index, query, samples = asked(request)
        is_folded = request.query.get("fold") == "prompt"
        numbers, counts = folded(index, samples.numbers) if is_folded else (samples.numbers, None)
        pages = max(1, math.ceil(len(numbers) / PER_PAGE))
        at = min(request.number("page", 1, 1, 10**9), pages)
        filters = {name: request.query[name] for name in FIELDS if request.query.get(name)}
        is_newest = not filters and at == 1 and not index.is_complete  # the newest are known before the rest is read
        rows = index.newest(PER_PAGE) if is_newest else _page_rows(index, numbers, at, PER_PAGE)
        shown = [_listed(run.id, offset, line) for offset, line in rows]
        if counts is not None:
            for row, count in zip(shown, counts[(at - 1) * PER_PAGE :].tolist(), strict=False):
                row["count"] = count

        def address(where: int) -> str:
            return f"/run/{run.id}/samples?{urlencode({**filters, 'page': where})}"

        return board.page(
            "board_samples.html",
            title=f"Samples of {visible(run.name)}",
            run=run.id,
            tab="samples",
            verdict=_said(index, samples, len(numbers) if is_folded else 0),
            unread=not index.is_complete or not samples.is_complete,
            rows=shown,
            figure=prompt_figure(index, samples, query.prompt) if query.prompt else None,
            query={name: request.query.get(name, "") for name in FIELDS},
            is_filtered=bool(filters),
            sorts=SORTS,
            sort=query.sort,
            parts=index.part_names(),
            stops=index.stop_names(),
            page=at,
            pages=pages,
            before=address(at - 1) if at > 1 else "",
            behind=address(at + 1) if at < pages else "",
        )

    def listed(request: BoardRequest) -> BoardResponse:
        _, index, _, samples = asked(request)
        size = request.number("size", PER_PAGE, 1, MOST_PER_PAGE)
        at = request.number("page", 1, 1, 10**9)
        return json_response(
            {
                "found": len(samples.numbers),
                "total": samples.total,
                "is_complete": index.is_complete and samples.is_complete,
                "damaged": index.num_damaged,
                "page": at,
                "samples": [{"place": offset, **line} for offset, line in _page_rows(index, samples.numbers, at, size)],
            }
        )

    def one(request: BoardRequest) -> BoardResponse:
        run = board.find(request.path["run"], RUN)
        index = board.samples(run.id)
        number_, offset, line = _sample_at(index, request.path["place"])
        siblings = [
            (sibling_offset, other)
            for sibling in numbers_of_group(index, number_)[:MOST_SIBLINGS]
            if (other := index.line(sibling_offset := index.place(sibling))) is not None
        ]
        card = visible_card(line)
        return board.page(
            "board_sample.html",
            title=f"Step {line['step']}, prompt {visible(str(line.get('prompt_id')))[:80]}",
            run=run.id,
            tab="samples",
            verdict=f"Reward {card.reward}, {card.foot}.",
            card=card,
            place=offset,
            kinds=KINDS,
            siblings=[
                {
                    **_listed(run.id, sibling_offset, other),
                    "is_this": sibling_offset == offset,
                    "text": _text(other.get("completion")),
                }
                for sibling_offset, other in siblings
            ],
            follow=_followed(run.id, line),
            earlier=_neighbour(run.id, index, number_ - 1),
            later=_neighbour(run.id, index, number_ + 1),
        )

    def tokens(request: BoardRequest) -> BoardResponse:
        run = board.find(request.path["run"], RUN)
        index = board.samples(run.id)
        number_, _, line = _sample_at(index, request.query.get("place", ""))
        recorded = token_line(run.path / TOKENS, line["step"], place_in_step(index, number_))
        if recorded is None:
            return json_response({"pieces": [], "why": "no tokens of this sample were recorded (report.tokens)"})
        turns = line.get("turns")
        roles = [str(turn.get("role")) for turn in turns if isinstance(turn, dict)] if isinstance(turns, list) else []
        values = token_values(recorded)
        values["pieces"] = [visible(piece) for piece in values["pieces"]]
        return json_response({**values, "roles": roles})

    app.get("/run/{run}/samples", page)
    app.get("/api/run/{run}/samples", listed)
    app.get("/run/{run}/samples/{place}", one)
    app.get("/api/run/{run}/tokens", tokens)


def sample_query(request: BoardRequest) -> SampleQuery:
    """What the address asks for."""
    first, last = (request.number(name, -1, 0, 2**53) for name in ("from", "to"))
    sort = request.query.get("sort") or "newest"
    if sort not in SORTS:
        raise Refusal(400, f"sort is {sort[:40]!r}; expected one of {', '.join(SORTS)}")
    return SampleQuery(
        search=request.query.get("search", "")[:MOST_SEARCHED],
        first_step=None if first < 0 else first,
        last_step=None if last < 0 else last,
        low=request.real("low"),
        high=request.real("high"),
        part=request.query.get("part", ""),
        stop=request.query.get("stop", ""),
        prompt=request.query.get("prompt", ""),
        sort=sort,
    )


def prompt_figure(index: SampleIndex, samples: FoundSamples, prompt: str) -> Figure | None:
    """The rewards of a prompt's completions by step; None where only one step recorded it."""
    rows = rewards_by_step(index, samples.numbers)
    if len(rows) < 2:
        return None
    edges: dict[str, Any] = {"low": [low for *_, low, _ in rows], "high": [high for *_, high in rows]}
    drawn = line("reward", [(float(step), mean) for step, mean, *_ in rows], marked=True, **edges)
    spec = chart([drawn], unit=fits_unit([*edges["low"], *edges["high"]]), smooth=False, named=True, height=220)
    title = f"Reward of prompt {visible(prompt)[:80]}"
    return Figure(title, "mean and range of its recorded samples", spec, is_wide=True)


def _page_rows(index: SampleIndex, numbers: Any, at: int, size: int) -> list[tuple[int, dict[str, Any]]]:
    return index.lines([index.place(number) for number in numbers[(at - 1) * size : at * size].tolist()])


def _said(index: SampleIndex, samples: FoundSamples, num_prompts: int) -> str:
    """How many there are, of how many prompts where they are folded, and what was not looked at yet."""
    count, total = len(samples.numbers), samples.total
    if not total:
        return "This run has recorded no samples: report.samples_per_step is 0, nothing is sampled, or no step is done."
    sentence = f"{count:,} of {total:,} samples" if count != total else f"{total:,} samples"
    sentence += f" of {num_prompts:,} prompts." if num_prompts else "."
    if not samples.is_complete:
        sentence += f" {samples.looked_through:,} of {samples.to_look_through:,} have been searched so far; "
        sentence += "the search continues."
    if not index.is_complete:
        sentence += f" {index.share_read:.0%} of the file has been read so far; reading continues."
    if index.num_damaged:
        sentence += f" {index.num_damaged:,} lines of the file are damaged and left out."
    return sentence


def _sample_at(index: SampleIndex, text: str) -> tuple[int, int, dict[str, Any]]:
    """The number, the place and the line of a sample named by its place in the file."""
    offset = int(text) if text.isdecimal() and len(text) < 19 else -1
    index.refresh(INDEX_SECONDS)
    if offset >= 0 and index.line(offset) is not None and (not len(index) or offset > index.place(len(index) - 1)):
        index.refresh(LONG_SECONDS)  # a sample of the end, before all of the file is read
    places = index.columns()["place"]
    number_ = _bisected(places, offset)
    line = index.line(offset) if number_ is not None else None
    if number_ is None or line is None:
        raise Refusal(404, "there is no such sample; the run may have been cut back or goes on being read: try again")
    return number_, offset, line


def _bisected(places: Any, offset: int) -> int | None:
    at = bisect_left(places, offset)
    return at if at < len(places) and places[at] == offset else None


def _neighbour(run: str, index: SampleIndex, number_: int) -> str:
    return f"/run/{run}/samples/{index.place(number_)}" if 0 <= number_ < len(index) else ""


def _listed(run: str, offset: int, line: Mapping[str, Any]) -> dict[str, Any]:
    """A sample as the list shows it."""
    card = visible_card(line)
    return {
        "address": f"/run/{run}/samples/{offset}",
        "follow": _followed(run, line),
        "count": 0,
        "step": line["step"],
        "reward": card.reward,
        "chips": card.chips,
        "foot": card.foot,
        "question": _snippet(line.get("question")),
        "completion": _snippet(line.get("completion")),
        "turns": len(card.turns),
        "errors": sum(len(turn.errors) for turn in card.turns),
    }


def _followed(run: str, line: Mapping[str, Any]) -> str:
    """The address of all samples of a prompt, from the first step on; none where no address can hold its id."""
    prompt = str(line.get("prompt_id", ""))
    if not prompt or len(prompt) > MOST_SEARCHED or not prompt.isprintable():
        return ""
    return f"/run/{run}/samples?{urlencode({'prompt': prompt, 'sort': 'oldest'})}"


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else ""
    rest = len(text) - LONGEST_TEXT
    return visible(text if rest <= 0 else f"{text[:LONGEST_TEXT]} ... ({rest:,} more characters)")


def _snippet(value: Any) -> str:
    text = value if isinstance(value, str) else ""
    return visible(text if len(text) <= SNIPPET else f"{text[: SNIPPET // 2]} ... {text[-SNIPPET // 2 :]}")


def visible_card(line: Mapping[str, Any]) -> TextCard:
    """A sample as a page shows it, with control characters made visible."""
    parts = line.get("parts")
    known = {str(name): value for name, value in parts.items()} if isinstance(parts, dict) else {}
    numbers = {name: value for name, value in known.items() if isinstance(value, int | float) or value is None}
    reward = line.get("reward") if isinstance(line.get("reward"), int | float) else None
    turns = [turn for turn in line["turns"] if isinstance(turn, dict)] if isinstance(line.get("turns"), list) else []
    seconds = line.get("seconds")
    safe = {**line, "parts": {}, "reward": reward, "turns": turns, "seconds": seconds if turns else None}
    try:
        card = sample_card("", safe)
    except (TypeError, ValueError, AttributeError):  # turns that no run wrote
        card = sample_card("", {**safe, "turns": [], "seconds": None})
    return TextCard(
        card.rank,
        number(reward),
        tuple((visible(name), number(value)) for name, value in numbers.items()),
        tuple((name, visible(text)) for name, text in card.texts),
        visible(card.foot),
        visible(card.id),
        tuple(
            type(turn)(
                visible(turn.who),
                visible(turn.text),
                tuple(map(visible, turn.notes)),
                tuple(map(visible, turn.errors)),
                turn.learns,
            )
            for turn in card.turns
        ),
    )
