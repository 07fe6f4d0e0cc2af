"""Which way completions are written, and the reason where it is not the fastest."""

import pytest
import torch
import transformers

from whet.model.block import NotDescribed
from whet.model.causal_lm import causal_lm
from whet.rollout import torch_engine
from whet.rollout.cuda_decode import GraphBackend, rows_that_fit
from whet.rollout.torch_engine import TorchEngine
from whet.types import Sampling


class GraphsOnPaper(GraphBackend):
    """The graph backend's rules, without its kernels."""

    def __init__(self, windows):
        self._windows = windows


def engine_of(**changes):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=61,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
    )
    return TorchEngine(causal_lm(transformers.LlamaForCausalLM(config).eval()), None, (), context=64, **changes)


@pytest.fixture
def graphs(monkeypatch):
    monkeypatch.setattr(torch_engine, "graph_backend", lambda lm, stop, context: GraphsOnPaper((None, 12)))


@pytest.mark.parametrize(
    ("sampling", "longest_prompt", "reason"),
    [
        (Sampling(8), 4, ""),
        (Sampling(8), 5, "the kernels read every key, and 13 tokens exceed a layer's sliding window"),
        (Sampling(8, top_k=5, keeps_support=True), 4, ""),
        (Sampling(8, top_p=0.9, min_p=0.1), 4, ""),
        (Sampling(8, stop=("\n",), stop_tokens=((3, 4),)), 4, ""),
    ],
)
def test_settings_that_graphs_do_not_take_go_to_the_buffers_with_a_reason(graphs, sampling, longest_prompt, reason):
    engine = engine_of()
    assert engine.uses_graphs is False and str(engine.decode_path) == "CUDA graphs" and engine.uses_graphs
    path = engine.path_for(sampling, longest_prompt)
    assert (path.kind, path.reason) == (("fused decoder", reason) if reason else ("CUDA graphs", ""))


def test_what_graphs_leave_over_may_be_slower_still(graphs, monkeypatch):
    monkeypatch.setattr(torch_engine, "fused_decoder", lambda base: NotDescribed("a norm is unknown"))
    assert engine_of().path_for(Sampling(8), 5).kind == "the model's own layers on whet's buffers"
    monkeypatch.setattr(torch_engine, "hooked_decoder", lambda lm: NotDescribed("its scores are capped"))
    assert engine_of().path_for(Sampling(8), 5).kind == "the model's own forward and cache"


def test_without_graphs_the_settings_change_nothing(monkeypatch):
    assert str(engine_of().path_for(Sampling(8, top_k=5), 4)) == "fused decoder"
    assert str(engine_of(fast=False).path_for(Sampling(8), 4)) == "the model's own forward and cache (fast=False)"
    monkeypatch.setattr(torch_engine, "hooked_decoder", lambda lm: NotDescribed("its scores are capped"))
    assert str(engine_of().decode_path) == "the model's own forward and cache (its scores are capped)"


def test_no_more_rows_than_the_free_memory_has_room_for():
    assert rows_that_fit(1024, 1e6, 10**12) == 1024
    assert rows_that_fit(1024, 1e6, 10**9) == 592  # 0.6 of it, in steps of 16 rows
    assert rows_that_fit(1024, 1e9, 10**9) == 16  # the smallest graph: what is left is the allocator's to say
    assert rows_that_fit(32, 1e6, 10**9) == 32
