"""Runs in an environment with vLLM: one question on the command line, one JSON line as the answer."""

import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import torch

import whet
from whet.model.causal_lm import causal_lm
from whet.model.load import load_model
from whet.rollout.openai_engine import OpenAIEngine, TextTokenizer
from whet.rollout.vllm_engine import VLLMEngine
from whet.rollout.weight_sync_check import PolicyMismatch, PolicyWatch
from whet.types import Request, Sampling

TEMPERATURE = 0.7
REQUESTS = [Request((5, 6, 7, 8 + number % 4), number) for number in range(16)]


def moved(policy, scale=1e-3):
    stream = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.add_(scale * torch.randn(weight.shape, generator=stream))
    return policy.model.state_dict()


def gap(policy, samples):
    """Mean distance of the engine's log-probabilities to the policy's own forward."""
    found = []
    with torch.no_grad():
        for sample in samples:
            logp = torch.log_softmax(policy.model(sample.tokens[None]).logits[0] / TEMPERATURE, -1)
            mine = logp[:-1].gather(-1, sample.tokens[1:, None])[:, 0]
            found.append((mine - sample.behavior_logp[1:])[sample.action[1:]].abs())
    return float(torch.cat(found).mean())


def updates(process):
    """The policy moves, and vLLM follows when it is told to; with the head left out, it is noticed."""
    loaded = load_model("whetstone")
    policy = causal_lm(loaded.model)
    began = time.monotonic()
    settings = {"context": 256, "rows": 32, "process": process}
    engine = VLLMEngine(policy, loaded.tokenizer, loaded.end_tokens, **settings)
    answer = {"vllm": engine.vllm, "start_s": time.monotonic() - began}
    watch = PolicyWatch(policy, engine, TEMPERATURE, "vllm")
    sampling = Sampling(24, temperature=TEMPERATURE)
    first = engine.generate(REQUESTS, sampling)
    answer["repeats"] = [s.tokens.tolist() for s in first] == [
        s.tokens.tolist() for s in engine.generate(REQUESTS, sampling)
    ]
    answer["before"] = gap(policy, first)
    watch.check(first)
    weights = moved(policy)
    answer["not_loaded"] = gap(policy, first)
    began = time.monotonic()
    watch.load(weights, 1)
    answer["load_s"] = time.monotonic() - began
    second = engine.generate(REQUESTS, sampling)
    answer["after"] = gap(policy, second)
    answer["replay"] = watch.check(second)
    weights = {name: value for name, value in moved(policy).items() if name != "lm_head.weight"}
    engine.load(weights, 2)
    answer["without_head"] = gap(policy, third := engine.generate(REQUESTS, sampling))
    watch = PolicyWatch(policy, engine, TEMPERATURE, "vllm")
    watch._version = 2
    try:
        watch.check(third)
        answer["noticed"] = ""
    except PolicyMismatch as error:
        answer["noticed"] = str(error)
    engine.close()
    return answer


def trained(settings, **sections):
    """A short run of GRPO with vLLM as its engine: the gaps of its steps."""
    with tempfile.TemporaryDirectory() as folder:
        values = {
            "steps": 3,
            "model": {"device": "cpu", "threads": 1},
            "sampling": {
                "engine": "vllm",
                "max_new_tokens": 24,
                "temperature": 0.8,
                "engine_settings": {"max_length": 256, "rows": 32, **settings},
            },
            "eval": {"prompts": 0},
            "batch": {"prompts_per_step": 4, "group_size": 4},
            "optimizer": {"learning_rate": 1e-3},
            **sections,
        }
        whet.train("grpo", config=values, folder=f"{folder}/run", console=False)
        lines = [json.loads(line) for line in Path(f"{folder}/run/metrics.jsonl").read_text().splitlines()]
    names = ("sampler_gap", "sampler_gap_max", "replay_gap", "replay_limit", "replayed_tokens")
    return [{name: line["metrics"][name] for name in names} for line in lines if "metrics" in line]


def served():
    """vLLM's own server, asked through whet's engine for servers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = load_model("whetstone").source
    words = ["--model", folder, "--served-model-name", "tiny", "--dtype", "float32", "--enforce-eager"]
    words += ["--max-model-len", "256", "--host", "127.0.0.1", "--port", str(port)]
    # vLLM's command line looks for a package of the name vllm, which a CPU build has not
    module = "vllm.entrypoints.openai.api_server"
    there = subprocess.Popen([sys.executable, "-m", module, *words], stdout=sys.stderr)
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2).read()
                break
            except OSError:
                if there.poll() is not None:
                    raise RuntimeError("the server ended") from None
                time.sleep(1)
        tokenizer = TextTokenizer()
        url = f"http://127.0.0.1:{port}/v1"
        engine = OpenAIEngine(None, tokenizer, (0,), context=2**30, base_url=url, model="tiny")
        chat = tokenizer.apply_chat_template([{"role": "user", "content": "1 + 2 = ?"}])
        samples = engine.generate([Request(tuple(chat), 1), Request((tokenizer.id_of("1 + 2"),), 2)], Sampling(24))
        return [
            {"text": s.completion, "tokens": s.num_actions, "logp": s.behavior_logp.tolist(), "stop": str(s.stop)}
            for s in samples
        ]
    finally:
        there.terminate()
        there.wait(60)


QUESTIONS = {
    "in_process": lambda: updates(False),
    "own_process": lambda: updates(True),
    "grpo": lambda: trained({}),
    "grpo_lora": lambda: trained({}, model={"device": "cpu", "threads": 1, "lora": 4}),
    "grpo_bf16": lambda: trained({"dtype": "bfloat16"}),
    "served": served,
}

if __name__ == "__main__":
    answer = QUESTIONS[sys.argv[1]]()
    print("ANSWER " + json.dumps(answer), flush=True)
