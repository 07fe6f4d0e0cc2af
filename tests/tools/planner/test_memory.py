"""The arithmetic of a plan: beside peaks that were measured, beside the constants of the code, and in its own logic."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support.for_every import for_every
from whet.api.planning import plan
from whet.model.shared_prefix import shared_prefix_batch
from whet.rollout.branching import Branching, shared_out
from whet.tools.planner import memory
from whet.tools.planner.from_config import _base
from whet.tools.planner.memory import PHASES, memory_plan
from whet.tools.planner.plan import plan_for, plan_record, plan_text
from whet.tools.planner.shapes import NAMED
from whet.tools.planner.workload import Devices, Workload, devices
from whet.types import WhetError

RESULTS = Path(__file__).parents[3] / "results"
GIB = 2**30
H200 = devices("H200")
SMALL, MIDDLE, LARGE = NAMED["smollm2-135m"], NAMED["qwen2.5-1.5b"], NAMED["qwen2.5-7b"]
STEP = Workload(
    SMALL, prompts_per_step=32, group_size=8, prompt_tokens=128, completion_tokens=512, micro_batch_tokens=20480,
    full_rows=True,
)  # fmt: skip


def values(name):
    return json.loads((RESULTS / f"{name}.json").read_text())["values"]


def states(plan, phase):
    """Gradients and moments of a phase, which a benchmark without an optimizer has none of."""
    found = [line for line in plan.lines if "gradients, fp32" in line.name or "moments" in line.name]
    return sum(line.bytes for line in found if phase in line.phases)


def test_peaks_measured_on_a_gpu_are_met():
    train = replace(STEP, shape=MIDDLE, prompts_per_step=8, micro_batch_tokens=8192, samples=False, draws=False)
    step, found = values("gpu_train_1.5b"), memory_plan(train, H200)
    assert found.allocated / GIB == pytest.approx(step["peak_GiB"] - step["held_before_GiB"], rel=0.05)
    step = values("gpu_step_135m")
    found = memory_plan(replace(STEP, micro_batch_tokens=step["micro_batch_tokens"]), H200)
    assert found.allocated / GIB == pytest.approx(step["peak_GiB"], rel=0.05)
    for count in (256, 1024):
        work = replace(STEP, prompts_per_step=count // 8)
        for shape, name in ((SMALL, "135m"), (MIDDLE, "1.5b")):
            found, measured = memory_plan(replace(work, shape=shape), H200), values(f"gpu_rollout_{name}")
            peak = measured[str(count)]["peak_GiB"] - measured["held_before_GiB"]
            assert (found.of("rollout") - states(found, "rollout")) / GIB == pytest.approx(peak, rel=0.05), (
                name,
                count,
            )


@pytest.mark.parametrize("name", ["gpu_plan_check", "plan_check_cpu"])
def test_recorded_peaks_are_met_within_a_tenth_by_the_planner_of_today(name, monkeypatch):
    monkeypatch.syspath_prepend(str(RESULTS.parent / "benchmarks"))
    import plan_check

    record = json.loads((RESULTS / f"{name}.json").read_text())
    cases = plan_check.rechecked(record, on_cpu=name.endswith("cpu"))["values"]["cases"]
    assert len(cases) >= (12 if name.startswith("gpu") else 7)
    for case, found in cases.items():
        assert found["plan_GiB"] == pytest.approx(record["values"]["cases"][case]["plan_GiB"], rel=1e-4), (
            f"{case}: the file shows another plan; run python benchmarks/plan_check.py --recheck, on the CPU with --cpu"
        )
        assert found["ratio"] == pytest.approx(1, abs=0.1), case


def training(plan):
    """Of the largest moment of an update, and the sampler's, which grows with the rows."""
    return sum(
        line.bytes
        for line in plan.lines
        if "train" in line.phases and (line.phases == ("train",) or line.name.startswith("sampler"))
    )


