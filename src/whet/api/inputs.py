"""What a Python user has in hand, as what a run is made of: models, data and rewards that are objects, not names."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from whet.data.benchmarks import BENCHMARKS
from whet.data.rows import FORMATS
from whet.data.source import MIX
from whet.protocols import Callback, Reward
from whet.record.run_folder import CONFIG
from whet.reward.combine import ALL, RewardPart, check_parts, named_weight
from whet.training.config import FROM_PYTHON, Config
from whet.training.saved_config import START
from whet.types import WhetError

RewardLike = str | Callable[..., Any] | Reward
Weight = float | tuple[tuple[float, float], ...]  # or points that it moves between during training


def model_name(model: Any) -> str | None:
    """The name that a config has for a model; None where it is an object with weights of its own."""
    if isinstance(model, str):
        return model
    if isinstance(model, Path):
        return str(model)
    folder = getattr(model, "folder", None)  # a Run
    if isinstance(folder, Path):
        return str(folder)
    if hasattr(model, "save_pretrained") and hasattr(model, "parameters"):
        return None
    if isinstance(model, Mapping):
        raise WhetError(f"model is the model itself, not its settings; give those as config={{'model': {dict(model)}}}")
    raise WhetError(
        f"model is {_kind(model)}; give a name, a path, a run, or a transformers model with tokenizer=its tokenizer"
    )


def check_tokenizer(model: Any, tokenizer: Any) -> None:
    """A model object needs its tokenizer; a model by name brings its own."""
    is_object = model is not None and model_name(model) is None
    if is_object and not hasattr(tokenizer, "save_pretrained"):
        tokenizer_text = "no tokenizer" if tokenizer is None else f"tokenizer={_kind(tokenizer)}"
        raise WhetError(f"model is {_kind(model)} and there is {tokenizer_text}; give its own: tokenizer=tokenizer")
    if tokenizer is not None and not is_object:
        raise WhetError("tokenizer has no effect: a model given by its name brings its own; drop it")


@contextmanager
def saved_start(config: Config, folder: Path, model: Any, tokenizer: Any) -> Iterator[Config]:
    """The config with the model's weights in the run folder: a resumed run starts from the same bytes."""
    if model is None or model_name(model) is not None:
        yield config
        return
    start_folder = folder / START
    try:
        save_object(model, tokenizer, start_folder)
        yield config.model_copy(update={"model": config.model.model_copy(update={"name": str(start_folder)})})
    except BaseException:
        if not (folder / CONFIG).exists():  # the run never began: its folder must not look used
            shutil.rmtree(start_folder, ignore_errors=True)
        raise


