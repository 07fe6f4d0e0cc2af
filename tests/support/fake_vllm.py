"""A stand-in for vLLM: its interface as whet uses it, over a transformers model. Old (0.24) and new (0.28 on) shapes.

The weights it starts with are no policy's: they come through the transport or not at all.
"""

import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import torch
import transformers

from whet.model.causal_lm import causal_lm
from whet.rollout.torch_engine import TorchEngine
from whet.types import Request, Sampling


def install(monkeypatch, version="0.32.0", **faults):
    """Put it in the place of vllm; the namespace it returns has every `LLM` that was made, in `made`."""
    state = SimpleNamespace(made=[], is_old=version.startswith("0.24"), faults=faults, events=[])
    names = {
        "vllm": {"LLM": _llm(state), "SamplingParams": lambda **values: SimpleNamespace(**values)},
        "vllm.config": {"WeightTransferConfig": lambda backend: SimpleNamespace(backend=backend)},
        "vllm.distributed": {},
        "vllm.distributed.weight_transfer": {},
        "vllm.distributed.weight_transfer.base": _base(state),
        "vllm.distributed.weight_transfer.factory": {"WeightTransferEngineFactory": _factory()},
        "vllm.model_executor": {},
        "vllm.model_executor.model_loader": {},
        "vllm.model_executor.model_loader.reload": {
            "initialize_layerwise_reload": lambda model: state.events.append("unpack"),
            "finalize_layerwise_reload": lambda model, config: state.events.append("repack"),
        },
    }
    for name, values in names.items():
        module = ModuleType(name)
        module.__dict__.update(values)
        monkeypatch.setitem(sys.modules, name, module)
        if "." in name:
            above, _, last = name.rpartition(".")
            setattr(sys.modules[above], last, module)
    monkeypatch.setattr("whet.rollout.vllm_engine.importlib.metadata.version", lambda package: version)
    return state


def _factory():
    class Factory:
        _registry: ClassVar[dict] = {}

        @classmethod
        def register_engine(cls, name, engine):
            cls._registry[name] = lambda: engine

    return Factory


def _base(state):
    @dataclass
    class Info:
        pass

    class Base:
        def __init__(self, config, *rest):
            # 0.24: (config, parallel_config, model); 0.28: (config, vllm_config, device, model)
            assert len(rest) == (2 if state.is_old else 3)
            self.model, self.model_config = rest[-1], None

        def parse_update_info(self, values):
            return self.update_info_cls(**values)

    return {"WeightTransferEngine": Base, "WeightTransferInitInfo": Info, "WeightTransferUpdateInfo": Info}


class _Loadable(torch.nn.Module):
    """A model with vLLM's `load_weights`."""

    def __init__(self, model, faults):
        super().__init__()
        self.model, self._faults = model, faults

    def load_weights(self, pairs):
        mine = self.model.state_dict()
        for name, value in pairs:
            if self._faults.get("tied_head") and name == "lm_head.weight":
                continue
            mine[name].copy_(value)
        return set(mine)


def _llm(state):
    class LLM:
        def __init__(self, *, model, load_format, dtype, logprobs_mode, weight_transfer_config, **arguments):
            assert load_format == "dummy" and logprobs_mode == "processed_logprobs"
            assert arguments["enable_prefix_caching"] and arguments["generation_config"] == "vllm"
            if state.faults.get("start"):
                raise RuntimeError("no room for keys and values")
            self.arguments, self.asked, self.cached = arguments, [], 0
            torch.manual_seed(9)
            own = transformers.AutoModelForCausalLM.from_config(
                transformers.AutoConfig.from_pretrained(model), dtype=getattr(torch, dtype)
            )
            if state.faults.get("tied_head"):
                head = own.get_output_embeddings()
                head.weight = torch.nn.Parameter(head.weight.detach().clone())
            self.model = _Loadable(own.eval(), state.faults)
            made = sys.modules["vllm.distributed.weight_transfer.factory"].WeightTransferEngineFactory._registry
            rest = (None, self.model) if state.is_old else (None, torch.device("cpu"), self.model)
            self.transport = made[weight_transfer_config.backend]()(weight_transfer_config, *rest)
            state.made.append(self)

        def init_weight_transfer_engine(self, request):
            state.events.append("init")

        def update_weights(self, request):
            if state.faults.get("lost"):
                return
            with torch.no_grad():
                if state.is_old:
                    info = self.transport.parse_update_info(request["update_info"])
                    self.transport.receive_weights(info, load_weights=self.model.load_weights)
                else:
                    self.transport.update_weights(request["update_info"])
            state.events.append("update")

        def reset_prefix_cache(self):
            state.events.append("reset")
            return not state.faults.get("busy")

        def sleep(self, level):
            state.events.append(f"sleep {level}")

        def wake_up(self):
            state.events.append("wake")

        def generate(self, prompts, params, use_tqdm):
            self.asked += params
            written = []
            for prompt, each in zip(prompts, params, strict=True):
                engine = TorchEngine(causal_lm(self.model.model), _Silent(), each.stop_token_ids, context=10**6)
                sampling = Sampling(each.max_tokens, each.temperature, each.top_p, each.top_k, each.min_p)
                (one,) = engine.generate([Request(tuple(prompt["prompt_token_ids"]), each.seed)], sampling)
                tokens, logp = one.tokens[one.action].tolist(), one.behavior_logp[one.action].tolist()
                table = [{token: SimpleNamespace(logprob=value)} for token, value in zip(tokens, logp, strict=True)]
                if state.faults.get("no_logprobs"):
                    table = None
                written.append(
                    SimpleNamespace(outputs=[SimpleNamespace(token_ids=tokens, logprobs=table, stop_reason=None)])
                )
            return written

    if state.is_old:

        def start(self, is_checkpoint_format=True):
            state.events.append(f"start {is_checkpoint_format}")

        def finish(self):
            state.events.append("finish")
    else:

        def start(self):
            self.transport.start_weight_update()

        def finish(self, weight_version=None):
            self.transport.finish_weight_update()
            state.events.append(f"finish {weight_version}")

    LLM.start_weight_update, LLM.finish_weight_update = start, finish
    return LLM


class _Silent:
    def decode(self, tokens, **_):
        return ""
