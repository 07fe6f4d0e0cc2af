"""What changes a reward's hash, and what does not."""

import importlib.metadata
import os
import re
import subprocess
import sys
import textwrap
from decimal import Decimal
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.support.for_every import for_every
from whet.reward import version
from whet.reward.call import as_reward
from whet.reward.combine import Gate, RewardPart
from whet.reward.find import BUILTIN, find_reward
from whet.reward.version import (
    parts_version,
    pieces_hash,
    reward_hash,
    reward_version,
    version_changes,
)
from whet.types import Prompt, WhetError

ROOT = Path(__file__).parents[2]
REWARD = """
    import json
    import torch
    from whet.types import Prompt
    import helper_for_rewards

    LIMIT = 10

    def judged(prompt, completion, *, bonus=0.5):
        import math_verify.parser
        return len(completion) / LIMIT + bonus

    def other(completion):
        return 0.0
"""


def write(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(textwrap.dedent(text))


def project(folder: Path) -> Path:
    folder.mkdir()
    write(folder, "rewards.py", REWARD)
    write(folder, "helper_for_rewards.py", "value = 1.0\n")
    return folder


def hash_in_a_new_process(
    folder: Path, name: str = "rewards.py:judged", seed: str = "0", cwd: Path | None = None
) -> str:
    imports = "from whet.reward.find import find_reward\nfrom whet.reward.version import reward_hash"
    code = f"{imports}\nprint(reward_hash(find_reward({name!r})))"
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd or folder, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def pieces_of(folder: Path, name: str = "judged") -> dict[str, str]:
    """In this process, without what an earlier import of the same names left behind."""
    for loaded in [each for each in sys.modules if "for_rewards" in each or each.startswith("whet_reward:")]:
        del sys.modules[loaded]
    sys.path.insert(0, str(folder))
    try:
        return dict(reward_version(find_reward(str(folder / f"rewards.py:{name}"))).pieces)
    finally:
        sys.path.remove(str(folder))


def test_a_hash_is_the_same_in_every_process_and_folder(tmp_path):
    first, second = project(tmp_path / "one"), project(tmp_path / "two")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(second))
        here = reward_hash(find_reward(f"{second}/rewards.py:judged"))
    assert hash_in_a_new_process(first, "rewards:judged", seed="1") == here
    assert re.fullmatch("[0-9a-f]{12}", here)


def test_the_pieces_are_the_file_the_settings_and_the_packages(tmp_path):
    pieces = pieces_of(project(tmp_path / "project"))
    packages = {"package math-verify", "package torch", "package whet"}
    assert set(pieces) - {"package whet"} == {"name in its file", "file rewards.py", "setting bonus", *packages} - {
        "package whet"
    }
    assert pieces["setting bonus"] == "0.5"
    assert pieces["package torch"] == torch.__version__.partition("+")[0]
    assert pieces["name in its file"] == "judged"


@pytest.mark.parametrize(
    ("before", "after"),
    [("/ LIMIT", "/ LIMIT + 1"), ("LIMIT = 10", "LIMIT = 11"), ("return 0.0", "return 1.0"), ("import json", "# json")],
)
def test_every_change_of_its_own_file_is_a_new_version(tmp_path, before, after):
    folder = project(tmp_path / "project")
    old = pieces_of(folder)
    text = (folder / "rewards.py").read_text()
    assert before in text
    (folder / "rewards.py").write_text(text.replace(before, after))
    assert version_changes(old, pieces_of(folder)) == ["file rewards.py changed"]


def test_two_rewards_of_one_file_are_told_apart(tmp_path):
    folder = project(tmp_path / "project")
    assert pieces_hash(pieces_of(folder)) != pieces_hash(pieces_of(folder, "other"))


def test_another_release_of_a_package_is_a_new_version(tmp_path, monkeypatch):
    folder = project(tmp_path / "project")
    old = pieces_of(folder)
    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "9.9+cpu" if name == "torch" else real(name))
    version._package.cache_clear()
    try:
        assert version_changes(old, pieces_of(folder)) == [f"package torch {old['package torch']} -> 9.9"]
    finally:
        version._package.cache_clear()


def test_line_ends_and_neighbours_are_not_tracked(tmp_path):
    """The page says so: a version is about the reward's own file."""
    folder = project(tmp_path / "project")
    old = pieces_of(folder)
    file = folder / "rewards.py"
    file.write_bytes(file.read_bytes().replace(b"\n", b"  \r\n"))
    write(folder, "helper_for_rewards.py", "value = 2.0\n")
    assert version_changes(old, pieces_of(folder)) == []


def tolerant(prompt, completion, *, tolerance: float = 0.01) -> float:
    return tolerance


def test_settings_count_by_their_value():
    plain = reward_hash(as_reward(tolerant))
    assert reward_hash(as_reward(partial(tolerant, tolerance=0.02), "tolerant")) != plain
    assert reward_hash(as_reward(partial(tolerant, tolerance=0.01), "tolerant")) == plain  # the default, said aloud
    assert reward_hash(tolerant) == plain


