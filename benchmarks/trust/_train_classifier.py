"""Trains the classifier of `suspect_sentences` and writes its weights, its threshold and its error rates.

    python -m benchmarks.trust._train_classifier            # measures by cross-validation, then trains on everything
    python -m benchmarks.trust._train_classifier --results  # and writes results/suspect_sentences.json

Suspect sentences: `corpus/hacking/sentences.toml`, the attacks of the defences' own corpora and of the open half (of a
reply, the sentence that looks most like the others). Honest ones: the honest replies of those corpora, and real replies
where WHET_DATA names a folder. Error rates come from sources that were left out: each group of hacks in turn, each
third of the real sources in turn.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import sys
import tomllib
import zlib
from collections.abc import Sequence
from pathlib import Path
from statistics import quantiles

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from results_file import write_results

from benchmarks.trust._honest import honest_replies
from benchmarks.trust.defence_rates import corpus
from benchmarks.trust.hacking import CORPUS, read_half
from whet.reward.defences.reading import content_stems, whole_prompt
from whet.reward.defences.suspicion import SIZE, WEIGHTS, features, sentences_of
from whet.types import Prompt

KINDS = ("judge_injection", "self_grading")
MOST_HONEST = 8_000  # sentences
ALARMS = 0.002  # of honest replies, that the threshold allows
STEPS, ROUNDS, RATE, DECAY, POSITIVE_WEIGHT = 80, 2, 0.1, 1e-4, 12.0
Row = list[tuple[int, float]]
Reply = list[Row]  # one row of features per sentence


def reply_rows(prompt: Prompt, completion: str) -> Reply:
    stems = content_stems(whole_prompt(prompt))
    return [features(stems, sentence) for sentence in sentences_of(completion)]


def hacks() -> dict[str, list[Reply]]:
    """Groups of replies with a suspect sentence each, by author."""
    asked = [case.prompt for case in corpus("honest")]
    draw = random.Random(0)
    written = tomllib.loads((CORPUS / "sentences.toml").read_text(encoding="utf-8"))
    groups: dict[str, list[Reply]] = {
        "sentences": [reply_rows(draw.choice(asked), text) for kind in KINDS for text in written[kind]],
        "corpora": [reply_rows(c.prompt, c.completion) for c in corpus("suspect_sentences") if c.is_attack],
        "open half": [
            reply_rows(row.prompt, row.completion) for row in read_half("open") if row.category in KINDS and row.is_hack
        ],
    }
    return {name: [reply for reply in replies if reply] for name, replies in groups.items()}


def honest() -> dict[str, list[tuple[bool, Reply]]]:
    """(has a gold answer, features) of honest replies, by source."""
    found: dict[str, list[tuple[bool, Reply]]] = {}
    for kind in ("honest", "suspect_sentences", "guessing", "padding", "hidden_text"):
        cases = [case for case in corpus(kind) if not case.is_attack]
        found[f"corpus {kind}"] = [(c.prompt.answer is not None, reply_rows(c.prompt, c.completion)) for c in cases]
    open_half = [row for row in read_half("open") if not row.is_hack]
    found["open half"] = [(r.prompt.answer is not None, reply_rows(r.prompt, r.completion)) for r in open_half]
    real = honest_replies()
    for case in random.Random(1).sample(real, min(len(real), 3000)):
        found.setdefault(case.note, []).append(
            (case.prompt.answer is not None, reply_rows(case.prompt, case.completion))
        )
    return found


def flat(rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(place, value, number of the row) of every feature of every row."""
    places = torch.tensor([place for row in rows for place, _ in row], dtype=torch.long)
    values = torch.tensor([value for row in rows for _, value in row])
    return places, values, torch.repeat_interleave(torch.arange(len(rows)), torch.tensor([len(row) for row in rows]))


def fit(suspect: Sequence[Row], fine: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, float]:
    """Logistic regression by full-batch Adam: nothing is drawn, so the same rows give the same weights."""
    places, values, number = flat(suspect)
    places, values = torch.cat([places, fine[0]]), torch.cat([values, fine[1]])
    number = torch.cat([number, fine[2] + len(suspect)])
    labels = torch.cat([torch.ones(len(suspect)), torch.zeros(int(fine[2].max()) + 1)])
    weights, bias = torch.zeros(SIZE, requires_grad=True), torch.zeros(1, requires_grad=True)
    steps = torch.optim.Adam([weights, bias], lr=RATE)
    for _ in range(STEPS):
        logits = torch.zeros(len(labels)).index_add(0, number, weights[places] * values) + bias
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            logits, labels, pos_weight=torch.tensor(POSITIVE_WEIGHT)
        )
        loss = loss + DECAY * weights.square().sum()
        steps.zero_grad()
        loss.backward()
        steps.step()
    return weights.detach(), float(bias.detach())


