"""Every dataset of reasoning-gym: prompts, its verifier as reward, and what a completion may not do to it."""

import builtins
import json
import time

import pytest

from whet.data.gym_prompts import INSTRUCTION, gym_datasets, gym_prompts
from whet.data.tasks.item import split_of
from whet.reward.gym_answer import check_formula, gym_answer
from whet.types import Prompt, WhetError

try:
    NAMES = gym_datasets()
except WhetError:
    NAMES = []
pytestmark = pytest.mark.skipif(not NAMES, reason="needs reasoning-gym: pip install 'whet[tasks]'")

WITHOUT_GOLD = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}  # only a verifier
SLOW = {"futoshiki", "knight_swap", "arc_agi", "zebra_puzzles", "puzzle24"}  # seconds for a handful of questions
MEMBERS = {"datasets": [{"name": "gcd", "weight": 1.0}, {"name": "countdown", "weight": 2.0}]}
SEVERAL = ("gcd", "countdown", "sudoku", "knights_knaves", "game_of_life_halting", "tsumego", "composite", "rush_hour")


def settings_of(name):
    return MEMBERS if name == "composite" else {}


def gold_completion(prompt):
    return f"<think>thought</think>\n<answer>\n{prompt.answer}\n</answer>"


def check_dataset(name, count):
    """How many of `count` prompts have a gold answer that scores 1; an unsound gold answer is unscorable."""
    prompts = gym_prompts(name, count, 7, settings_of(name))
    assert prompts and len({prompt.question() for prompt in prompts}) == len(prompts)
    sound = 0
    for prompt in prompts:
        assert prompt.question().endswith(INSTRUCTION) and len(prompt.question()) > len(INSTRUCTION) + 10
        kept = Prompt(prompt.id, prompt.messages, answer=prompt.answer, meta=json.loads(json.dumps(prompt.meta)))
        for empty in ("", "<answer></answer>", "<think>unfinished", "no marked answer"):
            assert gym_answer(kept, empty) in (0.0, None)
        nonsense = gym_answer(kept, "<answer>zz nonsense zz</answer>")
        assert nonsense is None or 0 <= nonsense < 0.5, name
        if prompt.answer is None:
            assert name in WITHOUT_GOLD and nonsense is not None
            sound += 1
        elif (score := gym_answer(kept, gold_completion(prompt))) is not None:
            assert score == 1.0, (name, prompt.answer)
            sound += 1
    return sound


@pytest.mark.parametrize("name", SEVERAL)
def test_the_gold_answer_scores_one_and_no_answer_nothing(name):
    assert check_dataset(name, 3) == 3


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_dataset(name):
    count = 3 if name in SLOW else 10
    # some gold answers of one dataset hold integrals it could not solve: those are unscorable
    assert check_dataset(name, count) >= (count if name != "intermediate_integration" else 5)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(NAMES) - {"composite"}))
def test_every_curriculum_gives_prompts_or_says_why_not(name):
    try:
        prompts = gym_prompts(name, 1, 7, {"level": 1})
    except WhetError as refused:
        assert any(why in str(refused) for why in ("has no curriculum", "change that setting", "give 0 to 0"))
        assert name in {"acre", "gsm_symbolic", "list_functions", "knight_swap", "modulo_grid"}
        return
    assert prompts and gym_answer(prompts[0], "") in (0.0, None)


def test_the_stream_is_seeded_and_split():
    def drawn(seed, split="train"):
        return [prompt.question() for prompt in gym_prompts("chain_sum", 120, seed, {}, split, "")]

    assert drawn(1) == drawn(1) and drawn(1)[:50] == drawn(1)[:50]
    assert len(set(drawn(1)) & set(drawn(2))) < 12  # of a plain dataset they share all but one
    held_out = set(drawn(1, "eval"))
    assert len(held_out) == 120 and not held_out & (set(drawn(1)) | set(drawn(2)))
    assert {split_of(question) for question in held_out} == {"eval"}
    few = gym_prompts("chain_sum", 5, 1)
    assert [prompt.id for prompt in few] == [prompt.id for prompt in gym_prompts("gym:chain_sum", 9, 1)][:5]


def test_settings_and_levels_change_the_questions():
    short = gym_prompts("chain_sum", 5, 0, {"min_terms": 2, "max_terms": 2})
    long = gym_prompts("chain_sum", 5, 0, {"min_terms": 9, "max_terms": 9})
    assert all(prompt.question().count(" + ") + prompt.question().count(" - ") == 1 for prompt in short)
    assert all(prompt.question().count(" + ") + prompt.question().count(" - ") == 8 for prompt in long)
    easy, hard = (gym_prompts("spell_backward", 20, 0, {"level": level}) for level in (0, 3))
    assert sum(len(prompt.answer) for prompt in hard) > 1.3 * sum(len(prompt.answer) for prompt in easy)
    assert gym_answer(hard[0], gold_completion(hard[0])) == 1.0


def test_partial_credit_is_the_verifiers_own():
    prompt = gym_prompts("countdown", 1, 3)[0]
    assert gym_answer(prompt, "<answer>1 + 1</answer>") == pytest.approx(0.05)
    assert gym_answer(prompt, "<answer>1 + 1</answer>", partial=False) == 0.0
    assert gym_answer(prompt, gold_completion(prompt), partial=False) == 1.0
    assert gym_answer(prompt, gold_completion(prompt) + "<answer>1 + 1</answer>") < 0.1  # two answers are a guess


def test_a_verifier_that_accepts_anything_is_not_trusted():
    for prompt in gym_prompts("game_of_life_halting", 4, 0):
        other = "False" if str(prompt.answer) == "True" else "True"
        assert gym_answer(prompt, f"<answer>{other}</answer>") == 0.0
        assert gym_answer(prompt, gold_completion(prompt)) == 1.0


def test_twenty_four_needs_the_given_numbers():
    prompt = gym_prompts("puzzle24", 1, 5)[0]
    assert gym_answer(prompt, gold_completion(prompt)) == 1.0
    for cheat in ("6 + 6 + 6 + 6", "8 * 3 * 1 * 1", "4 * 6 * 1 * 1"):
        assert gym_answer(prompt, f"<answer>{cheat}</answer>") < 0.1


@pytest.mark.parametrize(
    "name",
    [
        *("string_insertion", "spiral_matrix", "binary_matrix", "n_queens", "countdown", "polynomial_multiplication"),
        *("simple_integration", "composite"),
    ],
)
def test_a_completion_cannot_run_code(name, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(builtins, "canary", lambda: opened.append(name), raising=False)
    prompt = gym_prompts(name, 1, 2, settings_of(name))[0]
    file = tmp_path / "made"
    for attack in (f"open({str(file)!r}, 'w')", f"[__import__('os').mkdir({str(file)!r})]", "canary()", "[canary()]"):
        assert gym_answer(prompt, f"<answer>{attack}</answer>") < 0.5
    assert not file.exists() and not opened


@pytest.mark.parametrize("name", ["countdown", "polynomial_multiplication", "simple_integration"])
def test_a_completion_cannot_hang_a_verifier(name):
    prompt = gym_prompts(name, 1, 2)[0]
    started = time.monotonic()
    for attack in ("9**9**9**9", "((9**99)**99)**99", "2**(2**(2**(2**9)))", "(" * 5000 + "1" + ")" * 5000):
        assert gym_answer(prompt, f"<answer>{attack}</answer>") < 0.5
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("text", ["(1 + 2)*3/4", "-x**3/3 + 2*sin(3*x) + C", "x**12*y - 0.5*z", "exp(2*x)*x**(5/2)"])
def test_formulas_pass(text):
    check_formula(text)


@pytest.mark.parametrize(
    "text", ["x.real", "f(x)", "eval(x)", "x[0]", "'a'", "x == y", "9**9999", "x if y else z", "a;b"]
)
def test_other_texts_are_no_formulas(text):
    with pytest.raises(ValueError):
        check_formula(text)


@pytest.mark.parametrize(
    ("name", "settings", "complaint"),
    [
        ("chain_sums", {}, r"is called 'chain_sums' \(did you mean 'chain_sum'\?\); all \d+"),
        ("chain_sum", {"min_term": 2}, r"no setting 'min_term' \(did you mean 'min_terms'\?\); it has: .*level"),
        ("chain_sum", {"min_terms": 0}, "refuses the settings .*min_terms.*; change that setting"),
        ("chain_sum", {"level": 99}, "level of gym:chain_sum is 99; give 0 to "),
        ("acre", {"level": 1}, "gym:acre has no curriculum"),
        ("composite", {}, "gym:composite refuses its default settings"),
    ],
)
def test_a_mistake_is_one_line_with_its_fix(name, settings, complaint):
    with pytest.raises(WhetError, match=complaint) as caught:
        gym_prompts(name, 1, 0, settings)
    assert "\n" not in str(caught.value)


def test_other_prompts_and_splits_are_refused():
    with pytest.raises(WhetError, match="'gym_answer' judges prompts of gym:NAME, and prompt 'x' has no column `gym`"):
        gym_answer(Prompt("x", (), "How many?", answer="3"), "<answer>3</answer>")
    with pytest.raises(WhetError, match="give one of train, eval"):
        gym_prompts("gcd", 1, 0, {}, "test")


def test_a_missing_package_is_one_line_with_the_command(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(WhetError, match=r"needs reasoning-gym; run pip install 'whet\[tasks\]'"):
        gym_prompts("gcd", 1, 0)
