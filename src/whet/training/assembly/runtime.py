"""From a config to a model on its device: weights, adapters, engine, and what was chosen for them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from whet.data.chat import check_context, tokens_of_prompts
from whet.data.sections import DataSection
from whet.data.usable import Usable, without
from whet.model.causal_lm import CausalLM, Recompute, causal_lm
from whet.model.fast_path import fast_path
from whet.model.finite import non_finite_weight
from whet.model.fused_trunk import fused_works
from whet.model.load import UNKNOWN_CONTEXT, LoadedModel, device_choice, dtype_choice, load_model
from whet.model.lora import LowRank, adapted_layers, adapter_factors, add_adapters, unadapted_experts, uncalled_layers
from whet.model.low_precision import widen_vectors
from whet.model.quantized import pack_four_bits, require_library
from whet.model.train_noise import switch_off_noise
from whet.protocols import Engine
from whet.registry import lookup
from whet.rollout.collect import Score
from whet.rollout.episode_runner import EpisodeRunner
from whet.rollout.sections import SamplingSection
from whet.training.assembly.engines import config_engine, is_server, rank_engine, remote_engine, thread_choice
from whet.training.assembly.episode_runner import build_episode_runner, check_environment
from whet.training.assembly.rows import encodable
from whet.training.config import CRITIC_RATE, RATE, Config, EvaluationConfig, PolicyConfig, rate_reasons
from whet.training.distributed.agreement import agree_on_weights
from whet.training.distributed.ranks import ALONE, Ranks
from whet.training.distributed.shard import Sharding, sharding
from whet.training.distributed.shared_rollout import FirstRankEngine, FirstRankRunner, SharedRunner
from whet.training.evaluator import Evaluator
from whet.training.sections import LEAST_PASS, pass_tokens
from whet.types import Prompt, Sampling, WhetError

if TYPE_CHECKING:
    from whet.training.distributed.ray_cluster import RayCluster

AnyConfig = TypeVar("AnyConfig", bound=Config)


def add_configured_adapters(config: Config, model: Any, dtype: torch.dtype = torch.float32) -> dict[str, str]:
    """Put adapters on the model where the config asks for them; the line about them for the run's facts.

    `dtype` is how the weights were read: below float32 adapters are kept apart from them.
    """
    lora = config.model.lora
    if not lora.rank:
        return {}
    if config.model.reference == "reload" and not config.model.reference_model:
        raise WhetError(
            "model.reference=reload has no effect with model.lora: the adapters are switched off for it; drop it"
        )
    layers = add_adapters(
        model,
        LowRank(lora.rank, lora.alpha, lora.target_modules, config.seed),
        merged=dtype == torch.float32,
        pack=pack_four_bits if lora.base == "4bit" else None,
    )
    learned = sum(factor.numel() for factor in adapter_factors(model).values())
    experts = unadapted_experts(model)
    left = (
        f"; {experts / 1e6:.2g}M weights in tensors of all experts or of convolutions stay as they are"
        if experts
        else ""
    )
    if uncalled := sorted(uncalled_layers(model)):
        left += f"; {', '.join(uncalled)} would get no gradient and stays as it is"
    return {"lora": f"rank {lora.rank} on {len(layers)} matrices ({learned / 1e6:.2g}M weights learn{left})"}


def weights_choice(
    config: Config | EvaluationConfig, device: torch.device, dtype: torch.dtype, ranks: Ranks = ALONE
) -> tuple[torch.dtype, str]:
    """How weights are kept, and what to say about it; `dtype` is that of the products."""
    adapted = not isinstance(config, EvaluationConfig) and config.model.lora.rank > 0
    key, asked = ("model.lora.base", config.model.lora.base) if adapted else ("model.weights", config.model.weights)
    states = "float32" if isinstance(config, EvaluationConfig) else config.optimizer.states
    sharded = ranks.size > 1
    copied = adapted and _engine_has_copy(config)
    if asked == "auto":
        narrow = device.type == "cuda" and dtype == torch.bfloat16 and not sharded and not copied
        asked = "bfloat16" if narrow else "float32"
    if states == "int8":
        require_library()
    if sharded:
        for name, value in ((key, asked), ("optimizer.states", states)):
            if value != "float32":
                raise WhetError(f"{name}={value} is for one device; leave it away, or train in one process")
    if copied and asked != "float32":
        raise WhetError(
            f"{key}={asked} keeps adapters apart from the weights, and an engine that is sent weights would lack them; "
            f"leave {key} away, or let the trainer's own process write (scale.engines=0, scale.max_staleness=0, "
            "sampling.engine=torch)"
        )
    if asked == "float32":
        return torch.float32, ""
    if dtype != torch.bfloat16:
        raise WhetError(f"{key}={asked} needs products in bf16; give model.precision=bf16, or leave {key} away")
    if asked == "4bit":
        require_library()
        return torch.bfloat16, "base in 4 bits, unpacked for every product"
    return torch.bfloat16, "base in bfloat16, one copy" if adapted else "bfloat16, steps rounded at random"


def _engine_has_copy(config: Config | EvaluationConfig) -> bool:
    """Whether completions are written from weights that are handed over, not from the trainer's own."""
    elsewhere = not isinstance(config, EvaluationConfig) and bool(config.scale.engines or config.scale.max_staleness)
    return elsewhere or config.sampling.engine != "torch"


