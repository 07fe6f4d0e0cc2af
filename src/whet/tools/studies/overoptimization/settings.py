"""Everything that can be set in the over-optimisation study, with its default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from whet.settings.bounds import COLDEST, MOST_REPEATS, MOST_ROWS, MOST_SAMPLES, MOST_STEPS, MOST_TOKENS, MOST_WEIGHT
from whet.settings.layers import merged, validated
from whet.settings.sections import Section
from whet.training.config import PolicyConfig, config_class, resolved
from whet.types import WhetError

PROXY_ROWS = 32  # comparisons per training step of a proxy


class StudySettings(Section):
    """Frozen and typed; unknown keys are refused."""

    model: str = Field("whetstone", description="the start policy, also the trunk of gold and proxies")
    task: str = Field("countdown", description="built-in task whose questions are asked")
    difficulty: int = Field(3, ge=1, le=MOST_REPEATS, description="difficulty of the task")
    max_new_tokens: int = Field(48, ge=1, le=MOST_TOKENS, description="the generation budget of a completion")
    temperature: float = Field(
        1.0,
        ge=COLDEST,
        le=1000,
        description="sampling temperature of all completions; the KL is between policies at it",
    )
    seeds: int = Field(1, ge=1, le=MOST_REPEATS, description="each has its own comparisons, proxies and runs")
    restrained_seeds: int = Field(
        1, ge=0, le=MOST_REPEATS, description="how many of them also try KL penalties and ensembles"
    )
    sizes: tuple[Annotated[int, Field(ge=1, le=MOST_ROWS)], ...] = Field(
        (32, 256, 4096), min_length=1, max_length=4, description="comparisons of a proxy"
    )
    labels: Literal["hard", "sampled"] = Field(
        "hard", description="the better completion by gold, or drawn with probability sigmoid(gold difference)"
    )
    gold_steps: int = Field(60, ge=1, le=MOST_STEPS, description="training steps of gold's model")
    proxy_steps: int = Field(128, ge=1, le=MOST_STEPS, description="steps of every proxy, so that only the data differ")
    pool_prompts: int = Field(48, ge=2, le=MOST_SAMPLES, description="questions of best-of-n")
    pool_completions: int = Field(128, ge=4, le=MOST_SAMPLES, description="completions to each: the largest n")
    # the cheapest method whose reward is what it is given, unscaled
    method: str = Field("rloo", description="a method of `whet algorithms` that learns from the proxy")
    steps: int = Field(80, ge=8, le=MOST_STEPS, description="steps of every learning run")
    learning_rate: float = Field(8e-5, gt=0, le=1000, description="learning rate of every learning run")
    prompts_per_step: int = Field(16, ge=1, le=MOST_SAMPLES, description="questions per step")
    group_size: int = Field(8, ge=2, le=MOST_SAMPLES, description="completions to each")
    eval_every: int = Field(5, ge=1, le=MOST_STEPS, description="steps whose completions make one point of a curve")
    studied_size: int = Field(
        0, ge=0, le=MOST_ROWS, description="one of `sizes`, for KL and ensembles; 0 is the smallest"
    )
    betas: tuple[Annotated[float, Field(ge=0, le=MOST_WEIGHT)], ...] = Field(
        (0.02, 0.1), max_length=3, description="KL penalties to try"
    )
    members: int = Field(
        4, ge=2, le=MOST_REPEATS, description="proxies of an ensemble, trained from other seeds on the same data"
    )
    ensembles: tuple[Literal["mean", "worst", "mean_minus_variance"], ...] = Field(
        ("mean", "worst", "mean_minus_variance"), description="ways of agreeing to try"
    )
    variance_penalty: float = Field(
        0.1, ge=1e-6, le=MOST_WEIGHT, description="weight of mean_minus_variance when learning"
    )
    variance_penalty_best_of: float = Field(
        0.5, ge=1e-6, le=MOST_WEIGHT, description="weight of mean_minus_variance in best-of-n"
    )
    least_d_best_of: float = Field(
        0.3, ge=0, le=MOST_WEIGHT, description="the law of best-of-n is fitted beyond this distance"
    )
    least_d: float = Field(1.0, ge=0, le=MOST_WEIGHT, description="the law of learning is fitted beyond this distance")

    @property
    def size(self) -> int:
        """The number of comparisons behind the proxies of the KL and ensemble runs."""
        return self.studied_size or self.sizes[0]


QUICK: Mapping[str, Any] = {
    "seeds": 1,
    "sizes": (32, 1024),
    "gold_steps": 40,
    "proxy_steps": 40,
    "pool_prompts": 32,
    "pool_completions": 64,
    "steps": 40,
    "learning_rate": 1.6e-4,
    "betas": (0.1,),
    "members": 3,
    "ensembles": ("mean_minus_variance",),
}


def study_settings(*layers: Mapping[str, Any]) -> StudySettings:
    """Later layers win; unknown keys and bad values are one-line errors."""
    values: dict[str, Any] = {}
    for layer in layers:
        values = merged(values, layer)
    values = {
        key: [value] if key in ("sizes", "betas", "ensembles") and not isinstance(value, list | tuple) else value
        for key, value in values.items()
    }
    settings = validated(StudySettings, values)
    _check(settings)
    return settings


def _check(settings: StudySettings) -> None:
    """What could not start is refused before the first stage."""
    from whet.data.tasks import TASKS
    from whet.training.assembly.rl import build_objective

    seen = settings.proxy_steps * PROXY_ROWS
    sizes = list(settings.sizes)
    complaints = (
        (settings.task in TASKS, f"task is {settings.task!r}; there are {', '.join(TASKS)}"),
        (sizes == sorted(set(sizes)) and sizes[0] > 1, f"sizes is {sizes}; give ascending ones, such as 32,256,4096"),
        (
            sizes[-1] <= seen,
            f"sizes has {sizes[-1]}, but proxy_steps x {PROXY_ROWS} rows are only {seen}; raise proxy_steps",
        ),
        (settings.size in sizes, f"studied_size is {settings.size}, which is none of the sizes {sizes}"),
        (
            min(settings.betas, default=1.0) > 0,
            "betas holds a 0; the run without a KL penalty is there anyway, drop it",
        ),
        (
            config_class(settings.method) is PolicyConfig,
            f"method is {settings.method!r}, which learns from no reward; give a method of `whet algorithms` that does",
        ),
    )
    for is_fine, complaint in complaints:
        if not is_fine:
            raise WhetError(complaint)
    for beta in (0.0, *settings.betas):
        config = resolved(settings.method, learning_config(settings, 0, beta, {}))
        assert isinstance(config, PolicyConfig)
        build_objective(config)


def learning_config(settings: StudySettings, seed: int, beta: float, reward: Mapping[str, Any]) -> dict[str, Any]:
    """A run on the proxy. The KL penalty is in the reward, where the scale of both is known."""
    return {
        "seed": seed,
        "steps": settings.steps,
        "model": {"name": settings.model},
        "data": {"source": f"task:{settings.task}", "difficulty": [settings.difficulty]},
        "sampling": {"max_new_tokens": settings.max_new_tokens, "temperature": settings.temperature},
        "objective": {"kl": {"kind": "k1_reward", "beta": beta} if beta else "none"},
        "optimizer": {"learning_rate": settings.learning_rate},
        "batch": {"prompts_per_step": settings.prompts_per_step, "group_size": settings.group_size},
        "eval": {"prompts": 0, "every": 0},
        "report": {"review_every": 0, "save_every": 20, "keep_checkpoints": 1},
        **({"reward": dict(reward)} if reward else {}),
    }


def settings_text(settings: StudySettings) -> str:
    """One line per setting: its value, and what it is."""
    values = settings.model_dump(mode="json")
    lines = {name: f"{name} = {_toml(value)}" for name, value in values.items()}
    width = max(map(len, lines.values()))
    fields = StudySettings.model_fields
    return "\n".join(f"{lines[name]:{width}}  # {fields[name].description}" for name in lines)


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else f"{value}"