def save_object(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write a model object's weights and its tokenizer, without a progress bar of transformers'."""
    from whet.model.pretrained import quiet_transformers

    with quiet_transformers():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    for file in folder.glob("*.safetensors"):  # written for their owner alone, whatever the umask says
        file.chmod((folder / "config.json").stat().st_mode)


def data_source(data: Any) -> str | None:
    """The source that a config has for data, of several a mixture; None where the data is rows in memory."""
    if isinstance(data, list | tuple) and data and all(_names_file(source) for source in data):
        return mixed_source([str(source) for source in data])
    return str(data) if isinstance(data, str | Path) else None


def mixed_source(sources: Sequence[str]) -> str | None:
    """One source as it is, several as a mixture; None for none."""
    return MIX + ",".join(sources) if len(sources) > 1 else next(iter(sources), None)


def _names_file(source: Any) -> bool:
    """Whether an entry of a list is a file or a hub dataset, perhaps with its weight, and not a row."""
    text = str(source).rpartition("=")[0] or str(source)
    is_named = text.startswith(("hub:", *(f"{name}:" for name in BENCHMARKS))) or text.lower().endswith(FORMATS)
    return isinstance(source, Path) or (isinstance(source, str) and is_named)


def rows_in_memory(data: Any, most: int | None = None) -> list[Mapping[str, Any]] | None:
    """The rows of data that has no source of its own; None where there is no data, or a config can name it.

    A stream may never end: the first `most` rows are taken from it, and None where that is not known yet.
    """
    if data is None or data_source(data) is not None:
        return None
    if is_stream(data):
        return None if most is None else data_rows(list(islice(data, most)))
    return data_rows(data)


def is_stream(data: Any) -> bool:
    """Whether data has no length: a generator, or a dataset that is read while it is asked for."""
    return isinstance(data, Iterable) and not hasattr(data, "__len__")


def plain_settings(value: Any) -> Any:
    """Nested settings with runs and paths by their names, as a config has them."""
    if isinstance(value, Mapping):
        return {key: plain_settings(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_settings(item) for item in value]
    folder = getattr(value, "folder", value)  # of a Run
    return str(folder) if isinstance(folder, Path) else value


def data_rows(data: Any) -> list[Mapping[str, Any]]:
    """Rows as dictionaries: of a list of them, a DataFrame (pandas or polars), or a dataset of `datasets`."""
    if isinstance(data, Mapping):
        names = ", ".join(map(repr, data))
        raise WhetError(f"data has {names} side by side; give one split, as data[{next(iter(data), 'train')!r}]")
    if hasattr(data, "to_dicts"):  # polars
        rows = data.to_dicts()
    elif hasattr(data, "to_dict") and hasattr(data, "columns"):  # pandas
        rows = [
            {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in row.items()}
            for row in data.to_dict(orient="records")
        ]
    elif hasattr(data, "to_list"):  # datasets
        rows = data.to_list()
    elif isinstance(data, Iterable):
        rows = list(data)
    else:
        raise WhetError(f"data is {_kind(data)}; give a path, rows as dictionaries, a Dataset or a DataFrame")
    return [_plain(row) if isinstance(row, Mapping) else row for row in rows]


def _plain(value: Any) -> Any:
    """A value without numpy's types, which parquet columns contain and JSON cannot express."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return _plain(value.tolist()) if type(value).__module__ == "numpy" else value


def check_callbacks(callbacks: Any) -> None:
    """A callback has at least one method that a run calls: one without would watch in vain."""
    if not isinstance(callbacks, Sequence):
        raise WhetError(f"callbacks is {_kind(callbacks)}; give a list: callbacks=[...]")
    events = [name for name in vars(Callback) if not name.startswith("_")]
    for callback in callbacks:
        if isinstance(callback, type):
            raise WhetError(f"callback {callback.__name__} is a class; give an object of it: {callback.__name__}()")
        if not any(hasattr(callback, event) for event in events):
            raise WhetError(f"callback {_kind(callback)} has none of the methods a run calls: {', '.join(events)}")


def reward_parts(reward: Any) -> list[tuple[str, Weight, RewardLike]] | None:
    """(name, weight, reward) of each part; an empty name is the reward's own."""
    if reward is None:
        return None
    if isinstance(reward, Mapping):
        for name, pair in reward.items():
            if not isinstance(pair, list | tuple) or len(pair) != 2 or not isinstance(pair[1], int | float):
                raise WhetError(f"reward {name!r} is {pair!r}; give a pair, as in {{{name!r}: (reward, 1.0)}}")
        return [(name, float(weight), _named(part)) for name, (part, weight) in reward.items()]
    several: Sequence[Any] = reward if isinstance(reward, list | tuple) else [reward]
    named = [_named(part) for part in several]
    weighted = [named_weight(part) if isinstance(part, str) else (1.0, part) for part in named]
    return [("", weight, part) for weight, part in weighted]


def _named(reward: Any) -> RewardLike:
    """A path, and a run of a reward model, are found by their name."""
    folder = getattr(reward, "folder", None)
    if isinstance(reward, Path) or (isinstance(folder, Path) and not callable(reward)):
        return str(folder if isinstance(folder, Path) else reward)
    return reward  # type: ignore[no-any-return]


def reward_section(parts: Sequence[tuple[str, Weight, RewardLike]]) -> dict[str, Any]:
    """The parts as a config has them."""
    return {
        "parts": [
            {"reward": _path_of(reward, name), "weight": weight, **({} if rows == ALL else {"rows": rows})}
            for name, weight, part in parts
            for reward, rows in [_for_rows(part)]
        ]
    }


def _for_rows(reward: RewardLike) -> tuple[RewardLike, str]:
    """The reward's name; `exact_answer@math.jsonl` also has the source of a mixture whose rows it scores."""
    name, at, rows = reward.partition("@") if isinstance(reward, str) else ("", "", "")
    return (name, rows) if at else (reward, ALL)


def _path_of(reward: RewardLike, name: str) -> str:
    """How a resumed run finds the reward again: its name, or file.py:function."""
    if isinstance(reward, str):
        return reward
    code = getattr(reward, "__code__", None)
    function = getattr(reward, "__qualname__", "")
    # a file's function comes back under its own name: under another one the reports would change it in midrun
    if code is not None and function.isidentifier() and name in ("", function) and Path(code.co_filename).is_file():
        return f"{Path(code.co_filename).absolute()}:{function}"
    return f"{FROM_PYTHON}{name or function or getattr(reward, 'name', type(reward).__name__)}"


def environment_section(env: Any, tools: Any, agent: Any) -> dict[str, Any]:
    """Environment, tools and agent as a config has them; what is in no file is kept for this process."""
    if tools is not None and (isinstance(tools, str) or not isinstance(tools, Sequence)):
        raise WhetError(f"tools is {_kind(tools)}; give a list of names or functions: tools=[...]")
    chosen: dict[str, Any] = (
        {} if agent is None else {"agent": agent if isinstance(agent, str) else _path_of_code(agent)}
    )
    if callable(agent):
        from whet.envs.serve.programs import GIVEN as FUNCTIONS

        FUNCTIONS[chosen["agent"]] = agent
    named = [] if env is None else [("name", env)]
    named += [("tools", tool) for tool in tools or ()]
    for key, thing in named:
        name = thing if isinstance(thing, str) else _path_of_code(thing)
        if not isinstance(thing, str):
            from whet.envs.find import GIVEN

            GIVEN[name] = thing
        if key == "tools":
            chosen.setdefault("tools", []).append(name)
        else:
            chosen["name"] = name
    return {"env": chosen} if chosen else {}


def _path_of_code(thing: Any) -> str:
    """How a resumed run finds a class or function again: file.py:name, or the name that this process knows it by."""
    import inspect

    name = getattr(thing, "__qualname__", type(thing).__name__)
    try:
        file = inspect.getsourcefile(thing)
    except TypeError:  # an object, or something without source
        file = None
    if file is not None and name.isidentifier() and Path(file).is_file():
        return f"{Path(file).absolute()}:{name}"
    return f"{FROM_PYTHON}{name}"


def made_rewards(parts: Sequence[tuple[str, Weight, RewardLike]] | None) -> Any:
    """The parts as objects that score."""
    if parts is None:
        return None
    from whet.reward.call import as_reward
    from whet.reward.find import find_reward

    made = []
    for name, weight, part in parts:
        reward, rows = _for_rows(part)
        reward = find_reward(reward) if isinstance(reward, str) else reward
        made.append(RewardPart(as_reward(reward, name or None), weight, rows=rows))
    check_parts(made)
    return made


def _kind(value: Any) -> str:
    name = type(value).__name__
    return f"an {name}" if name[:1].lower() in "aeiou" else f"a {name}"
