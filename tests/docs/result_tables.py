"""Whole tables and listings of the pages whose rows come from results/, by the name that stands in the page.

A line with {FILE/KEY/*} is repeated for every key there. `quoted_results.py` says how values are named.
"""

from __future__ import annotations

RESULT_TABLES = {
    "jobs": """\
| | job | lines | seconds |
|---|---|---|---|
| {jobs/jobs/*} | {jobs/jobs/*/title} | {jobs/jobs/*/lines:.0f} | {jobs/jobs/*/cpu_s:.0f} |
| | all | {jobs/lines:.0f} | {jobs/cpu_s:.0f} |""",
    "builtin_demo": """\
```text
eval at step 0  accuracy {builtin_demo/evals/0/accuracy:.1%}  reward {builtin_demo/evals/0/reward:#.3g}  completion tokens {builtin_demo/evals/0/completion_tokens:#.3g}  truncated {builtin_demo/evals/0/truncated:.1%}
step 1/40  reward {builtin_demo/steps/1/reward:#.3g}  KL {builtin_demo/steps/1/kl:.2g} nats  entropy {builtin_demo/steps/1/entropy:.3g} nats
...
eval at step 10  accuracy {builtin_demo/evals/10/accuracy:.1%}  reward {builtin_demo/evals/10/reward:#.3g}  completion tokens {builtin_demo/evals/10/completion_tokens:#.3g}  truncated {builtin_demo/evals/10/truncated:.1%}
...
step 40/40  reward {builtin_demo/steps/40/reward:#.3g}  KL {builtin_demo/steps/40/kl:.2g} nats  entropy {builtin_demo/steps/40/entropy:.3g} nats
eval at step 40  accuracy {builtin_demo/evals/40/accuracy:.1%}  reward {builtin_demo/evals/40/reward:#.3g}  completion tokens {builtin_demo/evals/40/completion_tokens:#.3g}  truncated {builtin_demo/evals/40/truncated:.1%}

finished

  accuracy           {builtin_demo/evals/0/accuracy:.1%} → {builtin_demo/evals/40/accuracy:.1%}
  reward             {builtin_demo/evals/0/reward:#.3g} → {builtin_demo/evals/40/reward:#.3g}
  completion tokens  {builtin_demo/evals/0/completion_tokens:#.3g} → {builtin_demo/evals/40/completion_tokens:#.3g}
  report             runs/grpo-001/report.html
  next               whet sample runs/grpo-001
```""",
    "data_tools": """\
| tool | processor seconds | wall seconds | peak memory, MB |
|---|---|---|---|
| {data_tools/tools/*} | {data_tools/tools/*/cpu_seconds:.1f} | {data_tools/tools/*/seconds:.1f} | {data_tools/tools/*/memory_mb:.0f} |""",
    "other_defaults": """\
| method, group | seeds | value | at the start | with today's | at its best | fine | losing |
|---|---|---|---|---|---|---|---|
| {teacher_defaults/rows/*} | {teacher_defaults/seeds} | `{teacher_defaults/rows/*/key}` | {teacher_defaults/rows/*/start:.1%} | {teacher_defaults/rows/*/at_today:.1%} ({teacher_defaults/rows/*/today}) | {teacher_defaults/rows/*/at_best:.1%} ({teacher_defaults/rows/*/best}) | {teacher_defaults/rows/*/fine} | {teacher_defaults/rows/*/losing} |
| {other_defaults/rows/*} | {other_defaults/seeds} | `{other_defaults/rows/*/key}` | {other_defaults/rows/*/start:.1%} | {other_defaults/rows/*/at_today:.1%} ({other_defaults/rows/*/today}) | {other_defaults/rows/*/at_best:.1%} ({other_defaults/rows/*/best}) | {other_defaults/rows/*/fine} | {other_defaults/rows/*/losing} |
| {adapter_defaults/rows/*} | {adapter_defaults/seeds} | `{adapter_defaults/rows/*/key}` | {adapter_defaults/rows/*/start:.1%} | {adapter_defaults/rows/*/at_today:.1%} ({adapter_defaults/rows/*/today}) | {adapter_defaults/rows/*/at_best:.1%} ({adapter_defaults/rows/*/best}) | {adapter_defaults/rows/*/fine} | {adapter_defaults/rows/*/losing} |""",
    "falls": """\
| what is done about a fall | runs | best | last | steps |
|---|---|---|---|---|
| {falls/rows/*} | {falls/rows/*/runs} of {falls/rows/*/of} | {falls/rows/*/best:.1%} | {falls/rows/*/last:.1%} | {falls/rows/*/steps:.0f} |""",
    "every_method": """\
| method | greedy before | greedy after | drawn, first step | drawn, last three | completions |
|---|---|---|---|---|---|
| {every_method/methods/*} | {every_method/methods/*/before:.0%} | {every_method/methods/*/after:.0%} | {every_method/methods/*/first:.0%} | {every_method/methods/*/last:.0%} | {every_method/methods/*/completions:.0f} |""",
    "families": """\
| training | decoding | families | gap, training | gap, decoding |
|---|---|---|---|---|
| {families/ways/*} | {families/ways/*/families} | {families/ways/*/training_gap:.0e} | {families/ways/*/decoding_gap:.0e} |""",
    "builtin_whetstone": """\
| task | greedy accuracy ({builtin_whetstone/arithmetic/greedy/prompts:.0f}) | pass@1, pass@8 when sampling ({builtin_whetstone/arithmetic/drawn/prompts:.0f}) |
|---|---|---|
| {builtin_whetstone/*} | {builtin_whetstone/*/greedy/accuracy:.0%} | {builtin_whetstone/*/drawn/pass@1:.0%}, {builtin_whetstone/*/drawn/pass@8:.0%} |""",
    "grpo_step_cpu": """\
| a step, two threads | whet | TRL 1.16 | times | useful operations, of the matrix rate |
|---|---|---|---|---|
| `{grpo_step_cpu/*}` | {grpo_step_cpu/*/sides/whet/step:.2f} s, {grpo_step_cpu/*/sides/whet/peak_GB:.1f} GB | {grpo_step_cpu/*/sides/trl/step:.2f} s, {grpo_step_cpu/*/sides/trl/peak_GB:.1f} GB | {grpo_step_cpu/*/sides/trl/times/step:.1f} | {grpo_step_cpu/*/sides/whet/shares/step:.0%} |
| `smollm2` | {grpo_step_cpu_smollm2/smollm2/sides/whet/step:.2f} s, {grpo_step_cpu_smollm2/smollm2/sides/whet/peak_GB:.1f} GB | {grpo_step_cpu_smollm2/smollm2/sides/trl/step:.2f} s, {grpo_step_cpu_smollm2/smollm2/sides/trl/peak_GB:.1f} GB | {grpo_step_cpu_smollm2/smollm2/sides/trl/times/step:.1f} | {grpo_step_cpu_smollm2/smollm2/sides/whet/shares/step:.0%} |""",
    "defaults": """\
| model, task, method, rate | steps | seeds | before | best | last | 95% interval of the last | truncated | entropy |
|---|---|---|---|---|---|---|---|---|
| {defaults/runs/*} | {defaults/runs/*/steps} | {defaults/runs/*/seeds} | {defaults/runs/*/before:.1%} | {defaults/runs/*/best:.1%} | {defaults/runs/*/last:.1%} | {defaults/runs/*/low:.1%} to {defaults/runs/*/high:.1%} | {defaults/runs/*/truncated:.1%} | {defaults/runs/*/entropy:.2f} |""",
    "defaults_longer": """\
| model, task, method, rate | steps | seeds | before | best | last | 95% interval of the last | truncated | entropy |
|---|---|---|---|---|---|---|---|---|
| {defaults_longer/runs/*} | {defaults_longer/runs/*/steps} | {defaults_longer/runs/*/seeds} | {defaults_longer/runs/*/before:.1%} | {defaults_longer/runs/*/best:.1%} | {defaults_longer/runs/*/last:.1%} | {defaults_longer/runs/*/low:.1%} to {defaults_longer/runs/*/high:.1%} | {defaults_longer/runs/*/truncated:.1%} | {defaults_longer/runs/*/entropy:.2f} |""",
    "real_run": """\
| share of the wall time | code: GRPO on MBPP | maths: Dr. GRPO on GSM8K |
|---|---|---|
| rollout | {real_run/code/shares/rollout:.1%} | {real_run/maths/shares/rollout:.1%} |
| train | {real_run/code/shares/train:.1%} | {real_run/maths/shares/train:.1%} |
| reference | {real_run/code/shares/reference:.1%} | - |
| reward | {real_run/code/shares/reward:.1%} | {real_run/maths/shares/reward:.1%} |
| evaluate | {real_run/code/shares/evaluate:.1%} | {real_run/maths/shares/evaluate:.1%} |
| save | {real_run/code/shares/save:.1%} | {real_run/maths/shares/save:.1%} |
| start_up | {real_run/code/shares/start_up:.1%} | {real_run/maths/shares/start_up:.1%} |
| other | {real_run/code/shares/other:.1%} | {real_run/maths/shares/other:.1%} |
| wall time | {real_run/code/wall_s:.0f} s, {real_run/code/steps} steps | {real_run/maths/wall_s:.0f} s, {real_run/maths/steps} steps |
| tokens per second of rollout | {real_run/code/rollout_tokens_per_s:,.0f} | {real_run/maths/rollout_tokens_per_s:,.0f} |
| accuracy, before and after | {real_run/code/before/accuracy:.1%}, {real_run/code/after/accuracy:.1%} | {real_run/maths/before/accuracy:.1%}, {real_run/maths/after/accuracy:.1%} |""",
    "agents_cpu": """\
| a step | whet | TRL 1.16 | times | processor seconds, times | read by whet and by TRL |
|---|---|---|---|---|---|
| `{agents_cpu/*}` | {agents_cpu/*/sides/whet/step:.1f} s, {agents_cpu/*/sides/whet/peak_GB:.1f} GB | {agents_cpu/*/sides/trl/step:.1f} s, {agents_cpu/*/sides/trl/peak_GB:.1f} GB | {agents_cpu/*/sides/trl/times/step:.1f} | {agents_cpu/*/sides/trl/times/cpu:.1f} | {agents_cpu/*/computed/whet/read:,} and {agents_cpu/*/computed/trl/read:,} tokens |""",
    "agents_gpu": """\
| of the single-turn rate | the engine's session | environments that answer in text | environments with a tool | single turn |
|---|---|---|---|---|
| {agents_gpu_135m/*} | {agents_gpu_135m/*/multi_share:.0%} | {agents_gpu_135m/*/episodes_share:.0%} | {agents_gpu_135m/*/tools_share:.0%} | {agents_gpu_135m/*/single_tokens_per_s:,.0f} tokens/s |
| {agents_gpu/*} | {agents_gpu/*/multi_share:.0%} | {agents_gpu/*/episodes_share:.0%} | {agents_gpu/*/tools_share:.0%} | {agents_gpu/*/single_tokens_per_s:,.0f} tokens/s |""",
    "math_verification": """\
| pairs | whet, per second | math-verify | the same verdict |
|---|---|---|---|
| {math_verification/kinds/*} | {math_verification/kinds/*/per_s:,.0f} | {math_verification/kinds/*/math_verify_per_s:,.0f} | {math_verification/kinds/*/same_verdict} of {math_verification/kinds/*/pairs} |""",
    "gpu_plan_check": """\
| one GPU | what | plan, GiB | peak, GiB | plan / peak |
|---|---|---|---|---|
| {gpu_plan_check/cases/*} | {?gpu_plan_check/cases/*/what} | {?gpu_plan_check/cases/*/plan_GiB:.1f} | {?gpu_plan_check/cases/*/peak_GiB:.1f} | {?gpu_plan_check/cases/*/ratio:.2f} |""",
    "plan_check_cpu": """\
| the CPU | what | plan, GiB | peak, GiB | plan / peak |
|---|---|---|---|---|
| {plan_check_cpu/cases/*} | {?plan_check_cpu/cases/*/what} | {?plan_check_cpu/cases/*/plan_GiB:.2f} | {?plan_check_cpu/cases/*/peak_GiB:.2f} | {?plan_check_cpu/cases/*/ratio:.2f} |""",
    "real_word_problems": """\
| | SVAMP, {real_word_problems/data/eval/svamp} questions | held-out ASDiv and MAWPS, {real_word_problems/data/eval/held_out} | GSM8K test, {real_word_problems/data/eval/gsm8k} | tokens | entropy | sampler gap | seconds | seeds |
|---|---|---|---|---|---|---|---|---|
| before | {real_word_problems/before/svamp:.1%} | {real_word_problems/before/held_out:.1%} | {real_word_problems/before/gsm8k:.1%} | | | | | |
| after SFT | {real_word_problems/sft/svamp:.1%} | {real_word_problems/sft/held_out:.1%} | {real_word_problems/sft/gsm8k:.1%} | {real_word_problems/runs/0/stages/0/completion_tokens:.0f} | | | {real_word_problems/sft/seconds/train:.0f} | |
| `{real_word_problems/methods/*}`, {real_word_problems/epochs} epochs | {real_word_problems/methods/*/svamp/mean:.1%} | {real_word_problems/methods/*/held_out/mean:.1%} | {real_word_problems/methods/*/gsm8k/mean:.1%} | {real_word_problems/methods/*/completion_tokens:.0f} | {real_word_problems/methods/*/entropy:.2f} | {real_word_problems/methods/*/sampler_gap:.4f} | {real_word_problems/methods/*/seconds:.0f} | {real_word_problems/methods/*/seeds} |""",
    "real_r1": """\
| after | SVAMP, {real_r1/evals/base/svamp/prompts} | held-out ASDiv and MAWPS, {real_r1/evals/base/held_out/prompts} | GSM8K test, {real_r1/evals/base/gsm8k/prompts} | pass@8 | majority of 16 | tokens |
|---|---|---|---|---|---|---|
| {real_r1/evals/*} | {real_r1/evals/*/svamp/accuracy/mean:.1%} ± {real_r1/evals/*/svamp/accuracy/std:.1%} | {real_r1/evals/*/held_out/accuracy/mean:.1%} ± {real_r1/evals/*/held_out/accuracy/std:.1%} | {real_r1/evals/*/gsm8k/accuracy/mean:.1%} ± {real_r1/evals/*/gsm8k/accuracy/std:.1%} | {real_r1/evals/*/all/pass_at_8/mean:.1%} | {real_r1/evals/*/all/majority_at_16/mean:.1%} | {real_r1/evals/*/all/completion_tokens/mean:.0f} |""",
    "real_distill": """\
| | SVAMP | held-out ASDiv and MAWPS | GSM8K test | pass@8 | majority of 16 |
|---|---|---|---|---|---|
| {real_distill/evals/*} | {real_distill/evals/*/svamp/accuracy/mean:.1%} ± {real_distill/evals/*/svamp/accuracy/std:.1%} | {real_distill/evals/*/held_out/accuracy/mean:.1%} ± {real_distill/evals/*/held_out/accuracy/std:.1%} | {real_distill/evals/*/gsm8k/accuracy/mean:.1%} ± {real_distill/evals/*/gsm8k/accuracy/std:.1%} | {real_distill/evals/*/all/pass_at_8/mean:.1%} | {real_distill/evals/*/all/majority_at_16/mean:.1%} |""",
    "builtin_rlhf": """\
| | steps, or n | spent | win rate by the judge | at equal length | by the reward model | KL | tokens | truth: accuracy |
|---|---|---|---|---|---|---|---|---|
| sft | | | | | | | {builtin_rlhf/start/tokens:.1f} | {builtin_rlhf/start/accuracy/value:.1%} ({builtin_rlhf/start/accuracy/low:.1%} to {builtin_rlhf/start/accuracy/high:.1%}) |
| {builtin_rlhf/ways/*} | {builtin_rlhf/ways/*/steps} | {builtin_rlhf/ways/*/spent:.0%} | {builtin_rlhf/ways/*/win_rate/value:.1%} ({builtin_rlhf/ways/*/win_rate/low:.1%} to {builtin_rlhf/ways/*/win_rate/high:.1%}) | {builtin_rlhf/ways/*/win_rate_same_length/value:.1%} | {builtin_rlhf/ways/*/win_rate_reward_model/value:.1%} | {builtin_rlhf/ways/*/kl/value:.2f} | {builtin_rlhf/ways/*/tokens:.1f} | {builtin_rlhf/ways/*/accuracy/value:.1%} ({builtin_rlhf/ways/*/accuracy/low:.1%} to {builtin_rlhf/ways/*/accuracy/high:.1%}) |""",
    "builtin_rlhf_ties": """\
| weight of the KL | grpo: accuracy, least to most | KL | ppo: accuracy, least to most | KL |
|---|---|---|---|---|
| {builtin_rlhf_ties/ties/*} | {builtin_rlhf_ties/ties/*/grpo/accuracy/mean:.1%} ({builtin_rlhf_ties/ties/*/grpo/accuracy/least:.1%} to {builtin_rlhf_ties/ties/*/grpo/accuracy/most:.1%}) | {builtin_rlhf_ties/ties/*/grpo/kl/mean:.2f} | {builtin_rlhf_ties/ties/*/ppo/accuracy/mean:.1%} ({builtin_rlhf_ties/ties/*/ppo/accuracy/least:.1%} to {builtin_rlhf_ties/ties/*/ppo/accuracy/most:.1%}) | {builtin_rlhf_ties/ties/*/ppo/kl/mean:.2f} |""",
    "builtin_self_rewarding": """\
| method, seed or rate | at the start | round 1 | round 2 | round 3 |
|---|---|---|---|---|
| {builtin_self_rewarding/*} | {builtin_self_rewarding/*/rounds/0/0:.1%} | {builtin_self_rewarding/*/rounds/1/0:.1%} | {builtin_self_rewarding/*/rounds/2/0:.1%} | {builtin_self_rewarding/*/rounds/3/0:.1%} |""",
    "real_rlhf_smollm2": """\
| | steps, or n | spent | win rate by the judge | at equal length | by the reward model | KL | tokens |
|---|---|---|---|---|---|---|---|
| {real_rlhf_smollm2/ways/*} | {real_rlhf_smollm2/ways/*/steps:.0f} | {real_rlhf_smollm2/ways/*/spent:.0%} | {real_rlhf_smollm2/ways/*/win_rate/mean:.1%} ({real_rlhf_smollm2/ways/*/win_rate/low:.1%} to {real_rlhf_smollm2/ways/*/win_rate/high:.1%}) | {real_rlhf_smollm2/ways/*/win_rate_same_length/mean:.1%} | {real_rlhf_smollm2/ways/*/win_rate_reward_model/mean:.1%} | {real_rlhf_smollm2/ways/*/kl:.2f} | {real_rlhf_smollm2/ways/*/tokens:.0f} |""",
    "trust_hacking": """\
| what | held | |
|---|---|---|
| {trust_hacking/rows/*} | {trust_hacking/rows/*/held:,} of {trust_hacking/rows/*/tried:,} | {trust_hacking/rows/*/note} |""",
    "trust_math": """\
| what | held | |
|---|---|---|
| {trust_math/rows/*} | {trust_math/rows/*/held:,} of {trust_math/rows/*/tried:,} | {trust_math/rows/*/note} |""",
    "trust_code": """\
| what | held | |
|---|---|---|
| {trust_code/rows/*} | {trust_code/rows/*/held:,} of {trust_code/rows/*/tried:,} | {trust_code/rows/*/note} |""",
    "trust_judge": """\
| what | held | |
|---|---|---|
| {trust_judge/rows/*} | {trust_judge/rows/*/held:,} of {trust_judge/rows/*/tried:,} | {trust_judge/rows/*/note} |""",
    "trust_sandbox": """\
| what | held | |
|---|---|---|
| {trust_sandbox/rows/*} | {trust_sandbox/rows/*/held:,} of {trust_sandbox/rows/*/tried:,} | {trust_sandbox/rows/*/note} |""",
    "trust_inputs": """\
| what | held | |
|---|---|---|
| {trust_inputs/rows/*} | {trust_inputs/rows/*/held:,} of {trust_inputs/rows/*/tried:,} | {trust_inputs/rows/*/note} |""",
    "trust_chaos": """\
| what | held | |
|---|---|---|
| {trust_chaos/rows/*} | {trust_chaos/rows/*/held:,} of {trust_chaos/rows/*/tried:,} | {trust_chaos/rows/*/note} |""",
}

# two sweeps by one script
RESULT_TABLES["policy_defaults"] = "\n".join(
    line.replace("other_defaults", "policy_defaults")
    for line in RESULT_TABLES["other_defaults"].splitlines()
    if "teacher_defaults" not in line and "adapter_defaults" not in line
)
