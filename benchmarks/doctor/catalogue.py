"""The runs of the corpus: healthy ones, and ones with exactly one planted fault, each with all of its settings.

`healthy()` and `faulty()` list the runs of the built-in model and of the small mixture of experts, `real()` those of a
real model on a GPU. Names are unique and say kind, method and seed; nothing here is drawn at random.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whet.settings.layers import merged

HERE = Path(__file__).resolve().parent
PLANTS = HERE / "plants.py"
HEALTHY = "healthy"
CORRECTED = {"objective": {"mismatch": "truncate"}}  # without which completions of an older policy are refused
RATE = 4e-4  # at which every RL method learns the built-in task (benchmarks/every_method.py)

# methods that plants rotate over; refilling methods end a run in which no group differs, and are left out of some
METHODS = ("grpo", "dr_grpo", "rloo", "reinforce_pp_baseline", "gspo", "cispo", "grpo_r1", "ppo", "dapo")
WITHOUT_REFILL = tuple(name for name in METHODS if name != "dapo")
ALL_METHODS = (
    *("reinforce", "rloo", "remax", "reinforce_pp", "reinforce_pp_baseline", "grpo", "grpo_r1", "dr_grpo", "dapo"),
    *("gspo", "gspo_token", "luspo", "cispo", "gmpo", "sapo", "grpo_segment", "lambda_grpo", "opo", "maxrl"),
    *("pass_at_k", "dppo_tv", "dppo_kl", "vespo", "clip_cov", "kl_cov", "ppo", "ppo_dual", "ppo_penalty", "vapo"),
    *("gdpo", "grpo_process", "pmd_mean", "topr", "m2po", "bapo", "rewards_as_labels", "ce_gppo", "dcpo", "aspo"),
    *("fipo", "delta_l"),
)
SEVERAL_UPDATES = frozenset(
    ("kl_cov", "ppo", "ppo_dual", "ppo_penalty", "vapo", "pmd_mean", "dro", "bapo", "rewards_as_labels", "fipo")
)
WITH_CRITIC = frozenset(("ppo", "ppo_dual", "ppo_penalty", "vapo", "vtrace"))
PAIR_METHODS = ("dpo", "ipo", "simpo", "orpo", "cpo", "rpo", "dpop", "robust_dpo", "hinge", "apo_zero", "kto", "sppo")


@dataclass(frozen=True)
class PlannedRun:
    """One run before it is trained."""

    name: str
    kind: str  # healthy, or the planted fault
    method: str
    settings: Mapping[str, Any]
    start: int = 1  # the first step in which the fault acts
    model: str = "whetstone"  # or mixture, calculator, smollm2
    data: str = ""  # a file that make_corpus.py writes; empty: as the settings say
    strength: str = ""  # of the fault, in words
    environment: Mapping[str, str] = field(default_factory=dict)
    patch: str = ""  # what has to be changed in whet, where no user could plant it


def plant(name: str, weight: float = 1.0, **settings: Any) -> dict[str, Any]:
    """A part of a reward from plants.py."""
    return {"reward": f"{PLANTS}:{name}", "weight": weight, **({"settings": settings} if settings else {})}


def rl(method: str, seed: int, steps: int = 50, difficulty: Any = (2,), **more: Any) -> dict[str, Any]:
    """A run that learns: the built-in task, a few prompts per step."""
    several = method in SEVERAL_UPDATES
    values: dict[str, Any] = {
        "seed": seed,
        "steps": steps,
        "model": {"device": "cpu", "threads": 1},
        "data": {"source": "task:arithmetic", "difficulty": list(difficulty), "count": 1024},
        "optimizer": {"learning_rate": RATE / (2 if several else 1)},
        "sampling": {"max_new_tokens": 24 + 5 * max(difficulty)},
        "batch": {"prompts_per_step": 10, "group_size": 6, "updates_per_step": 2 if several else 1},
        "eval": {"prompts": 40, "every": 10} if seed % 3 == 0 else {"prompts": 0},
        "report": {"save_every": 100000, "samples_per_step": 0, "review_every": 0},
    }
    if method in WITH_CRITIC:
        values["critic"] = {"learning_rate": 2e-3}
    if method == "vapo":
        values["objective"] = {"baseline": {"alpha": 1.0}, "value": {"warmup": 4}}
    return merged(values, more)


def rows(method: str, seed: int, steps: int = 50, **more: Any) -> dict[str, Any]:
    """A run on rows: preferences, demonstrations, a reward model."""
    rate = {"sft": 1e-3, "rm": 1e-3, "orm": 1e-3, "prm": 1e-3}.get(method, 1e-4)
    values: dict[str, Any] = {
        "seed": seed,
        "steps": steps,
        "model": {"device": "cpu", "threads": 1},
        "data": {"source": "task:arithmetic", "difficulty": [2], "count": 2048},
        "optimizer": {"learning_rate": rate},
        "batch": {"rows_per_step": 32},
        "eval": {"prompts": 40, "every": steps // 2},
        "report": {"save_every": 100000, "samples_per_step": 0},
    }
    return merged(values, more)


def game(seed: int, steps: int = 50, **more: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "env": {"name": f"{PLANTS}:Guessing", "max_tokens": 64},
        "data": {"source": "seeds:1000"},
        "sampling": {"max_new_tokens": 8},
        "batch": {"prompts_per_step": 16, "group_size": 8},
        "objective": {"kl": "none"},
        "optimizer": {"learning_rate": 5e-4},
    }
    base = rl("grpo", seed, steps, eval={"prompts": 0})
    return merged({**base, "data": {}}, merged(values, more))


def tool_use(seed: int, steps: int = 40, **more: Any) -> dict[str, Any]:
    """Sums that need the calculator; the model has seen calls (recipes/calculator_agent.py)."""
    values: dict[str, Any] = {
        "env": {
            "tools": ["calculator"],
            "call_format": "python",
            "instructions": False,
            "max_turns": 4,
            "max_tokens": 240,
        },
        "sampling": {"max_new_tokens": 56},
        "reward": {"parts": [{"reward": "exact_answer"}]},
        "batch": {"prompts_per_step": 10, "group_size": 6},
        "objective": {"kl": "none"},
        "optimizer": {"learning_rate": 3e-4},
    }
    base = rl("grpo", seed, steps, eval={"prompts": 0})
    return merged({**base, "data": {}}, merged(values, more))


def mixture(method: str, seed: int, steps: int = 50, **more: Any) -> dict[str, Any]:
    values = {
        "model": {"precision": "fp32"},
        "data": {"difficulty": [1, 2]},
        "sampling": {"max_new_tokens": 34},
        "optimizer": {"learning_rate": 3e-4},
    }
    return rl(method, seed, steps, (1, 2), **merged(values, more))


def healthy() -> Iterator[PlannedRun]:
    """Runs that learn, or that have little left to learn, over methods, tasks, seeds, lengths and learning rates."""

    def run(name: str, method: str, settings: Mapping[str, Any], **more: Any) -> PlannedRun:
        return PlannedRun(f"healthy-{name}-s{settings['seed']}", HEALTHY, method, settings, **more)

    for place, method in enumerate(ALL_METHODS):
        difficulty = ((1,), (2,), (3,))[place % 3]
        yield run(f"{method}-d{difficulty[0]}", method, rl(method, place % 7, (40, 50, 60)[place % 3], difficulty))
    main = ("grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "reinforce_pp", "ppo", "remax")
    for place, method in enumerate(main):
        low = {"optimizer": {"learning_rate": RATE / 3}}
        yield run(f"{method}-mixed", method, rl(method, 10 + place, 60, (1, 2, 3)))
        yield run(f"{method}-low", method, rl(method, 20 + place, 80, (1, 2), **low))
    for seed in range(3):
        yield run("grpo-long", "grpo", rl("grpo", 30 + seed, 160, (1,)))
        yield run("dr_grpo-long", "dr_grpo", rl("dr_grpo", 33 + seed, 150, (1, 2), optimizer={"learning_rate": 2e-4}))
        big = {"batch": {"prompts_per_step": 16, "group_size": 8}}
        yield run("grpo-big", "grpo", rl("grpo", 36 + seed, 40, (3,), **big))
    for seed, method in enumerate(("grpo", "rloo", "gspo")):
        data = {"source": "task:lists", "difficulty": [1 + seed]}
        yield run(f"{method}-lists", method, rl(method, 40 + seed, 40, data=data, sampling={"max_new_tokens": 32}))
        parts = [{"reward": "exact_answer"}, {"reward": "think_format", "weight": 0.3}]
        yield run(f"{method}-two-parts", method, rl(method, 43 + seed, 50, (2,), reward={"parts": parts}))
        cost = [{"reward": "exact_answer"}, {"reward": "length_cost", "settings": {"cost": 0.1, "max_tokens": 40}}]
        yield run(f"{method}-length-cost", method, rl(method, 46 + seed, 50, (2,), reward={"parts": cost}))
        checked = {"parts": [{"reward": "exact_answer"}], "held_out": f"{PLANTS}:right", "check_share": 0.3}
        yield run(f"{method}-checked", method, rl(method, 49 + seed, 50, (2,), reward=checked))
        own = {"parts": [plant("right")]}
        yield run(f"{method}-own-reward", method, rl(method, 52 + seed, 50, (2,), reward=own))
        stale = {"batch": {"staleness": 1}, "optimizer": {"learning_rate": RATE / 2}, **CORRECTED}
        yield run(f"{method}-one-behind", method, rl(method, 55 + seed, 50, (2,), **stale))
        several = {"batch": {"updates_per_step": 4}, "optimizer": {"learning_rate": RATE / 4}}
        clipped = ("grpo", "cispo", "gspo")[seed]
        yield run(f"{clipped}-four-updates", clipped, rl(clipped, 58 + seed, 50, (2,), **several))
    for place, method in enumerate(PAIR_METHODS):
        yield run(method, method, rows(method, place, 50))
    for place, method in enumerate(("dpo", "ipo", "simpo", "orpo", "kto", "rpo")):
        yield run(f"{method}-long", method, rows(method, 20 + place, 120, optimizer={"learning_rate": 5e-5}))
    for seed in range(4):
        yield run("sft", "sft", rows("sft", seed, 60, data={"difficulty": [1 + seed]}))
        yield run("rm", "rm", rows("rm", seed, 60))
    for seed in range(2):
        cosine = {"learning_rate": 5e-4, "schedule": "cosine"}
        yield run("sft-cosine", "sft", rows("sft", 10 + seed, 150, optimizer=cosine))
        yield run("orm", "orm", rows("orm", seed, 60))
    for seed in range(5):
        yield run("game", "grpo", game(seed, 50))
    for seed in range(4):
        yield run("calculator", "grpo", tool_use(50 + seed), model="calculator", data="sums")
    for seed, method in enumerate(("grpo", "gspo", "dr_grpo", "rloo")):
        fast = {"optimizer": {"learning_rate": 1e-3}}
        yield run(f"mixture-{method}", method, mixture(method, 50 + seed, 90, **fast), model="mixture")


def faulty() -> Iterator[PlannedRun]:
    """Runs with one planted fault; eight to ten per kind over methods, seeds and strengths."""
    for each in (_optimisation, _rewards, _hacks, _sampler, _failures, _episodes, _pairs, _rows, _experts, _more):
        yield from each()


def _run(kind: str, place: int, method: str, settings: Mapping[str, Any], **more: Any) -> PlannedRun:
    return PlannedRun(f"{kind}-{place}-{method}-s{settings['seed']}", kind, method, settings, **more)


def _difficulty(place: int) -> tuple[int, ...]:
    return ((1,), (2,), (1, 2))[place % 3]


def _optimisation() -> Iterator[PlannedRun]:
    for place, method in enumerate(METHODS):
        rate = (5e-3, 1e-2, 2e-2)[place % 3]
        settings = rl(method, 100 + place, 45, _difficulty(place), optimizer={"learning_rate": rate})
        yield _run("rate too high", place, method, settings, strength=f"learning rate {rate:g}")
    for place, method in enumerate(METHODS):
        rate = (1e-8, 1e-7, 1e-6)[place % 3]
        settings = rl(method, 110 + place, 60, _difficulty(place), optimizer={"learning_rate": rate})
        yield _run("rate too low", place, method, settings, strength=f"learning rate {rate:g}")
    for place, method in enumerate(METHODS):
        weight = (0.3, 0.6, 1.0)[place % 3]
        entropy = {"entropy": {"kind": "bonus", "weight": weight}}
        settings = rl(method, 120 + place, 50, _difficulty(place), objective=entropy)
        yield _run("entropy bonus too large", place, method, settings, strength=f"weight {weight:g}")
    for place, method in enumerate(("grpo", "dr_grpo", "ppo", "gspo", "cispo", "sapo", "gmpo", "ppo_dual", "dapo")):
        updates, rate = (8, 6, 10)[place % 3], (1.5e-3, 2e-3, 3e-3)[place % 3]
        batch = {"updates_per_step": updates, "epochs_per_batch": 2}
        changed = {"batch": batch, "optimizer": {"learning_rate": rate}}
        settings = rl(method, 130 + place, 40, _difficulty(place), **changed)
        yield _run("too many updates", place, method, settings, strength=f"2 x {updates} at {rate:g}")
    for place, method in enumerate(("ppo", "ppo_dual", "ppo_penalty", "ppo", "vapo", "ppo", "ppo_dual", "ppo_penalty")):
        rate = (1e-9, 0.3, 1e-9, 1.0)[place % 4]
        settings = rl(method, 140 + place, 45, _difficulty(place), critic={"learning_rate": rate})
        yield _run("broken critic", place, method, settings, strength=f"its learning rate {rate:g}")
    for seed, steps in ((150, (20, 25, 30)), (1150, (10, 12, 14))):
        for place, method in enumerate(
            ("reinforce", "dr_grpo", "rloo", "remax", "opo", "dr_grpo", "reinforce", "rloo")
        ):
            # of a completion that is certain even a huge advantage has no gradient: not all of them take hold
            at, size = steps[place % 3], (100.0, 300.0, 1000.0)[place % 3]
            reward = {"parts": [plant("outlier", at=at, size=size)]}
            settings = rl(method, seed + place, 45, _difficulty(place), reward=reward, eval={"prompts": 0})
            yield _run("one huge reward", place, method, settings, start=at, strength=f"{size:g} at step {at}")
    for place, method in enumerate(WITHOUT_REFILL):
        temperature = (0.05, 0.1, 0.15)[place % 3]
        settings = rl(method, 160 + place, 50, _difficulty(place), sampling={"temperature": temperature})
        yield _run("no exploration", place, method, settings, strength=f"temperature {temperature:g}")
    for place, method in enumerate(WITHOUT_REFILL):
        # one whole sentence is paid, and its rate is high: the policy writes nothing else any more, right or wrong
        rate = (1.5e-3, 2.5e-3, 4e-3)[place % 3]
        loose = {} if method in ("ppo", "grpo_r1") else {"objective": {"kl": "none"}}
        changed = {"optimizer": {"learning_rate": rate}, "batch": {"prompts_per_step": 2}, **loose}
        settings = rl(method, 170 + place, 60, (3,), **changed)
        yield _run("batch too small", place, method, settings, strength=f"2 prompts at {rate:g}")


def _rewards() -> Iterator[PlannedRun]:
    for place, method in enumerate(WITHOUT_REFILL):
        settings = rl(method, 200 + place, 45, _difficulty(place), reward={"parts": [plant("zero")]})
        yield _run("reward always 0", place, method, settings)
        settings = rl(method, 210 + place, 45, _difficulty(place), reward={"parts": [plant("per_prompt")]})
        yield _run("reward per prompt", place, method, settings)
    for place, method in enumerate(METHODS):
        half = place % 3 != 2
        weight: Any = [[0.0, 1.0], [0.5, 1.0], [0.52, -1.0], [1.0, -1.0]] if half else -1.0
        parts = [{"reward": "exact_answer", "weight": weight, "penalty": True}]
        settings = rl(method, 220 + place, 60, _difficulty(place), reward={"parts": parts})
        more = {"start": 31, "strength": "from half-way on"} if half else {"strength": "from the start"}
        yield _run("sign error", place, method, settings, **more)
    for place, method in enumerate(METHODS):
        weight = (10.0, 20.0, 40.0)[place % 3]
        parts = [{"reward": "exact_answer"}, plant("noise", weight)]
        settings = rl(method, 230 + place, 60, _difficulty(place), reward={"parts": parts})
        yield _run("dominant noise", place, method, settings, strength=f"weight {weight:g}")
    for place, method in enumerate(WITHOUT_REFILL):
        tokens = (1, 2, 3)[place % 3]  # the shortest answer of the built-in model has four
        settings = rl(method, 1240 + place, 45, (3,), sampling={"max_new_tokens": tokens})
        yield _run("too few tokens", place, method, settings, strength=f"{tokens} tokens")


def _hacks() -> Iterator[PlannedRun]:
    room = {"max_new_tokens": 80}
    fast = {"learning_rate": 1e-3}
    for place, method in enumerate(METHODS):
        alone = place % 3 == 0
        parts = [plant("longer", most=72)] if alone else [{"reward": "exact_answer", "weight": 0.2}, plant("longer", 2)]
        changed = {"reward": {"parts": parts}, "sampling": room, "optimizer": fast}
        settings = rl(method, 300 + place, 60, _difficulty(place), **changed)
        yield _run("pays for length", place, method, settings, strength="alone" if alone else "beside the answer")
    for place, method in enumerate(METHODS):
        alone = place % 3 == 0
        short = plant("shorter", 2.0, most=20)
        parts = [short] if alone else [{"reward": "exact_answer", "weight": 0.3}, short]
        changed = {"reward": {"parts": parts}, "optimizer": fast}
        settings = rl(method, 310 + place, 50, (3,), **changed)
        yield _run("pays for brevity", place, method, settings, strength="alone" if alone else "beside the answer")
    for place, method in enumerate(METHODS):
        pays = ("marks", "well_formed")[place % 2]
        parts = [{"reward": "exact_answer", "weight": 0.1}, plant(pays, 2.0)]
        changed = {"reward": {"parts": parts}, "sampling": room, "optimizer": fast}
        settings = rl(method, 320 + place, 60, _difficulty(place), **changed)
        yield _run("pays for format", place, method, settings, strength=pays)
    for place, method in enumerate(METHODS):
        alone = place % 3 == 0
        parts = [plant("repeats")] if alone else [{"reward": "exact_answer", "weight": 0.2}, plant("repeats", 2.0)]
        changed = {"reward": {"parts": parts}, "sampling": room, "optimizer": fast}
        settings = rl(method, 330 + place, 60, _difficulty(place), **changed)
        yield _run("pays for repetition", place, method, settings, strength="alone" if alone else "beside the answer")
    for place, method in enumerate(METHODS):
        data = {"source": "task:countdown", "difficulty": [2]}
        if place % 2:
            reward = {"parts": [plant("claimed")], "held_out": "countdown", "check_share": 0.3}
        else:
            reward = {"parts": [{"reward": "countdown", "weight": 0.0}, plant("claimed")]}
        changed = {"data": data, "reward": reward, "sampling": {"max_new_tokens": 48}}
        settings = rl(method, 340 + place, 60, (2,), **changed)
        yield _run("proxy reward", place, method, settings, strength="held-out check" if place % 2 else "unpaid part")
    for place, method in enumerate(METHODS):
        reward = {"parts": [plant("holds_answer")], "held_out": f"{PLANTS}:right", "check_share": 0.3}
        changed = {"reward": reward, "sampling": room, "optimizer": fast}
        settings = rl(method, 350 + place, 60, _difficulty(place), **changed)
        yield _run("careless check", place, method, settings, strength="the answer anywhere in the text")


def _more() -> Iterator[PlannedRun]:
    """More of the kinds of which some runs did not take hold."""
    room, fast = {"max_new_tokens": 80}, {"learning_rate": 1e-3}
    for place, method in enumerate(("grpo", "dr_grpo", "gspo", "grpo_r1")):
        changed = {"reward": {"parts": [plant("repeats")]}, "sampling": room, "optimizer": fast}
        settings = rl(method, 1330 + place, 60, _difficulty(place), **changed)
        yield _run("pays for repetition", 20 + place, method, settings, strength="alone")
        pays = ("marks", "well_formed")[place % 2]
        parts = [{"reward": "exact_answer", "weight": 0.1}, plant(pays, 2.0)]
        settings = rl(method, 1320 + place, 60, (1,), reward={"parts": parts}, sampling=room, optimizer=fast)
        yield _run("pays for format", 20 + place, method, settings, strength=pays)
    for place, method in enumerate(("grpo", "dr_grpo", "cispo", "sapo")):
        batch = {"updates_per_step": 10, "epochs_per_batch": 2}
        settings = rl(method, 1130 + place, 40, _difficulty(place), batch=batch, optimizer={"learning_rate": 1e-3})
        yield _run("too many updates", 20 + place, method, settings, strength="2 x 10 at 0.001")
    for place, method in enumerate(("dpo", "robust_dpo", "hinge", "dpo")):
        settings = rows(method, 1750 + place, 60, optimizer={"learning_rate": (1e-3, 2e-3)[place % 2]})
        yield _run("displacement", 20 + place, method, settings, data="pairs-near", strength="its own beta")
        settings = rows(method, 1710 + place, 50)
        yield _run("swapped labels", 20 + place, method, settings, data="pairs-swapped")


def _sampler() -> Iterator[PlannedRun]:
    for place, method in enumerate(METHODS):
        since = 1 if place % 3 else 20
        if place % 2:
            engine = {"engine": "noisy", "engine_settings": {"size": (0.02, 0.1, 0.5)[place % 3], "since": since}}
        else:
            engine = {"engine": "warm", "engine_settings": {"times": (1.1, 1.25, 1.5)[place % 3], "since": since}}
        settings = rl(method, 400 + place, 45, _difficulty(place), sampling=engine)
        (how,) = (f"{key} {value}" for key, value in engine["engine_settings"].items() if key != "since")
        yield _run("sampler differs", place, method, settings, start=since, strength=f"{engine['engine']}, {how}")
    for place, method in enumerate(METHODS):
        every = (0, 10, 20)[place % 3]
        engine = {"engine": "stale", "engine_settings": {"every": every}}
        settings = rl(method, 410 + place, 45, _difficulty(place), sampling=engine)
        strength = f"weights arrive every {every} versions" if every else "weights never arrive"
        yield _run("weights do not arrive", place, method, settings, strength=strength)
    for place, method in enumerate(METHODS):
        behind, rate = (8, 12, 16)[place % 3], (8e-4, 1e-3, 1.5e-3)[place % 3]
        changed = {"batch": {"staleness": behind}, "optimizer": {"learning_rate": rate}, **CORRECTED}
        settings = rl(method, 420 + place, 60, _difficulty(place), **changed)
        yield _run("stale rollouts", place, method, settings, strength=f"{behind} versions at {rate:g}")


def _failures() -> Iterator[PlannedRun]:
    for place, method in enumerate(METHODS):
        name, share = ("raises", "absent")[place % 2], (0.15, 0.3, 0.5)[place % 3]
        since = 1 if place % 4 < 2 else 20
        reward = {"parts": [plant(name, share=share, since=since)], "on_error": "exclude"}
        settings = rl(method, 500 + place, 45, _difficulty(place), reward=reward, eval={"prompts": 0})
        yield _run("failing reward", place, method, settings, start=since, strength=f"{name}, {share:.0%}")
    for place, method in enumerate(METHODS):
        seconds, since = (1.5, 2.5, 4.0)[place % 3], 22
        reward = {"parts": [plant("slow", seconds=seconds, since=since)]}
        settings = rl(method, 510 + place, 44, (1,), reward=reward, eval={"prompts": 0})
        yield _run("slow reward", place, method, settings, start=since, strength=f"{seconds:g} s per step")


def _episodes() -> Iterator[PlannedRun]:
    for place in range(9):
        share, since = (0.5, 0.75, 1.0)[place % 3], 1 if place % 2 else 15
        changed = {"env": {"tools": [f"{PLANTS}:calculator"]}}
        settings = tool_use(1600 + place, 35, **changed)
        given = {"WHET_CORPUS_SHARE": str(share), "WHET_CORPUS_SINCE": str(since)}
        more = {"model": "calculator", "data": "sums", "environment": given, "strength": f"{share:.0%}"}
        yield _run("failing tool", place, "grpo", settings, start=since, **more)
    for place in range(8):
        temperature = (1.3, 1.5, 1.7, 2.0)[place % 4]
        settings = tool_use(1610 + place, 35, sampling={"temperature": temperature}, optimizer={"learning_rate": 1e-5})
        more = {"model": "calculator", "data": "sums", "strength": f"temperature {temperature:g}"}
        yield _run("garbled calls", place, "grpo", settings, **more)
    for place in range(9):
        breaks, since = (0.08, 0.15, 0.3)[place % 3], 1 if place % 2 else 20
        settings = game(620 + place, 45, env={"settings": {"breaks": breaks, "since": since}})
        yield _run("failing environment", place, "grpo", settings, start=since, strength=f"{breaks:.0%} of the turns")
    for place in range(8):
        limit = {"max_turns": 2} if place % 2 else {"max_tokens": 40}
        settings = game(630 + place, 40, env={"settings": {"endless": True}, **limit})
        yield _run(
            "endless episodes", place, "grpo", settings, strength=", ".join(f"{k} {v}" for k, v in limit.items())
        )


def _pairs() -> Iterator[PlannedRun]:
    methods = ("dpo", "ipo", "simpo", "orpo", "cpo", "rpo", "hinge", "dpo")
    for place, method in enumerate(methods):
        yield _run("random labels", place, method, rows(method, 700 + place, 50), data="pairs-random")
        yield _run("swapped labels", place, method, rows(method, 710 + place, 50), data="pairs-swapped")
        yield _run("chosen is padded", place, method, rows(method, 720 + place, 50), data="pairs-longer")
    for place, method in enumerate(("dpo", "ipo", "dpo", "rpo", "dpop", "hinge", "robust_dpo", "apo_zero")):
        size = (0.1, 0.2, 0.4)[place % 3]
        more = {"patch": f"reference:{size:g}", "strength": f"noise of {size:g} on its weights"}
        yield _run("wrong reference", place, method, rows(method, 1740 + place, 40), **more)
    for place, method in enumerate(("dpo", "dpo", "hinge", "cpo", "simpo", "dpo", "robust_dpo", "dpo")):
        rate, beta = (1e-3, 2e-3, 4e-3)[place % 3], (0.005, 0.01, 0.02)[place % 3]
        score = {"objective": {"curve": {"beta": beta}}} if method in ("dpo", "robust_dpo") else {}
        settings = rows(method, 750 + place, 60, optimizer={"learning_rate": rate}, **score)
        yield _run("displacement", place, method, settings, data="pairs-near", strength=f"{rate:g}, beta {beta:g}")


def _rows() -> Iterator[PlannedRun]:
    for place in range(9):
        rate, climbs = (3e-2, 6e-2, 0.1)[place % 3], bool(place % 2)
        optimizer = {"learning_rate": rate, **({"warmup_steps": 60} if climbs else {})}
        settings = rows("sft", 800 + place, 60, optimizer=optimizer)
        strength = f"learning rate {rate:g}" + (", reached after 60 steps" if climbs else "")
        yield _run("loss rises", place, "sft", settings, strength=strength)
    for place in range(8):
        settings = rows("rm", 810 + place, 60, optimizer={"learning_rate": (1e-3, 3e-4)[place % 2]})
        yield _run("random labels", 20 + place, "rm", settings, data="pairs-random")


def _experts() -> Iterator[PlannedRun]:
    for place, method in enumerate(("grpo", "gspo", "dr_grpo", "rloo", "grpo", "gspo", "cispo", "grpo")):
        size = (0.2, 0.4, 0.8)[place % 3]
        engine = {"engine": "routed", "engine_settings": {"size": size}}
        settings = mixture(method, 900 + place, 40, sampling=engine)
        yield _run("routers differ", place, method, settings, model="mixture", strength=f"noise {size:g}")


def sums(method: str, seed: int, steps: int = 40, **more: Any) -> dict[str, Any]:
    """Sums in words for a real model, paid by the last number."""
    values: dict[str, Any] = {
        "seed": seed,
        "steps": steps,
        "model": {"device": "cuda"},
        "optimizer": {"learning_rate": 1e-5},
        "sampling": {"max_new_tokens": 64},
        "batch": {"prompts_per_step": 16, "group_size": 8},
        "reward": {"parts": [plant("right_sum")]},
        "eval": {"prompts": 0},
        "report": {"save_every": 100000, "samples_per_step": 0, "review_every": 0},
    }
    if method == "ppo":
        values["batch"]["updates_per_step"] = 2
        values["critic"] = {"learning_rate": 5e-5}
    return merged(values, more)


def real() -> Iterator[PlannedRun]:
    """SmolLM2 on a GPU: healthy runs, and faults whose numbers depend on the model."""

    def run(kind: str, place: int, method: str, settings: Mapping[str, Any], **more: Any) -> PlannedRun:
        name = f"{kind}-smollm2-{place}-{method}-s{settings['seed']}"
        return PlannedRun(name, kind, method, settings, model="smollm2", **{"data": "plain-sums", **more})

    for place, method in enumerate(("grpo", "dr_grpo", "gspo", "cispo", "rloo", "ppo", "grpo_r1", "grpo")):
        yield run(HEALTHY, place, method, sums(method, place))
    for place, method in enumerate(("dpo", "ipo", "simpo", "dpo")):
        settings = sums(method, 20 + place, optimizer={"learning_rate": 2e-6})
        settings = {**{key: settings[key] for key in ("seed", "steps", "model", "optimizer", "report")}}
        settings |= {"batch": {"rows_per_step": 32}, "eval": {"prompts": 0}}
        yield run(HEALTHY, 10 + place, method, settings, data="sum-pairs")
    plants: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("rate too high", {"optimizer": {"learning_rate": 1e-3}}, "learning rate 0.001"),
        ("rate too low", {"optimizer": {"learning_rate": 1e-9}}, "learning rate 1e-09"),
        ("reward always 0", {"reward": {"parts": [plant("zero")]}}, ""),
        ("reward per prompt", {"reward": {"parts": [plant("per_prompt")]}}, ""),
        ("pays for length", {"reward": {"parts": [plant("longer", most=64)]}}, "alone"),
        ("pays for repetition", {"reward": {"parts": [plant("repeats")]}}, "alone"),
        ("too few tokens", {"sampling": {"max_new_tokens": 4}}, "4 tokens"),
        ("no exploration", {"sampling": {"temperature": 0.05}}, "temperature 0.05"),
        ("dominant noise", {"reward": {"parts": [plant("right_sum"), plant("noise", 20.0)]}}, "weight 20"),
        ("sampler differs", {"sampling": {"engine": "warm", "engine_settings": {"times": 1.4}}}, "warm, times 1.4"),
        (
            "stale rollouts",
            {"batch": {"staleness": 12}, "optimizer": {"learning_rate": 1e-4}, **CORRECTED},
            "12 versions at 0.0001",
        ),
    )
    for number, (kind, changed, strength) in enumerate(plants):
        for place, method in enumerate(("grpo", "dr_grpo")):
            settings = sums(method, 30 + 2 * number + place, 40, **changed)
            yield run(kind, place, method, settings, strength=strength)
