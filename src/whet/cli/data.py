"""`whet data ...`: clean, mix, split and convert data files, and see what they hold. No command loads torch early."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from whet.cli.options import APP_SETTINGS, AsJson, number, print_json
from whet.settings.bounds import MOST_ROWS, MOST_SAMPLES, MOST_SEED

if TYPE_CHECKING:
    from whet.data.spool import RowWriter, StoredRows

data_app = typer.Typer(
    name="data", help="Clean, mix, split and convert data files, and see what they hold.", **APP_SETTINGS
)

File = Annotated[
    str, typer.Argument(metavar="FILE", help="A file, gsm8k:FILE and such, hub:owner/name, or - for stdin.")
]
Out = Annotated[str, typer.Option("--out", "-o", help="File for the rows: .jsonl or .jsonl.gz, or - for stdout.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the file that is there.")]
Unusable = Annotated[
    Literal["stop", "drop"], typer.Option("--unusable", help="Rows that cannot be read: stop, or drop and count them.")
]
By = Annotated[str, typer.Option("--by", help="What is compared: prompt, all (with completions), or a column.")]
Seed = Annotated[int, typer.Option("--seed", min=0, max=MOST_SEED, help="Random seed.")]
Similarity = Annotated[
    float | None, number("--near", "Share of common runs of words that makes two texts alike.", 0, 1)
]
Numbers = Annotated[bool, typer.Option("--ignore-numbers", help="Texts that differ in their numbers only are alike.")]


@data_app.callback()
def root() -> None:
    pass


@data_app.command()
def dedup(
    file: File,
    out: Out,
    by: By = "all",
    near: Similarity = 0.8,
    exact: Annotated[bool, typer.Option("--exact", help="Exact duplicates only, case and punctuation aside.")] = False,
    ignore_numbers: Numbers = False,
    unusable: Unusable = "stop",
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Remove duplicates, exact and near; the first of each group stays.

    Near duplicates are found by MinHash: texts whose runs of three words agree to --near of all that either has.
    """
    from whet.data import cleaning

    reader = _reader(file, unusable)
    with _written(out, force) as writer:
        _tell(cleaning.dedup(reader, writer, by, None if exact else near, ignore_numbers), out, as_json)


