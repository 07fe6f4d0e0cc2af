"""Weights rounded at random and moments of 8 bits: unbiased, the same AdamW, and resumed bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from whet.model.low_precision import stochastically_rounded
from whet.training import optimizer as narrow_adamw
from whet.training.optimizer import adamw, optimizer_tensors, restore_optimizer
from whet.training.sections import OptimizerSection

STATES = ["float32", "int8"]


def net(dtype: torch.dtype = torch.float32, width: int = 96) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width), nn.Linear(width, 3, bias=False))
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data = parameter.data.to(dtype)
    return model


def push(model: nn.Module, seed: int) -> None:
    stream = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=stream).to(parameter.dtype)


def stepped(model: nn.Module, settings: OptimizerSection, steps: int) -> torch.optim.Optimizer:
    optimizer = adamw(model, settings)
    for step in range(steps):
        push(model, step)
        optimizer.step()
    return optimizer


def test_rounding_is_right_on_average_and_only_to_the_two_neighbours() -> None:
    values = torch.tensor([1.001, -1.001, 3.14159e-20, -7e30, 0.0, 1.0]).repeat_interleave(20000)
    noise = torch.randint(0, 1 << 16, values.shape, generator=torch.Generator().manual_seed(1), dtype=torch.int32)
    found = stochastically_rounded(values, noise)
    assert found.dtype == torch.bfloat16
    for value, drawn in zip(values[::20000], found.view(6, -1), strict=True):
        unit = float(torch.finfo(torch.bfloat16).eps) * float(value.abs())
        assert float((drawn.double() - value).abs().max()) <= unit
        # the mean of 20,000 draws that are at most a unit apart: five standard errors
        assert abs(float(drawn.double().mean() - value)) <= 5 * 0.5 * unit / 20000**0.5
        assert len(drawn.unique()) == (2 if value not in (0.0, 1.0) else 1)
    nearest = values.to(torch.bfloat16).double().view(6, -1).mean(1)
    assert abs(float(nearest[0] - values[0])) > 5e-4  # which rounding to the nearest is not


def test_what_is_not_finite_stays_that() -> None:
    values = torch.tensor([float("inf"), float("-inf"), float("nan")])
    found = stochastically_rounded(values, torch.full((3,), 65535, dtype=torch.int32))
    assert found[0] == float("inf") and found[1] == float("-inf") and found[2].isnan()


def test_steps_smaller_than_a_unit_add_up() -> None:
    """1,000 steps of a thousandth of a unit each; rounded to the nearest, the weight would never move."""
    weight = nn.Parameter(torch.full((4096,), 1.0, dtype=torch.bfloat16).view(64, 64))
    model = nn.ParameterDict({"weight": weight})
    unit = 2.0**-7
    optimizer = adamw(model, OptimizerSection(learning_rate=unit / 1000))
    for _ in range(1000):
        weight.grad = torch.ones_like(weight)  # AdamW's step is then the learning rate
        optimizer.step()
    assert abs(float(weight.detach().double().mean()) - (1.0 - unit)) < 0.05 * unit


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_in_float32_it_is_torchs_adamw(decay: float, monkeypatch: Any) -> None:
    monkeypatch.setattr(narrow_adamw, "SLICE", 4096)
    ours, theirs = net(), net()
    settings = OptimizerSection(learning_rate=1e-2, weight_decay=decay)
    groups = adamw(ours, settings).param_groups
    optimizer = narrow_adamw.LowPrecisionAdamW(
        [{"params": each["params"], "weight_decay": each["weight_decay"]} for each in groups], 1e-2, (0.9, 0.999), 1e-8,
        int8=False,
    )  # fmt: skip
    expected = adamw(theirs, settings)
    assert isinstance(expected, torch.optim.AdamW)
    for step in range(5):
        for model, each in ((ours, optimizer), (theirs, expected)):
            push(model, step)
            each.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


def test_moments_of_8_bits_stay_near(monkeypatch: Any) -> None:
    monkeypatch.setattr(narrow_adamw, "SLICE", 4096)
    wide, narrow, start = net(), net(), net()
    stepped(wide, OptimizerSection(learning_rate=1e-2), 20)
    optimizer = stepped(narrow, OptimizerSection(learning_rate=1e-2, states="int8"), 20)
    state = optimizer.state[narrow[0].weight]
    assert state["exp_avg"].dtype == torch.uint8 and state["exp_avg_largest"].shape == (36,)
    assert optimizer.state[narrow[0].bias]["exp_avg"].dtype == torch.float32  # vectors are few
    moved = (wide[0].weight - start[0].weight).norm()
    assert 0 < (narrow[0].weight - wide[0].weight).norm() < 0.05 * moved


@pytest.mark.parametrize("states", STATES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_resumed_run_takes_the_same_steps_bit_for_bit(states: str, dtype: torch.dtype, tmp_path: Any) -> None:
    from safetensors.torch import load_file, save_file

    settings = OptimizerSection(learning_rate=1e-2, weight_decay=0.1, states=states)
    whole, broken = net(dtype), net(dtype)
    stepped(whole, settings, 6)
    first = stepped(broken, settings, 3)
    save_file(optimizer_tensors(broken, first), str(tmp_path / "optimizer.safetensors"))
    second = adamw(broken, settings)
    restore_optimizer(broken, second, load_file(str(tmp_path / "optimizer.safetensors")))
    for step in range(3, 6):
        push(broken, step)
        second.step()
    for mine, other in zip(whole.parameters(), broken.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_a_weight_that_is_a_view_is_stepped_in_its_place() -> None:
    place = torch.ones(8, 24, dtype=torch.bfloat16)
    weight = nn.Parameter(torch.ones(8, 16, dtype=torch.bfloat16))
    weight.data = place[:, :16]
    optimizer = adamw(nn.ParameterDict({"weight": weight}), OptimizerSection(learning_rate=0.1))
    weight.grad = torch.ones(8, 16, dtype=torch.bfloat16)
    optimizer.step()
    assert float(place[:, :16].float().mean()) == pytest.approx(0.9, abs=0.01) and bool((place[:, 16:] == 1).all())