# of results/gpu_step_135m.json and a machine where nothing was compiled before
FIRST_STEP = "compiles kernels and captures CUDA graphs: some seconds, up to 20 on a machine where it never ran"

MOST_SHOWN = 80  # characters of a system prompt in the facts


@dataclass(frozen=True)
class Runtime:
    """The model on its device, and what was chosen for it."""

    loaded: LoadedModel
    policy: CausalLM
    engine: Engine
    runner: EpisodeRunner  # of episodes; without an environment each is one completion
    facts: Mapping[str, str]
    cluster: RayCluster | None = None  # that the run's workers live in
    ranks: Ranks = ALONE
    shards: Sharding | None = None  # how models are cut before they learn; None: they stay whole

    def close(self) -> None:
        """End what the run started elsewhere."""
        if self.cluster is not None:
            self.cluster.close()

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of the loaded model."""
        return self.loaded.tokenizer


def load_runtime(config: Config | EvaluationConfig, ranks: Ranks = ALONE) -> Runtime:
    """The policy is whole here, on every rank: what stands on it is built first, then each kind shards what learns."""
    if is_server(lookup("engine", config.sampling.engine)):  # an unknown name is refused before a model is read
        return server_runtime(config)
    check_environment(config)
    cluster = None if isinstance(config, EvaluationConfig) or not ranks.is_first else cluster_of(config)
    try:
        return _load_runtime(config, cluster, ranks)
    except BaseException:
        if cluster is not None:
            cluster.close()
        raise


def cluster_of(config: Config) -> RayCluster | None:
    """The cluster with room for what the run starts, or None; one that cannot be had is told before a model is read."""
    scale = config.scale
    if not scale.engines and not scale.reward_workers:
        return None
    from whet.training.distributed.ray_cluster import open_cluster

    gpus = scale.engines if device_choice(config.model.device).type == "cuda" else 0
    return open_cluster(scale.address, cpus=scale.engines + scale.reward_workers, gpus=gpus)


def _load_runtime(config: Config | EvaluationConfig, cluster: RayCluster | None, ranks: Ranks) -> Runtime:
    device = device_choice(config.model.device)
    if device.type == "cuda" and config.sampling.engine == "torch":
        # passes of ever new shapes leave gaps that the next ones do not fit into: segments that grow have none. Read by
        # torch at its first allocation; vLLM's own memory pool refuses it.
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    dtype, why = dtype_choice(config.model.precision, device)
    weights_dtype, kept_as = weights_choice(config, device, dtype, ranks)
    loaded = load_model(config.model.name, weights_dtype, str(device), config.model.chat_template)
    if weights_dtype.itemsize < 4:
        widen_vectors(loaded.model)
    if (name := non_finite_weight(loaded.model)) is not None:
        raise WhetError(
            f"{config.model.name}: its weight {name} is not finite (NaN or infinity); give another model or checkpoint"
        )
    if apart := agree_on_weights(ranks, loaded.model):
        raise WhetError(apart)
    size = sum(parameter.numel() for parameter in loaded.model.parameters())
    adapters = (
        {} if isinstance(config, EvaluationConfig) else add_configured_adapters(config, loaded.model, weights_dtype)
    )
    policy = build_policy(loaded.model, dtype, recompute_choice(config.model.recompute, device))
    noise = "" if isinstance(config, EvaluationConfig) else switch_off_noise(policy)
    engine: Engine
    elsewhere = {}
    if isinstance(config, EvaluationConfig) or not config.scale.engines:
        engine = rank_engine(config, policy, loaded, ranks)
    else:
        remote = None if cluster is None else remote_engine(config, cluster, policy, weights_dtype)
        engine = remote if remote is not None and ranks.size == 1 else FirstRankEngine(remote)
        elsewhere = {"engines": f"{config.scale.engines}, each in a process of its own with a copy of the policy"}
    offloads = not isinstance(config, EvaluationConfig) and config.scale.offload  # then the CPU steps the optimizer
    threads, threads_why = thread_choice(config.model.threads, size, device.type == "cuda" and not offloads)
    torch.set_num_threads(threads)
    runner, played = build_episode_runner(config, engine, loaded)
    shards = None
    if ranks.size > 1:
        runner = FirstRankRunner(runner, ranks) if elsewhere else SharedRunner(runner, ranks)
        shards = sharding(ranks, device, offloads)
    facts = {
        "model": f"{loaded.shown(config.model.name)} ({size / 1e6:.1f}M weights)",
        **adapters,
        "device": f"{device}, {threads} thread{'s' if threads > 1 else ''} ({threads_why})",
        **({} if policy.recompute == "none" else {"recompute": policy.recompute}),
        **({"context": f"{loaded.context} tokens ({loaded.context_reason})"} if loaded.context_reason else {}),
        **({"training noise": noise} if noise else {}),
        "training path": str(fast_path(policy)),
        **({"first step": FIRST_STEP} if device.type == "cuda" else {}),
        **({} if shards is None else rank_facts(policy, ranks, shards)),
        **({} if config.sampling.engine == "torch" else {"engine": config.sampling.engine}),
        **elsewhere,
        "dtype": f"{str(dtype).removeprefix('torch.')} ({why})",
        **({"weights": kept_as} if kept_as else {}),
        **played,
    }
    return Runtime(
        loaded=loaded,
        policy=policy,
        engine=engine,
        runner=runner,
        facts=facts,
        cluster=cluster,
        ranks=ranks,
        shards=shards,
    )


def rank_facts(policy: CausalLM, ranks: Ranks, shards: Sharding) -> dict[str, str]:
    """How several ranks train, and which fast paths step aside for it."""
    size = sum(parameter.numel() for parameter in policy.model.parameters())
    where = ", in CPU memory" if shards.offload else ""
    facts = {"ranks": f"{ranks.size}, each with {size / ranks.size / 1e6:.1f}M of the weights{where} (FSDP2)"}
    path = fast_path(policy)
    if path.kind == "fused layers" and adapted_layers(policy.model):
        facts["training path"] = (
            "the model's own layers (adapters in shards; the fused layers step aside: docs/scale.md has what it costs)"
        )
    return facts


def server_runtime(config: Config | EvaluationConfig) -> Runtime:
    """The runtime of an engine that is a server: no weights are read and nothing can be trained."""
    name = config.sampling.engine
    if not isinstance(config, EvaluationConfig):
        raise WhetError(
            f"sampling.engine={name} asks a server, whose weights cannot be trained: use it with whet eval, sample and "
            "label, and train with sampling.engine=torch or vllm"
        )
    if not config.env.is_single:
        raise WhetError(
            f"sampling.engine={name} takes no environment or tools: episodes need the tokens of a model that runs here"
        )
    from whet.rollout.openai_engine import TextTokenizer

    nothing: Any = None
    tokenizer: Any = TextTokenizer()
    ends = (TextTokenizer.eos_token_id,)
    settings = config.sampling.engine_settings
    source = f"{settings.get('model', config.model.name)} at {settings.get('base_url', 'a server')}"
    loaded = LoadedModel(nothing, tokenizer, source, ends, UNKNOWN_CONTEXT)
    engine = config_engine(config, nothing, loaded)
    runner, _ = build_episode_runner(config, engine, loaded)
    return Runtime(loaded, nothing, engine, runner, {"model": source, "engine": f"{name}: no weights are sent to it"})


def recompute_choice(requested: str, device: torch.device) -> Recompute:
    """What is computed again in the backward pass. On a GPU the MLP's wide rows, by default: half the memory of a
    micro-batch for a twentieth of its time."""
    if requested == "auto":
        return "wide" if device.type == "cuda" else "none"
    return requested  # type: ignore[return-value]


def sized_passes(config: AnyConfig, policy: CausalLM) -> AnyConfig:
    """The config with tokens per pass that suit the policy and its device, unless it says how many.

    A small model's passes end before the next ones are launched, so few large ones are faster: a step of 135M weights
    on an H200 took 1.56 s in passes of 20,480 tokens and 1.28 s in passes of 65,536.
    """
    width = layers = memory = 0
    if policy.device.type == "cuda" and policy.recompute != "none" and fused_works(policy):
        shape = policy.model.config.get_text_config()  # type: ignore[union-attr,operator]
        width, layers = shape.hidden_size, shape.num_hidden_layers
        memory = torch.cuda.get_device_properties(policy.device).total_memory
    batch = config.batch
    tokens = pass_tokens(batch.micro_batch_tokens, width, layers, memory, policy.dtype.itemsize)
    return config.model_copy(update={"batch": batch.model_copy(update={"micro_batch_tokens": tokens})})  # type: ignore[return-value]


def build_policy(model: Any, dtype: torch.dtype, recompute: Recompute) -> CausalLM:
    """A model to train; one that whet has not written out recomputes its layers itself."""
    policy = causal_lm(model, dtype, recompute)
    if recompute == "layers" and not fused_works(policy):
        if not getattr(model, "supports_gradient_checkpointing", False):
            raise WhetError(
                f"model.recompute=layers: {type(model).__name__} cannot compute its layers again; "
                "leave it away, or lower batch.micro_batch_tokens"
            )
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return policy


def sampling_from(section: SamplingSection) -> Sampling:
    """The sampling parameters of a config section."""
    return Sampling(
        section.max_new_tokens, section.temperature, section.top_p, section.top_k, section.min_p, tuple(section.stop),
        tuple(map(tuple, section.stop_tokens)),
    )  # fmt: skip


def decode_facts(runtime: Runtime, sampling: Sampling, prompts: Sequence[Sequence[int]]) -> dict[str, str]:
    """How completions to these prompts are written, and why not faster."""
    if not prompts:
        return {}
    path_for = getattr(runtime.engine, "path_for", None)
    if path_for is None and "engines" in runtime.facts:
        return {}  # they decode elsewhere, each as it finds best
    if path_for is None:  # an engine of one's own need not have it
        return {"decode path": f"the engine {type(runtime.engine).__name__}, which does not say how it decodes"}
    return {"decode path": str(path_for(sampling, max(map(len, prompts))))}


def encode_prompts(runtime: Runtime, prompts: Sequence[Prompt], sampling: Sampling) -> list[tuple[int, ...]]:
    """Tokens of each prompt; one that cannot fit with its completion is an error."""
    tokens = tokens_of_prompts(runtime.loaded.tokenizer, prompts)
    require_room(runtime, prompts, tokens, sampling)
    return tokens


def require_room(
    runtime: Runtime, prompts: Sequence[Prompt], tokens: Sequence[Sequence[int]], sampling: Sampling
) -> None:
    """Raise unless every prompt fits into the context with its completion."""
    loaded = runtime.loaded
    check_context(
        prompts,
        [len(row) for row in tokens],
        max_new_tokens=sampling.max_new_tokens,
        context=loaded.context,
        reason=loaded.context_reason,
    )


def fitting_prompts(
    runtime: Runtime, prompts: Sequence[Prompt], sampling: Sampling, data: DataSection
) -> tuple[Usable[Prompt], list[tuple[int, ...]]]:
    """Prompts and their tokens. One that leaves no room for a completion is an error, or is left out and counted."""
    prompts, tokens = encodable(prompts, partial(tokens_of_prompts, runtime.loaded.tokenizer), data)
    if data.unusable == "stop" or not data.parsed_source.is_stored:
        require_room(runtime, prompts, tokens, sampling)
        return Usable(prompts), tokens
    room = runtime.loaded.context - sampling.max_new_tokens
    fitting = [number for number, row in enumerate(tokens) if len(row) <= room]
    if not fitting:
        require_room(runtime, prompts, tokens, sampling)  # raises: none fits
    too_long = len(tokens) - len(fitting)
    left_out = {"too long for the context": too_long} if too_long else {}
    return without(prompts, fitting, left_out), [tokens[number] for number in fitting]


def build_evaluator(
    runtime: Runtime, prompts: Sequence[Prompt], sampling: Sampling, score: Score, data: DataSection, by: str = ""
) -> Evaluator:
    """An evaluator on those prompts that fit into the context."""
    fitting, tokens = fitting_prompts(runtime, prompts, sampling, data)
    return Evaluator(runtime.engine, fitting, tokens, sampling, score, by, runtime.runner)


def settings_facts(config: Config) -> dict[str, str]:
    """The numbers that decide most about a run: how fast it learns, and from how much in a step."""
    reasons, optimizer = rate_reasons(config), config.optimizer
    warmup = f" after {optimizer.warmup_steps} steps of warm-up" if optimizer.warmup_steps else ""
    facts = {"learning rate": f"{optimizer.learning_rate:g}, {optimizer.schedule}{warmup} ({reasons[RATE]})"}
    if config.batch.micro_batch_tokens != LEAST_PASS:
        facts["passes"] = f"up to {config.batch.micro_batch_tokens:,} tokens"
    if config.model.reference_model:
        facts["reference"] = config.model.reference_model
    if system := " ".join(config.data.system_prompt.split()):
        facts["system prompt"] = system if len(system) <= MOST_SHOWN else f"{system[: MOST_SHOWN - 3]}..."
    if not isinstance(config, PolicyConfig):
        return {**facts, "batch": f"{config.batch.rows_per_step} rows per step, one update"}
    if config.trains_critic():
        rate = config.critic.learning_rate
        summary = f"{rate:g} ({reasons.get(CRITIC_RATE, 'as given')})" if rate else "the policy's"
        facts["critic"] = f"learning rate {summary}"
    batch = config.batch
    updates = batch.updates_per_step * batch.epochs_per_batch
    words = "one update" if updates == 1 else f"{updates} updates"
    size = f"{batch.prompts_per_step} prompts x {batch.group_size} completions per step"
    return {**facts, "batch": f"{size}, {words}"}


def sampling_fact(sampling: Sampling, prompts: Sequence[Sequence[int]]) -> dict[str, str]:
    """What is sampled in training: lengths, and how the tokens are drawn."""
    limits = [f"{name} {value:g}" for name, value, off in _truncations(sampling) if value != off]
    drawn = ", ".join([f"temperature {sampling.temperature:g}", *limits])
    return {"lengths": f"prompts {length_range(prompts)}, completions up to {sampling.max_new_tokens}; {drawn}"}


def _truncations(sampling: Sampling) -> tuple[tuple[str, float, float], ...]:
    return (("top_p", sampling.top_p, 1.0), ("top_k", sampling.top_k, 0), ("min_p", sampling.min_p, 0.0))


def rows_fact(rows: Sequence[Sequence[int]]) -> dict[str, str]:
    """The run's fact about the lengths of its rows."""
    return {"lengths": f"rows {length_range(rows)}"}


def length_range(rows: Sequence[Sequence[int]]) -> str:
    """`12 to 340 tokens (median 96)`."""
    lengths = sorted(map(len, rows))
    if not lengths or lengths[0] == lengths[-1]:
        return f"{lengths[0] if lengths else 0} tokens"
    return f"{lengths[0]} to {lengths[-1]} tokens (median {lengths[len(lengths) // 2]})"