def test_the_name_of_a_part_is_no_content_but_its_weight_and_place_are():
    one, other = as_reward(tolerant), as_reward(tolerant, "renamed")
    assert reward_hash(one) == reward_hash(other)
    format_part = RewardPart(find_reward("think_format"))
    hashes = {
        parts_version([RewardPart(one), format_part]).hash,
        parts_version([format_part, RewardPart(one)]).hash,
        parts_version([RewardPart(one, 2.0), format_part]).hash,
        parts_version([RewardPart(one), RewardPart(find_reward("think_format"), gate=Gate("tolerant"))]).hash,
    }
    assert len(hashes) == 4


class Stateful:
    """A reward of one's own, with a cache."""

    name = "stateful"

    def __init__(self, strictness: float) -> None:
        self.strictness = strictness
        self.cache: dict[str, float] = {}

    @property
    def made_of(self) -> dict[str, float]:
        return {"strictness": self.strictness}

    def __call__(self, prompts, samples):
        return [self.strictness for _ in samples]


def test_an_object_counts_what_it_says_it_is_made_of():
    used, fresh = Stateful(0.5), Stateful(0.5)
    used.cache["x"] = 1.0
    assert reward_hash(used) == reward_hash(fresh) != reward_hash(Stateful(0.6))


def test_packages_of_a_builtin_count_by_their_version():
    pieces = reward_version(find_reward("math_answer")).pieces
    assert pieces["package math-verify"] == importlib.metadata.version("math-verify")
    assert "file math_answer.py" in pieces and "package re" not in pieces


def test_every_builtin_has_a_hash_of_its_own():
    hashes = {}
    for name in BUILTIN:
        try:
            hashes[name] = reward_hash(find_reward(name))
        except WhetError as error:
            assert "needs the setting" in str(error) or "give folder=" in str(error)
    assert len(set(hashes.values())) == len(hashes) >= 25


def test_a_function_without_source_still_has_a_hash():
    made: dict = {}
    exec("def typed(completion):\n    return float(len(completion))", made)
    other: dict = {}
    exec("def typed(completion):\n    return float(len(completion) + 1)", other)
    first, second = reward_version(made["typed"]), reward_version(other["typed"])
    assert "code typed" in first.pieces and first.hash != second.hash


def test_changes_are_told():
    old = parts_version([RewardPart(as_reward(tolerant))]).pieces
    new = parts_version([RewardPart(as_reward(tolerant), 0.5), RewardPart(find_reward("think_format"))]).pieces
    changes = version_changes(old, new)
    assert "tolerant: weight 1 -> 0.5" in changes
    assert "parts tolerant -> tolerant, think_format" in changes
    assert any(change.endswith("added") and "think_format" in change for change in changes)


@for_every(
    [
        (Decimal("0.1"), Decimal("0.2")),
        ({"a": {3, 1}}, {"a": {3, 2}}),
        ([Stateful(0.1)], [Stateful(0.2)]),
        (torch.tensor([1.0]), torch.tensor([2.0])),
        (len, sum),
        (re.compile("a"), re.compile("a", re.IGNORECASE)),
    ]
)
def test_settings_of_every_kind_count_by_their_value(one, other):
    hashes = []
    for value in (one, other, one):
        hashes.append(reward_hash(partial(tolerant, tolerance=value)))
    assert hashes[0] == hashes[2] != hashes[1]


def test_a_setting_that_names_a_file_counts_its_bytes_not_its_place(tmp_path):
    hashes = []
    for folder, text in (("one", "a"), ("two", "a"), ("three", "b")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "list.txt").write_text(text)
        hashes.append(reward_hash(partial(tolerant, tolerance=str(tmp_path / folder / "list.txt"))))
    assert hashes[0] == hashes[1] != hashes[2]


def test_using_a_reward_does_not_change_its_hash():
    reward = find_reward("math_answer")
    before = reward_hash(reward)
    assert reward.function(Prompt("p", (), "q", "4"), "\\boxed{4}") == 1.0
    assert reward_hash(reward) == before


def test_private_state_and_the_middle_of_a_huge_file_are_not_content(tmp_path, monkeypatch):
    class Cached:
        name = "cached"

        def __init__(self) -> None:
            self.strictness, self._calls = 0.5, 0

        def __call__(self, prompts, samples):
            return [self.strictness for _ in samples]

    fresh, used = Cached(), Cached()
    used._calls = 7
    assert reward_hash(fresh) == reward_hash(used)
    monkeypatch.setattr(version, "WHOLE_FILE", 10)
    monkeypatch.setattr(version, "PIECE", 4)
    monkeypatch.setattr(version, "PIECES", 2)
    digests = []
    for text in ("aaaa-middle-zzzz", "aaaa-MIDDLE-zzzz", "aaab-middle-zzzz", "aaaa-middle-zzzy"):
        (tmp_path / "weights").write_text(text)
        digests.append(version.file_digest(tmp_path / "weights"))
    assert digests[0] == digests[1] and len(set(digests)) == 3


def test_the_list_of_all_packages_is_asked_for_installed_modules_alone(tmp_path, monkeypatch):
    """It takes seconds to make; a module in a source folder is in none of them."""
    from whet.reward import version

    (tmp_path / "lying_about.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(version, "_installed_packages", lambda: {"yaml": ["PyYAML"], "lying_about": ["never asked"]})
    assert list(version._packages_with("yaml")) == ["PyYAML"]
    assert list(version._packages_with("lying_about")) == []
