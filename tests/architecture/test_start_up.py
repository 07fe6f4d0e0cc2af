"""Starting is quick because little is imported. Not timed: the set of packages is what decides."""

import json
import subprocess
import sys

import pytest

HEAVY = {"torch", "numpy", "transformers", "pydantic", "tokenizers", "safetensors", "rich", "sympy", "pandas"}
STANDARD = set(sys.stdlib_module_names)
PROBE = (
    "import json, sys\n"
    "before = set(sys.modules)\n"
    "{work}\n"
    "print(json.dumps(sorted(set(sys.modules) - before)), file=sys.stderr)\n"
)
HELP = (
    "sys.argv = ['whet', '--help']\n"
    "from whet.cli import main\n"
    "try:\n"
    "    main()\n"
    "except SystemExit as ended:\n"
    "    assert not ended.code\n"
)


def imported(work):
    done = subprocess.run([sys.executable, "-c", PROBE.format(work=work)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stderr.strip().splitlines()[-1]))


def outside(modules):
    return {each.split(".")[0] for each in modules} - STANDARD


def test_importing_whet_imports_nothing_but_its_front():
    found = imported("import whet")
    assert {each for each in found if each.startswith("whet")} == {"whet"}
    assert outside(found) == {"whet"}


def test_help_needs_the_command_line_only():
    found = imported(HELP)
    own = {each for each in found if each.startswith("whet")}
    assert {each for each in own if not each.startswith("whet.cli.")} == {
        "whet",
        "whet.cli",
        "whet.settings",
        "whet.settings.bounds",  # constants alone
    }
    assert "typer" in found
    assert not outside(found) & HEAVY


@pytest.mark.parametrize("module", ["whet.tools.bench.meter"])
def test_instruments_for_other_environments_need_the_standard_library_only(module):
    assert outside(imported(f"import {module}")) == {"whet"}


@pytest.mark.parametrize("module", ["whet.objective", "whet.training.config", "whet.tools.advice.guide"])
def test_methods_and_settings_are_read_without_torch(module):
    assert not outside(imported(f"import {module}")) & {"torch", "numpy", "transformers", "rich"}


def test_a_run_loads_what_it_needs():
    """What only other runs use stands in modules that are imported where it is asked for."""
    loaded = imported("import whet.api.training, whet.training.assembly.rl, whet.training.assembly.rewards")
    others = (
        *("envs", "tools", "reward.sandbox", "reward.judge", "reward.learned", "reward.defences", "reward.mathematics"),
        *("rollout.vllm_engine", "rollout.openai_engine", "rollout.async_rollout", "rollout.logp_server"),
        *("model.gguf", "settings.foreign", "settings.migrate", "training.distributed.reward_workers"),
    )
    rooms = tuple(f"whet.{name}." for name in others)
    of_config = {"whet.envs", "whet.envs.sections"}
    assert [module for module in loaded - of_config if f"{module}.".startswith(rooms)] == []
    assert {"whet.rollout.torch_engine", "whet.training.rl_trainer"} <= loaded


def test_a_heavy_import_would_be_seen():
    assert outside(imported("import numpy")) & HEAVY == {"numpy"}
