"""How weights are kept: what a run chooses, and what is refused with its way out."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from whet.training.assembly.runtime import weights_choice
from whet.training.config import resolved
from whet.training.distributed.ranks import ALONE, Ranks
from whet.types import WhetError

CPU, GPU = torch.device("cpu"), torch.device("cuda")
LORA = {"model": {"lora": 4}}


def kept(settings: dict[str, Any], device: torch.device, dtype: torch.dtype, ranks: Ranks = ALONE) -> torch.dtype:
    return weights_choice(resolved("grpo", settings), device, dtype, ranks)[0]


def test_a_base_is_bfloat16_where_products_are_on_a_gpu() -> None:
    assert kept(LORA, GPU, torch.bfloat16) == torch.bfloat16
    assert kept(LORA, GPU, torch.float32) == kept(LORA, CPU, torch.float32) == torch.float32
    assert kept(LORA, CPU, torch.bfloat16) == torch.float32  # a CPU changes nothing unasked
    assert kept({}, GPU, torch.bfloat16) == torch.float32
    assert kept({"model": {"weights": "bfloat16"}}, GPU, torch.bfloat16) == torch.bfloat16
    assert kept({"model": {"lora": {"rank": 4, "base": "float32"}}}, GPU, torch.bfloat16) == torch.float32


def test_several_ranks_and_engines_elsewhere_keep_float32() -> None:
    assert kept(LORA, GPU, torch.bfloat16, Ranks(0, 2)) == torch.float32
    assert kept({**LORA, "scale": {"engines": 1}}, GPU, torch.bfloat16) == torch.float32


@pytest.mark.parametrize(
    ("settings", "dtype", "ranks", "said"),
    [
        ({"model": {"weights": "bfloat16"}}, torch.float32, 1, "needs products in bf16; give model.precision=bf16"),
        ({"model": {"lora": {"rank": 4, "base": "4bit"}}}, torch.float32, 1, "model.lora.base=4bit needs products"),
        ({"model": {"weights": "bfloat16"}}, torch.bfloat16, 2, "model.weights=bfloat16 is for one device"),
        ({"optimizer": {"states": "int8"}}, torch.bfloat16, 2, "optimizer.states=int8 is for one device"),
        (
            {"model": {"lora": {"rank": 4, "base": "bfloat16"}}, "scale": {"engines": 1}},
            torch.bfloat16,
            1,
            "an engine that is sent weights would lack them; leave model.lora.base away",
        ),
    ],
)
def test_what_cannot_be_is_one_line(settings: dict[str, Any], dtype: torch.dtype, ranks: int, said: str) -> None:
    pytest.importorskip("bitsandbytes")
    with pytest.raises(WhetError, match=said):
        kept(settings, CPU, dtype, Ranks(0, ranks))


def test_settings_without_effect_are_refused() -> None:
    with pytest.raises(WhetError, match=r"model.weights has no effect with model.lora.*give model.lora.base"):
        resolved("grpo", {"model": {"lora": 4, "weights": "bfloat16"}})
    with pytest.raises(WhetError, match="base have no effect at rank 0"):
        resolved("grpo", {"model": {"lora": {"rank": 0, "base": "4bit"}}})


def test_the_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from whet.model import quantized

    quantized._library.cache_clear()
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(WhetError, match=r"need bitsandbytes; run pip install 'whet\[bits\]'"):
        kept({"optimizer": {"states": "int8"}}, CPU, torch.float32)
    quantized._library.cache_clear()