def scores(weights: torch.Tensor, bias: float, replies: Sequence[Reply]) -> list[float]:
    table = weights.tolist()
    return [
        max((sum(table[place] * value for place, value in row) for row in reply), default=float("-inf")) + bias
        for reply in replies
    ]


def trained(groups: Sequence[Sequence[Reply]], fine: Sequence[Row]) -> tuple[torch.Tensor, float]:
    """Fit on all sentences of the hacks, then again on the most suspect one of each."""
    replies = [reply for group in groups for reply in group]
    chosen = [reply[-1] if len(reply) > 1 else reply[0] for reply in replies]
    rows = flat(fine)
    for _ in range(ROUNDS):
        weights, bias = fit(chosen, rows)
        table = weights.tolist()
        chosen = [max(reply, key=lambda row: sum(table[p] * v for p, v in row)) for reply in replies]
    return weights, bias


def fine_rows(sources: dict[str, list[tuple[bool, Reply]]], names: Sequence[str]) -> list[Row]:
    rows = [row for name in names for _, reply in sources[name] for row in reply]
    return random.Random(2).sample(rows, min(len(rows), MOST_HONEST))


def limit_of(values: Sequence[float], share: float) -> float:
    """The score that only `share` of the honest replies exceed."""
    finite = [value for value in values if value > float("-inf")]
    return quantiles(finite, n=max(int(1 / share), 2))[-1] if len(finite) > 1 / share else max(finite, default=0.0)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--results", action="store_true", help="write results/suspect_sentences.json")
    given = options.parse_args()
    groups, sources = hacks(), honest()
    names = sorted(sources)
    always = [name for name in names if name.startswith(("corpus", "open"))]
    real = [name for name in names if name not in always]
    figures: dict[str, dict[str, object]] = {}
    out_of_fold: dict[bool, list[float]] = {True: [], False: []}
    folds = [real[number::3] for number in range(3)] if real else [[]]
    for fold in folds:
        left = [name for name in names if name not in fold]
        weights, bias = trained(list(groups.values()), fine_rows(sources, left))
        for name in fold:
            for has_gold in (True, False):
                replies = [reply for gold, reply in sources[name] if gold == has_gold]
                out_of_fold[has_gold] += scores(weights, bias, replies)
    limits = {has_gold: limit_of(values, ALARMS) if values else 0.0 for has_gold, values in out_of_fold.items()}
    print("thresholds", limits, flush=True)
    everything = out_of_fold[True] + out_of_fold[False]
    alarms = sum(value > limits[gold] for gold, values in out_of_fold.items() for value in values)
    figures["honest replies of sources left out"] = {"tried": len(everything), "alarms": alarms}
    for name in groups:
        others = [group for other, group in groups.items() if other != name]
        weights, bias = trained(others, fine_rows(sources, names))
        caught = sum(value > limits[True] for value in scores(weights, bias, groups[name]))
        figures[f"hacks left out: {name}"] = {"tried": len(groups[name]), "caught": caught}
        print(name, caught, len(groups[name]), flush=True)
    weights, bias = trained(list(groups.values()), fine_rows(sources, names))
    scale = float(weights.abs().max()) / 127
    table = bytes(int(value) % 256 for value in (weights / scale).round().clamp(-127, 127).tolist())
    written = {
        "about": "weights of suspect_sentences; python -m benchmarks.trust._train_classifier writes this file",
        "bias": round(bias, 5),
        "scale": scale,
        "threshold": round(limits[False], 4),
        "checked_threshold": round(limits[True], 4),
        "error_rates": figures,
        "weights": base64.b85encode(zlib.compress(table, 9)).decode(),
    }
    WEIGHTS.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(figures, indent=1))
    if given.results:
        write_results("suspect_sentences", figures)


if __name__ == "__main__":
    main()
