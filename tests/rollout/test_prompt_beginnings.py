"""Which beginnings prompts take over: all that is shared is read once, and nothing waits for itself."""

import random

from whet.data import prefix_tree
from whet.rollout import prompt_beginnings
from whet.rollout.prompt_beginnings import Beginning, shared_beginnings


def grown(seed: int, count: int) -> list[tuple[int, ...]]:
    """Rows that branch off each other, end inside each other, and are equal here and there."""
    rng = random.Random(seed)
    rows: list[tuple[int, ...]] = []
    for _ in range(count):
        base = rng.choice(rows) if rows and rng.random() < 0.85 else ()
        rows.append(
            (*base[: rng.randint(0, len(base))], *(rng.randrange(6) for _ in range(rng.randint(0, 12)))) or (1,)
        )
    return rows


def beginnings_of(tokens):
    return {row[:stop] for row in tokens for stop in range(1, len(row) + 1)}


def test_each_token_is_read_once_behind_exactly_what_it_follows(monkeypatch):
    monkeypatch.setattr(prefix_tree, "LEAST_SHARED", 1)
    monkeypatch.setattr(prefix_tree, "LEAST_SAVED", 0.0)
    monkeypatch.setattr(prompt_beginnings, "LEAST_PER_PASS", 0)
    for seed in range(60):
        rows = grown(seed, 14)
        held, prompts = rows[: seed % 5], list(dict.fromkeys(rows[seed % 5 :]))
        taken = shared_beginnings(held, prompts)
        known, read = beginnings_of(held), 0
        for number in range(1 + max(beginning.passes for beginning in taken)):
            turn = [(prompt, each) for prompt, each in zip(prompts, taken, strict=True) if each.passes == number]
            for prompt, beginning in turn:
                assert beginning.length < len(prompt)
                if beginning.length:
                    start = [*held, *prompts][beginning.source][: beginning.length]
                    assert start == prompt[: beginning.length] and start in known
                else:
                    assert beginning == Beginning()
            for prompt, beginning in turn:
                read += len(prompt) - beginning.length
                known |= beginnings_of([prompt])
        # a prompt that ends where another goes on reads its last token all the same
        inside = sum(
            prompt in beginnings_of([*held, *(other for other in prompts if other != prompt)]) for prompt in prompts
        )
        least = len(beginnings_of(prompts) - beginnings_of(held))
        assert least <= read <= least + inside, seed


def test_what_saves_too_little_is_not_shared():
    common = tuple(range(100, 140))
    prompts = [(*common, number, *range(10)) for number in range(3)]
    assert shared_beginnings([], prompts) == [Beginning(), Beginning(40, 0, 1), Beginning(40, 0, 1)]
    assert shared_beginnings([common], prompts) == [Beginning(40, 0, 0)] * 3
    short = [(1, 2, 3, number, *range(20 * number, 20 * number + 20)) for number in range(4)]
    assert shared_beginnings([], short) == [Beginning()] * 4
    assert shared_beginnings([common], [common]) == [Beginning(39, 0, 0)]
