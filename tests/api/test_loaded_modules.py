"""A run loads what it needs: not the environments, the sandbox, the board or the tools that it has no use for."""

import json

from tests.support.commands import finished

PROGRAM = """
import gc, json, sys
gc.unfreeze()
for name in [name for name in sys.modules if name.split(".")[0] == "whet"]:
    del sys.modules[name]  # torch and transformers stay: a run loads whet anew
sys.argv = ["whet", "train", "grpo", "--steps", "1", "--folder", sys.argv[1]]
for setting in ("batch.prompts_per_step=2", "batch.group_size=2", "eval.prompts=2", "data.count=8", "model.device=cpu"):
    sys.argv += ["--set", setting]
from whet.cli import main
try:
    main()
except SystemExit as ended:
    assert not ended.code
assert gc.get_freeze_count() > 100_000  # what the interpreter need not look at again before it ends
print(json.dumps([name for name in sys.modules if name.startswith("whet.")]), file=sys.stderr)
"""
# the plan says whether the run fits on the device, the meter how much memory it took
NEEDED = {"whet.tools", "whet.tools.planner", "whet.tools.bench", "whet.tools.bench.meter", "whet.envs.sections"}
UNUSED = ("whet.envs.", "whet.reward.sandbox", "whet.reward.code_tests", "whet.pages.board", "whet.pages.lab")
UNUSED += ("whet.tools.", "whet.training.distributed.ray_cluster", "whet.training.distributed.remote_engine")
UNUSED += ("whet.training.assembly.preference", "whet.training.assembly.reward_model", "whet.training.assembly.sft")


def test_a_run_on_a_task_loads_no_environment_no_sandbox_and_no_board(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = finished(str(program), str(tmp_path / "run"), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    loaded = set(json.loads(done.stderr.strip().splitlines()[-1]))
    assert "whet.training.rl_trainer" in loaded and "whet.training.assembly.rl" in loaded
    needless = [name for name in sorted(loaded - NEEDED) if name.startswith(UNUSED)]
    assert [name for name in needless if not name.startswith("whet.tools.planner.")] == []