def test_gradients_are_not_there_before_the_first_backward_pass():
    """A step that is one pass has its activations before its gradients; a second pass finds them there."""
    one = replace(STEP, prompts_per_step=4, micro_batch_tokens=20480)
    two = replace(one, prompts_per_step=8)
    assert one.passes == (16864, 0) and two.passes == (16864, 16864)
    gradient = 4 * SMALL.weights
    found, twice = memory_plan(one, H200), memory_plan(two, H200)
    assert found.of("train") - training(found) == pytest.approx(
        twice.of("train") - training(twice) - gradient, rel=1e-9
    )
    rest = replace(one, prompts_per_step=6)  # the second pass is smaller
    assert rest.passes == (16864, 2 * 4216)
    assert memory_plan(rest, H200).of("train") < memory_plan(two, H200).of("train")


def test_updates_share_the_rows_of_a_step():
    from whet.training.rl_trainer import minibatches

    work = replace(STEP, prompts_per_step=16, group_size=4, updates=4, prompt_tokens=256, completion_tokens=256)
    assert work.update_rows == (16, 16) and work.passes == (16 * 511, 0)
    for rows in minibatches(64, 4, 0, 1):
        assert len(rows) == 16 and len({row // 4 for row in rows}) * 256 + 16 * 255 <= work.pass_tokens
    assert work.score_tokens > work.pass_tokens  # scores are taken of the whole step
    assert replace(work, updates=4, epochs=4).update_rows == (16, 64)
    ppo = replace(work, needs=frozenset(("value", "old_logp")))
    narrow, wide = (memory_plan(replace(ppo, critic_recompute=each), H200).of("train") for each in (None, "none"))
    assert wide > narrow


def test_a_long_row_is_met():
    row = Workload(
        replace(MIDDLE, context=0), prompts_per_step=1, group_size=1, prompt_tokens=8, completion_tokens=32760,
        micro_batch_tokens=32768, samples=False, draws=False,
    )  # fmt: skip
    found, measured = memory_plan(row, H200), values("gpu_long_1.5b")
    assert (found.of("train") - states(found, "train")) / GIB == pytest.approx(measured["peak_GiB"], rel=0.05)


def test_the_constants_are_those_of_the_code():
    from whet.model import head
    from whet.rollout import cuda_decode, scheduler

    ours = (memory.CHUNK_ELEMENTS, memory.DEVICE_CHUNKS, memory.KERNEL_CHUNKS, memory.PREFILL_TOKENS)
    assert ours == (head.CHUNK_ELEMENTS, head.DEVICE_CHUNKS, head.KERNEL_CHUNKS, scheduler.PREFILL_TOKENS)
    names = ("SMALLEST", "KEPT_SHARE", "USED_SHARE", "MERGED_SHARE")
    assert [getattr(memory, name) for name in names] == [getattr(cuda_decode, name) for name in names]
    assert cuda_decode._whole_blocks(1) == memory.BLOCK


def test_passes_are_cut_as_the_loop_cuts_them():
    import torch

    from whet.data.packing import token_micro_batches
    from whet.types import TokenBatch

    for prompt, completion, prompts, group, most in (
        (128, 512, 8, 8, 8192),
        (5, 7, 6, 4, 40),
        (5, 7, 3, 9, 30),
        (3, 9, 2, 2, 5),
    ):
        work = replace(
            STEP, prompt_tokens=prompt, completion_tokens=completion, prompts_per_step=prompts, group_size=group,
            micro_batch_tokens=most,
        )  # fmt: skip
        rows, width = prompts * group, prompt + completion
        tokens = torch.arange(rows)[:, None] * width + torch.arange(width)
        tokens[:, :prompt] = (torch.arange(rows) // group)[:, None]
        action = (torch.arange(width) >= prompt).expand(rows, -1)
        batch = TokenBatch(tokens=tokens, action=action, group=torch.arange(rows) // group, reward=torch.zeros(rows))
        largest = max(
            len({row // group for row in rows}) * prompt + len(rows) * (completion - 1)
            for rows in token_micro_batches(batch, most, shared="prompts")
        )
        assert work.pass_tokens == largest, (prompt, completion, group, most)
        assert replace(work, full_rows=False).pass_tokens >= min(largest, most)


def leaf_rows(branching, turns, length, prompt):
    """The leaves of one episode whose turns all have so many tokens, as the rule of a run draws them."""
    fresh = itertools.count(1000)
    rows = []

    def play(tokens, turn, leaves):
        tokens = [*tokens, *itertools.islice(fresh, length)]
        if turn == turns:
            rows.append(tokens)
            return
        for share in shared_out(leaves, branching.num_draws(leaves, 1, 0.0, (0,))):
            play(tokens, turn + 1, share)

    play(list(range(prompt)), 1, branching.leaves)
    return rows


@for_every([(2, 2, 2), (3, 2, 4), (4, 2, 8), (5, 3, 7), (8, 2, 4), (6, 4, 9), (4, 4, 64)])
def test_leaves_that_share_their_beginnings_count_once(turns, width, leaves):
    rows = leaf_rows(Branching("turns", leaves, width), turns, 24, 40)
    tokens = torch.tensor(rows)
    action = torch.zeros_like(tokens, dtype=torch.bool)
    action[:, 40:] = True
    work = Workload(
        SMALL, prompts_per_step=1, group_size=leaves, prompt_tokens=40, completion_tokens=24 * turns, turns=turns,
        leaves=leaves, branch_width=width, micro_batch_tokens=1 << 20,
    )  # fmt: skip
    computed = shared_prefix_batch(tokens, action, deep=True).size
    assert len(rows) == leaves and work.computed_share < 1
    assert work.pass_tokens == pytest.approx(computed, abs=leaves)  # nothing is predicted from a row's last token
    assert (work.path_keys > 1) is (work.pass_tokens < 40 + leaves * (24 * turns - 1))
    assert replace(work, leaves=1).path_keys == 0
    # several updates shuffle the rows, and then few share anything
    assert replace(work, updates=2).pass_tokens > computed / 2
    assert memory_plan(work, H200).rows == 16 * -(-leaves // 16)  # the sampler has a row for each leaf


def test_episodes_are_planned_at_their_longest_and_a_missing_environment_is_said():
    game = {"env": {"name": "gym", "settings": {"id": "FrozenLake-v1"}, "max_turns": 6, "leaves": 3}}
    sizes = {"model": "1.5B", "gpus": "1x80GB", "prompt_tokens": 100, "completion_tokens": 64}
    one = plan("rloo_tree", **sizes)
    assert one.work.completion_tokens == 64 and "name their environment" in plan_text(one)
    tree = plan("rloo_tree", **sizes, settings=game)
    work = tree.work
    assert (work.completion_tokens, work.written_tokens, work.turns) == (2 * 6 * 64, 6 * 64, 6)
    assert work.group_size == one.work.group_size * 3 and work.leaves == 3
    assert "they have 83% of the tokens" in plan_text(tree)  # (1 + 2 + 4 x 3) / (6 x 3)
    chain = plan("grpo", **sizes, settings={"env": {"name": "gym", "settings": {"id": "x"}, "max_turns": 6}})
    assert chain.work.computed_share == 1 and chain.memory.of("rollout") > plan("grpo", **sizes).memory.of("rollout")
    alone = plan("rloo_tree", **sizes, settings={"env": {**game["env"], "max_turns": 1}}).work
    assert alone.group_size == one.work.group_size and alone.leaves == 1
    bound = plan("grpo", **sizes | {"model": "smollm2"}, settings={"env": {"name": "gym", "max_turns": 400}})
    assert bound.work.completion_tokens == bound.work.shape.context - 100


def test_every_copy_has_its_lines():
    names = {line.name: line for line in memory_plan(replace(STEP, needs=frozenset(("value", "ref_logp"))), H200).lines}
    assert names["policy: weights, fp32"].bytes == 4 * SMALL.weights
    assert names["reference: weights, fp32"].bytes == 4 * SMALL.weights
    assert names["critic: AdamW's two moments, fp32"].bytes == 8 * SMALL.weights
    assert all(any(letter.isdigit() for letter in line.formula) or "as the" in line.formula for line in names.values())
    shared = memory_plan(replace(STEP, needs=frozenset(("value",)), critic="shared"), H200)
    assert not any(line.name.startswith(("critic", "reference")) for line in shared.lines)
    reload = memory_plan(replace(STEP, needs=frozenset(("ref_logp",)), reference="reload"), H200)
    assert [line.phases for line in reload.lines if line.name.startswith("reference")] == [("scores",)] * 2
    judged = memory_plan(replace(STEP, reward_model=MIDDLE), H200)
    assert any("reward model" in line.name and line.bytes == 2 * MIDDLE.weights for line in judged.lines)


def test_narrow_weights_and_moments():
    narrow = memory_plan(replace(STEP, weights="bfloat16", moments="int8"), H200)
    names = {line.name: line.bytes for line in narrow.lines}
    assert names["policy: weights, bf16, one copy"] == names["policy: gradients, bf16"] == 2 * SMALL.weights
    assert names["policy: AdamW's two moments, int8"] == pytest.approx(2 * SMALL.weights, rel=0.02)
    assert "policy: copy for the products, bf16" not in names
    adapted = replace(STEP, shape=LARGE, lora_rank=16, needs=frozenset(("ref_logp",)))
    # as results/gpu_small.json has it, which ran under a cap of 24 GB
    small = replace(adapted, prompts_per_step=4, group_size=4, prompt_tokens=256, micro_batch_tokens=2048)
    small = replace(small, recompute="layers")
    assert memory_plan(small, devices("24GB")).fits
    assert memory_plan(small, devices("24GB")).allocated / 1e9 == pytest.approx(
        values("gpu_small")["lora_7b"]["peak_GB"], rel=0.1
    )
    bits = replace(small, base="4bit")
    assert memory_plan(bits, devices("24GB")).total < memory_plan(small, devices("24GB")).total - 8e9
    assert memory_plan(replace(small, base="float32"), devices("24GB")).total > 40e9


def test_shards_are_a_share():
    work = replace(STEP, shape=LARGE, needs=frozenset(("ref_logp",)), micro_batch_tokens=8192)
    one, eight = (plan_for(work, devices(f"{count}x80GB")) for count in (1, 8))
    lines = {line.name: line.bytes for line in eight.memory.lines}
    assert lines["policy: AdamW's two moments, fp32"] == LARGE.weights == lines["policy: weights in shards, fp32"] * 2
    assert lines["sampler: a whole copy of the policy"] >= 2 * LARGE.weights and eight.fits and not one.fits
    assert 4 * eight.time.step < one.time.step and "8 ranks" in plan_text(eight)
    assert eight.memory.loading >= 4 * LARGE.weights and "ranks read the whole model" in plan_text(eight)
    assert not plan_for(replace(work, shape=NAMED["qwen2.5-32b"]), devices("64x80GB")).fits  # 131 GB before it is cut
    away = plan_for(replace(work, offload=True), devices("8x80GB"))
    assert away.memory.of("train") < eight.memory.of("train") - 15e9  # both read the whole model first
    apart = plan_for(replace(work, engines=4), devices("8x80GB"))
    assert not any(line.name.startswith("sampler") for line in apart.memory.lines) and apart.work.ranks == 4
    with pytest.raises(WhetError, match=r"scale\.engines is 8 and .* leave no device to train on"):
        plan_for(replace(work, engines=8), devices("8x80GB"))


def test_what_is_said_to_save_does():
    work = replace(STEP, shape=LARGE, needs=frozenset(("ref_logp",)), recompute="none")
    found = plan_for(work, devices("80GB"))
    assert not found.fits and found.together is not None and found.together.fits
    saves = [each.saves for each in found.suggestions]
    assert saves == sorted(saves, reverse=True) and min(saves) > 0
    assert {each.settings.partition("=")[0] for each in found.suggestions} >= {
        "model.lora",
        "model.recompute",
        "model.reference",
    }
    by_recompute = [memory_plan(replace(work, recompute=each), H200).of("train") for each in ("none", "wide", "layers")]
    assert by_recompute == sorted(by_recompute, reverse=True) and len(set(by_recompute)) == 3
    fine = plan_for(STEP, H200)
    assert fine.fits and fine.together is None and fine.verdict.startswith("fits")


def test_a_crowded_device_writes_fewer_rows():
    few, many = (memory_plan(replace(STEP, prompts_per_step=128), Devices(1, size)) for size in (12e9, 140e9))
    assert few.rows < few.wanted_rows == many.rows == 1024 and few.rows % memory.SMALLEST == 0


def test_the_page_and_the_record_say_the_same():
    found = plan_for(replace(STEP, needs=frozenset(("ref_logp",))), devices("2xA100-80GB"))
    text, record = plan_text(found), json.loads(json.dumps(plan_record(found)))
    assert record["memory"]["bytes"] == found.memory.total and record["fits"] is True
    assert found.verdict in text and all(line.name in text and line.formula in text for line in found.memory.lines)
    assert record["seconds"]["step"] == pytest.approx(sum(record["seconds"]["phases"].values()))
    assert "results/gpu_train_1.5b.json" in text and "scaled by published peaks" in text
    assert set(record["memory"]["by_phase"]) == set(PHASES)


@for_every(
    [
        ("", "give a count and a memory such as 8x80GB"),
        ("eight", "no card is called 'eight'"),
        ("0x80GB", "0 devices; give 1 to"),
        ("8x80", "give a count and a memory"),
        ("8x0GB", "give 0.1 to 10000 GB"),
        ("9999999x80GB", "give 1 to 1,000,000"),
        ("2xH10", "did you mean"),
        ("cpu", "no card is called 'cpu'"),
        ("cpu:2x8GB", "give cpu:8GB"),
        ("-1x80GB", "give a count and a memory"),
    ]
)
def test_devices_that_cannot_be_are_refused(text, line):
    with pytest.raises(WhetError, match=r".") as error:
        devices(text)
    assert line in str(error.value) and "\n" not in str(error.value)


def test_devices_are_read():
    assert devices("8x80GB") == Devices(8, 80e9) and devices("24gib").memory == 24 * 2**30
    assert devices("2xh100").card.name == "H100" and devices("cpu:16GB").is_cpu


def test_rows_longer_than_the_context_are_refused():
    with pytest.raises(WhetError, match="exceed the context of 8192 that smollm2-135m has; give fewer"):
        replace(STEP, completion_tokens=9000)


def test_the_base_of_adapters_is_planned_as_it_is_loaded():
    kept = [_base("auto", compute, on_cpu) for compute, on_cpu in (("bf16", False), ("bf16", True), ("float32", False))]
    assert kept == ["bfloat16", "float32", "float32"] and _base("float32", "bf16", False) == "float32"


def test_products_in_bfloat16_copy_the_head_once_more_where_it_learns_on_a_gpu():
    def copies(on_cpu, learns, compute="bf16"):
        parts = {
            name: words for name, _, words in memory._head(replace(STEP, on_cpu=on_cpu, compute=compute), learns, 64)
        }
        return parts.get("head: weight and gradient", "").partition(" copies")[0].rpartition("(")[2]

    assert [copies(False, True), copies(False, False), copies(True, True), copies(True, False)] == ["2", "1", "1", "1"]
    assert copies(True, False, "fp32") == ""


def test_matrices_with_the_adapters_in_them_are_kept_where_there_is_room():
    adapted = replace(STEP, lora_rank=8, base="bfloat16")
    (line,) = memory._merged_adapters(adapted, 141e9)
    assert line.bytes == 2 * SMALL.adapted_weights and "x 2 bytes" in line.formula
    assert not [*memory._merged_adapters(adapted, line.bytes)] and not [*memory._merged_adapters(STEP, 141e9)]