@data_app.command()
def contamination(
    file: File,
    test: Annotated[list[str], typer.Option("--test", help="File of test prompts. Repeatable.")],
    out: Annotated[str | None, typer.Option("--out", "-o", help="File for the rows that are clean.")] = None,
    kinds: Annotated[
        str, typer.Option("--kinds", help="What counts: exact, copy, near, template, passage.")
    ] = "exact,copy,near",
    run: Annotated[int, typer.Option("--run", min=1, max=1000, help="Words of a run in long texts.")] = 13,
    share: Annotated[float, number("--share", "Share of the shorter text that must be common.", 0.01, 1)] = 0.5,
    by: By = "prompt",
    examples: Annotated[int, typer.Option("--examples", min=0, max=1000, help="Pairs to show.")] = 5,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 if a row is contaminated.")] = False,
    unusable: Unusable = "stop",
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Find training rows that give test prompts away; --out writes the others.

    exact: the same words. copy: half of it in runs of 13 words. near: a short text with the same numbers. template:
    with other numbers. passage: one run in common.
    """
    from whet.data import cleaning
    from whet.data.contamination import OverlapKind, OverlapRule
    from whet.types import WhetError, did_you_mean

    names = [name.strip() for name in kinds.split(",") if name.strip()]
    for name in names:
        if name not in tuple(OverlapKind):
            known = [str(kind) for kind in OverlapKind]
            raise WhetError(f"--kinds {name}: no such kind{did_you_mean(name, known)}; there are {', '.join(known)}")
    rule = OverlapRule(run=run, short_run=min(3, run), share=share)
    tests = [_reader(test_file, unusable) for test_file in test]
    with _written(out, force) as writer:
        report = cleaning.decontaminate(
            _reader(file, unusable), tests, writer, [OverlapKind(name) for name in names], rule, by, examples
        )
        _tell(report, out, as_json)
    if check and report["contaminated"]:
        raise typer.Exit(1)


@data_app.command("filter")
def keep(
    file: File,
    out: Out,
    column: Annotated[str, typer.Option("--column", help="The number to filter by.")] = "pass_rate",
    least: Annotated[float | None, number("--least", "Lowest kept.")] = None,
    most: Annotated[float | None, number("--most", "Highest kept.")] = None,
    missing: Annotated[
        Literal["stop", "drop"], typer.Option("--missing", help="Rows without the number: stop, or drop and count.")
    ] = "stop",
    unusable: Unusable = "stop",
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Keep rows whose pass rate, or any number, lies between two bounds.

    A prompt that a model always or never solves has no better and worse completions to learn from: --least 0.1 --most
    0.9. `whet data difficulty` measures the pass rate.
    """
    from whet.data import cleaning

    reader = _reader(file, unusable)
    with _written(out, force) as writer:
        _tell(cleaning.keep_between(reader, writer, column, least, most, missing), out, as_json)


@data_app.command()
def difficulty(
    file: File,
    out: Out,
    model: Annotated[str, typer.Option("--model", help="Model or run folder that solves the prompts.")] = "whetstone",
    samples: Annotated[int, typer.Option("--samples", min=1, max=MOST_SAMPLES, help="Completions per prompt.")] = 8,
    right_from: Annotated[float, number("--right-from", "Score that is right.")] = 1.0,
    reward: Annotated[list[str] | None, typer.Option("--reward", help="Judges a completion. Repeatable.")] = None,
    keep_rewards: Annotated[
        bool, typer.Option("--keep-rewards", help="Write each completion's reward too, as `reference_rewards`.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Any config value of `whet eval`. Repeatable."),
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Measure how often a model solves each prompt, and write the rows with their `pass_rate`."""
    from whet import api
    from whet.data.file_statistics import rows_with_pass_rates
    from whet.settings.layers import from_settings, merged

    values = merged({"eval": {"prompts": MOST_ROWS}}, from_settings(settings or []))
    with _written(out, force) as writer:
        result = api.evaluate(model, file, samples=samples, reward=reward, settings=values)
        _tell(rows_with_pass_rates(file, result.completions, writer, right_from, keep_rewards), out, as_json)


@data_app.command()
def curriculum(
    file: File,
    out: Out,
    by: Annotated[str, typer.Option("--by", help="A pass rate (high is easy), or length.")] = "pass_rate",
    stages: Annotated[
        int, typer.Option("--stages", min=1, max=1000, help="Equal parts; rows get a column `stage`.")
    ] = 1,
    hard_first: Annotated[bool, typer.Option("--hard-first", help="From hard to easy.")] = False,
    seed: Seed = 0,
    unusable: Unusable = "stop",
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Order rows from easy to hard, in one line or in stages that are shuffled inside."""
    from whet.data import cleaning

    reader = _reader(file, unusable)
    with _written(out, force) as writer:
        _tell(cleaning.order_by_difficulty(reader, writer, by, stages, hard_first, seed), out, as_json)


@data_app.command()
def mix(
    files: Annotated[list[str], typer.Argument(metavar="FILE=WEIGHT...", help="Two files or more with their weights.")],
    out: Out,
    rows: Annotated[
        int | None, typer.Option("--rows", min=1, max=MOST_ROWS, help="Rows to write; default: as many as there are.")
    ] = None,
    seed: Seed = 0,
    repeat: Annotated[bool, typer.Option("--repeat", help="Rows may be used more than once.")] = False,
    mark: Annotated[str, typer.Option("--mark", help="Column that says which file a row is from.")] = "",
    unusable: Unusable = "stop",
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Mix files by weights, in an order that the seed decides.

    Example:

      whet data mix reasoning.jsonl=3 general.jsonl=1 --rows 10000 --out train.jsonl
    """
    from whet.data import cleaning

    readers = [(_reader(path, unusable), weight) for path, weight in map(_weighted, files)]
    with _written(out, force) as writer:
        _tell(cleaning.mix(readers, writer, rows, seed, repeat, mark), out, as_json)


@data_app.command()
def split(
    file: File,
    sides: Annotated[
        list[str], typer.Argument(metavar="FILE=SHARE...", help="Files to write, with shares that add up to 1.")
    ],
    near: Annotated[float | None, number("--near", "Near duplicates stay together too, from this share.", 0, 1)] = None,
    keep_numbers: Annotated[
        bool, typer.Option("--keep-numbers", help="With --near: other numbers make another prompt.")
    ] = False,
    seed: Seed = 0,
    unusable: Unusable = "stop",
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Split by prompt: all rows of a prompt, and with --near of prompts like it, lie on one side.

    Example:

      whet data split all.jsonl train.jsonl=0.9 test.jsonl=0.1 --near 0.6
    """
    from whet.data import cleaning
    from whet.types import WhetError

    shares = dict(map(_weighted, sides))
    if len(shares) < len(sides) or len(shares) < 2:
        raise WhetError("split: give two files or more, each once, as in train.jsonl=0.9 test.jsonl=0.1")
    with ExitStack() as stack:
        writers: dict[str, RowWriter] = {}
        for side in shares:
            writer = stack.enter_context(_written(side, force))
            assert writer is not None
            writers[side] = writer
        report = cleaning.split_by_prompt(_reader(file, unusable), writers, shares, seed, near, not keep_numbers)
        _tell(report, None, as_json)


@data_app.command()
def convert(
    file: File,
    out: Out,
    to: Annotated[str, typer.Option("--to", help="prompts, sft, pairs, labels or steps.")],
    right_from: Annotated[float, number("--right-from", "Score that is good.")] = 1.0,
    separator: Annotated[str, typer.Option("--separator", help="Text that ends a step of a completion.")] = "\n\n",
    unusable: Unusable = "stop",
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Convert between prompts, demonstrations, pairs, labels and steps; reports what is lost.

    Labels and scored completions (as `whet eval` keeps them) become pairs where a prompt has better and worse ones.
    """
    from whet.data import conversion

    reader = _reader(file, unusable, reread=True)
    with _written(out, force) as writer:
        _tell(
            conversion.convert(reader, writer, to, right_from, separator.encode().decode("unicode_escape")),
            out,
            as_json,
        )


@data_app.command()
def stats(
    file: File,
    near: Annotated[float | None, number("--near", "Count near duplicates too.", 0, 1)] = None,
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", help="Count tokens with this model's tokenizer.")
    ] = None,
    unusable: Unusable = "drop",
    as_json: AsJson = False,
) -> None:
    """Describe a file: rows, columns, what they are read as, lengths, duplicates, scripts, answers."""
    from whet.data.file_statistics import statistics

    encode = None
    if tokenizer is not None:
        from whet.tools.workbench.completions import tokenizer_encode

        encode = tokenizer_encode(tokenizer)
    _tell(statistics(_reader(file, unusable), near, encode), None, as_json)


def _reader(source: str, unusable: str, reread: bool = False) -> StoredRows:
    from whet.data.spool import STANDARD, StoredRows
    from whet.types import WhetError

    if reread and source == STANDARD:
        raise WhetError("-: the file is read twice; save it first, and give its path")
    return StoredRows(source, unusable == "drop")


@contextmanager
def _written(out: str | None, force: bool) -> Iterator[Any]:
    if out is None:
        yield None
        return
    from whet.data.spool import writing

    with writing(out, force) as writer:
        yield writer


def _weighted(text: str) -> tuple[str, float]:
    from whet.types import WhetError

    path, equals, weight = text.rpartition("=")
    try:
        return path, float(weight) if equals and path else float("nan")
    except ValueError:
        raise WhetError(
            f"{text}: {weight!r} is no number; write the file and its share, as in data.jsonl=0.9"
        ) from None


def _tell(report: Mapping[str, Any], out: str | None, as_json: bool) -> None:
    """Print the report beside the rows, or to standard error where the rows go to standard output."""
    to_error = out == "-"
    if as_json and not to_error:
        print_json(dict(report))
        return
    if as_json:
        import json

        print(json.dumps(report), file=sys.stderr)
        return
    for line in _lines(report):
        typer.echo(line, err=to_error)
    if out is not None and not to_error:
        typer.echo(f"{'written':22} {out}")


def _lines(report: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    for name, value in report.items():
        label = f"{indent}{str(name).replace('_', ' ') if not indent else name}"
        if isinstance(value, Mapping) and value:
            if all(not isinstance(item, Mapping | list) for item in value.values()):
                yield f"{label:22} {', '.join(f'{key} {_number(item)}' for key, item in value.items())}"
            else:
                yield label
                yield from _lines(value, f"{indent}  ")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            yield label
            for row in value:
                yield "  " + ", ".join(f"{key} {_number(inner)}" for key, inner in row.items())
        elif isinstance(value, list):
            yield f"{label:22} {', '.join(map(str, value)) or '-'}"
        else:
            yield f"{label:22} {_number(value) if not isinstance(value, Mapping) else '-'}"


def _number(value: Any) -> str:
    return (
        f"{value:,}"
        if isinstance(value, int) and not isinstance(value, bool)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )
