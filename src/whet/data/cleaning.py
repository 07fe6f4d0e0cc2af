"""Tools that leave rows out, order them or deal them out: duplicates, test questions, difficulty, mixing, splitting.

Each reads a file row after row and writes as it goes. What is kept in memory per row is a few numbers; rows that have
to be read again lie in a `Spool` on disk. Each returns what it did, as values for a person or a program to read.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import islice
from typing import Any

import numpy as np

from whet.data.contamination import COPIES, DEFAULT_RULE, ORDER, ContaminationIndex, Overlap, OverlapKind, OverlapRule
from whet.data.rows import BadRow, Row
from whet.data.shingles import CHUNK, Sketches
from whet.data.spool import RowWriter, Spool, StoredRows
from whet.types import WhetError

Summary = dict[str, Any]
STAGE = "stage"


def dedup(
    reader: StoredRows, writer: RowWriter, by: str = "all", similarity: float | None = 0.8, mask_numbers: bool = False
) -> Summary:
    """Write the first row of each group of duplicates; `similarity` None: exact ones only."""
    sketches = Sketches(mask_numbers, sketched=similarity is not None)
    with Spool() as spool:
        for row, text in reader.texts(by):
            spool.add(row.values)
            sketches.add(text)
        exact = sketches.exact()
        first = exact if similarity is None else sketches.clusters(similarity)
        numbers = np.arange(len(first))
        for number in np.flatnonzero(first == numbers).tolist():
            writer.write_line(spool.line(number))
    same = int((exact != numbers).sum())
    summary = {"rows": reader.rows, "kept": writer.rows, "exact_duplicates": same}
    if similarity is not None:
        summary["near_duplicates"] = int((first != numbers).sum()) - same
    sizes = np.bincount(first, minlength=1)
    return {**summary, "largest_group": int(sizes.max()), **_left_out(reader)}


def decontaminate(
    reader: StoredRows,
    tests: Sequence[StoredRows],
    writer: RowWriter | None,
    kinds: Sequence[OverlapKind] = COPIES,
    rule: OverlapRule = DEFAULT_RULE,
    by: str = "prompt",
    examples: int = 5,
) -> Summary:
    """Write the rows that give no test prompt away; count the others by their closest kind."""
    places: list[str] = []
    texts: list[str] = []
    for test in tests:
        for row, text in test.texts("prompt"):
            places.append(row.where)
            texts.append(text)
    index = ContaminationIndex(texts, rule)
    counts: Counter[OverlapKind] = Counter()
    touched: set[int] = set()
    shown: list[Summary] = []
    num_kept = 0
    for row, text, overlaps in _looked_up(reader, index, by):
        closest = min(overlaps, key=lambda overlap: ORDER[overlap.kind], default=None)
        if closest is not None:
            counts[closest.kind] += 1
        counted = [overlap for overlap in overlaps if overlap.kind in kinds]
        if not counted:
            num_kept += 1
            if writer is not None:
                writer.write(row.values)
            continue
        touched.update(overlap.test for overlap in counted)
        if len(shown) < examples and closest is not None:
            pair = {"kind": str(closest.kind), "train": row.where, "test": places[closest.test]}
            shown.append({**pair, "train_text": _short(text), "test_text": _short(texts[closest.test])})
    removed = sum(counts[kind] for kind in kinds)
    return {
        "rows": reader.rows,
        "test_rows": len(texts),
        "kept": num_kept,
        "contaminated": removed,
        "tests_touched": len(touched),
        "by_kind": {str(kind): counts[kind] for kind in OverlapKind},
        "counted_kinds": [str(kind) for kind in kinds],
        "examples": shown,
        **_left_out(reader, *tests),
    }


def _looked_up(reader: StoredRows, index: ContaminationIndex, by: str) -> Iterator[tuple[Row, str, list[Overlap]]]:
    """Rows in small batches, each with its overlaps."""
    pairs = reader.texts(by)
    while batch := list(islice(pairs, CHUNK)):
        of_row: dict[int, list[Overlap]] = {}
        for overlap in index.overlaps(text for _, text in batch):
            of_row.setdefault(overlap.train, []).append(overlap)
        yield from ((row, text, of_row.get(number, [])) for number, (row, text) in enumerate(batch))


def keep_between(
    reader: StoredRows, writer: RowWriter, column: str, least: float | None, most: float | None, missing: str = "stop"
) -> Summary:
    """Write the rows whose column lies between two bounds, both included."""
    if least is None and most is None:
        raise WhetError("filter: give --least, --most or both")
    if least is not None and most is not None and least > most:
        raise WhetError(f"filter: --least {least:g} is above --most {most:g}; swap them")
    below = above = lacking = 0
    for row in reader:
        value = _value_of(reader, row, column, missing == "drop")
        if value is None:
            lacking += 1
        elif least is not None and value < least:
            below += 1
        elif most is not None and value > most:
            above += 1
        else:
            writer.write(row.values)
    summary = {"rows": reader.rows, "kept": writer.rows, "below": below, "above": above}
    return {**summary, **({"without_value": lacking} if lacking else {}), **_left_out(reader)}


def order_by_difficulty(
    reader: StoredRows, writer: RowWriter, column: str, stages: int = 1, hard_first: bool = False, seed: int = 0
) -> Summary:
    """Write the rows from the easiest to the hardest; with several `stages` each row says which is its own.

    `column` is a pass rate (high is easy), or `length`: a longer prompt and answer is harder. Within a stage the order
    is drawn from the seed, so that equal rows do not stand in a row; without stages ties keep their order.
    """
    if stages < 1:
        raise WhetError(f"--stages {stages}: give at least 1")
    with Spool() as spool:
        hardness: list[float] = []
        for row, value in _difficulties(reader, column):
            spool.add(row.values)
            hardness.append(value)
        if stages > len(hardness):
            raise WhetError(f"--stages {stages}: there are only {len(hardness)} rows; give fewer stages")
        values = np.array(hardness, np.float64)
        order = np.argsort(-values if hard_first else values, kind="stable")
        parts = np.array_split(order, stages)
        for stage, part in enumerate(parts, start=1):
            numbers = part.tolist()
            if stages > 1:
                random.Random(f"{seed}/{stage}").shuffle(numbers)
            for number in numbers:
                if stages > 1:
                    writer.write({**spool.values(number), STAGE: stage})
                else:
                    writer.write_line(spool.line(number))
    sign = 1.0 if column == "length" else -1.0
    bounds = [
        {
            "stage": number,
            "rows": len(part),
            "from": sign * float(values[part[0]]),
            "to": sign * float(values[part[-1]]),
        }
        for number, part in enumerate(parts, start=1)
    ]
    return {"rows": reader.rows, "kept": writer.rows, "by": column, "stages": bounds, **_left_out(reader)}


def _difficulties(reader: StoredRows, column: str) -> Iterator[tuple[Row, float]]:
    if column == "length":
        for row, text in reader.texts("all"):
            yield row, float(len(text))
        return
    for row in reader:
        value = _value_of(reader, row, column, False)
        if value is not None:
            yield row, -value


def _value_of(reader: StoredRows, row: Row, column: str, may_lack: bool) -> float | None:
    value = row.values.get(column)
    if isinstance(value, str):  # of a table without types
        with suppress(ValueError):
            value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        if value is None and may_lack:
            return None
        fault = "is missing" if value is None else f"is {value!r}"
        names = ", ".join(map(repr, row.values))
        fix = "measure it with `whet data difficulty`, or name another column"
        message = f"{row.where}: {column!r} {fault}; expected a number; the row has {names}; {fix}"
        reader.refuse(BadRow(message, f"{column!r} {fault}"))
        return None
    return float(value)


def mix(
    readers: Sequence[tuple[StoredRows, float]],
    writer: RowWriter,
    rows: int | None = None,
    seed: int = 0,
    repeat: bool = False,
    mark: str = "",
) -> Summary:
    """Write rows of several sources in the shares of their weights, in an order drawn from the seed.

    Without `repeat` no row is written twice: there are as many as the source that runs out first allows. `mark` names a
    column that says where a row is from.
    """
    weights = np.array([weight for _, weight in readers], np.float64)
    if len(readers) < 2 or not np.all(np.isfinite(weights)) or (weights <= 0).any():
        raise WhetError("mix: give two files or more, each with a weight above 0, as in a.jsonl=3 b.jsonl=1")
    shares = weights / weights.sum()
    with ExitStack() as stack:
        spools = [stack.enter_context(Spool()) for _ in readers]
        for spool, (reader, _) in zip(spools, readers, strict=True):
            for row in reader:
                spool.add({**row.values, mark: reader.source} if mark else row.values)
        sizes = np.array([len(spool) for spool in spools])
        most = int(np.floor(min(sizes / shares) + 1e-9))
        total = rows if rows is not None else most
        counts = _apportioned(total, shares)
        if not repeat and (counts > sizes).any():
            short = int(np.argmax(counts - sizes))
            raise WhetError(
                f"mix: {total} rows need {counts[short]} of {readers[short][0].source}, which has {sizes[short]}; "
                f"give --rows {most} or fewer, another weight, or --repeat"
            )
        draws: list[tuple[int, int]] = []
        for source_number, (count, size) in enumerate(zip(counts.tolist(), sizes.tolist(), strict=True)):
            rounds, rest = divmod(count, size)
            numbers = [number for _ in range(rounds) for number in range(size)]
            numbers += sorted(random.Random(f"{seed}/{source_number}").sample(range(size), rest))
            draws += [(source_number, number) for number in numbers]
        random.Random(seed).shuffle(draws)
        for source_number, number in draws:
            writer.write_line(spools[source_number].line(number))
    sources = [
        {"source": reader.source, "weight": weight, "rows": int(size), "used": int(count)}
        for (reader, weight), size, count in zip(readers, sizes, counts, strict=True)
    ]
    repeated = int(np.maximum(counts - sizes, 0).sum())
    return {
        "kept": writer.rows,
        "sources": sources,
        "repeated": repeated,
        **_left_out(*(stored for stored, _ in readers)),
    }


def _apportioned(total: int, shares: Any) -> Any:
    """Whole numbers that add up to the total, by the largest remainders."""
    exact = shares * total
    counts = np.floor(exact + 1e-9).astype(np.int64)
    order = np.argsort(-(exact - counts), kind="stable")
    counts[order[: total - int(counts.sum())]] += 1
    return counts


def split_by_prompt(
    reader: StoredRows,
    writers: Mapping[str, RowWriter],
    shares: Mapping[str, float],
    seed: int = 0,
    similarity: float | None = None,
    mask_numbers: bool = True,
) -> Summary:
    """Deal the rows out so that no prompt, nor with `similarity` a near duplicate of one, lies on two sides.

    The text of a prompt and the seed alone decide, so that a row stays on its side when other prompts are added. Of
    prompts that belong together one decides for all, chosen by a number that says nothing about its side: the least of
    the numbers that do would put large groups on the first side.
    """
    if not shares or any(share <= 0 for share in shares.values()) or abs(sum(shares.values()) - 1) > 1e-6:
        raise WhetError(f"split: the shares {list(shares.values())} do not add up to 1, or one is not above 0")
    with Spool() as spool:
        keys: list[bytes] = []
        sketches = Sketches(mask_numbers, sketched=similarity is not None)
        for row, text in reader.texts("prompt"):
            spool.add(row.values)
            sketches.add(text)
            keys.append(_split_key(text, seed))
        groups = sketches.exact() if similarity is None else sketches.clusters(similarity)
        deciding: dict[int, bytes] = {}
        for key, group in zip(keys, groups.tolist(), strict=True):
            deciding[group] = min(key, deciding.get(group, key))
        names, bounds = list(shares), np.cumsum(list(shares.values()))
        for number, group in enumerate(groups.tolist()):
            at = int.from_bytes(deciding[group][8:], "big") / 256**8
            side = names[min(int(np.searchsorted(bounds, at, side="right")), len(names) - 1)]
            writers[side].write_line(spool.line(number))
    counts = {name: writer.rows for name, writer in writers.items()}
    empty = next((name for name, count in counts.items() if not count), None)
    if empty is not None and reader.rows:
        apart = "another --seed" if similarity is None else "--keep-numbers, or a larger --near"
        groups_of = "1 group" if len(deciding) == 1 else f"{len(deciding):,} groups"
        raise WhetError(
            f"split: {empty} would get none of the {reader.rows:,} rows, which make {groups_of} of prompts that stay "
            f"together; give it a larger share, more rows, or {apart}"
        )
    return {"rows": reader.rows, "sides": counts, "groups": len(deciding), **_left_out(reader)}


def _split_key(text: str, seed: int) -> bytes:
    """Eight bytes that choose who decides, and eight that say where it goes."""
    digest = hashlib.sha256(f"{seed}\n{' '.join(text.split())}".encode("utf-8", "surrogatepass")).digest()
    return digest[8:16] + digest[:8]


def _left_out(*readers: StoredRows) -> Summary:
    total: Counter[str] = sum((reader.left_out for reader in readers), Counter())
    return {"left_out": dict(total)} if total else {}


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 120 else f"{text[:117]}..."
