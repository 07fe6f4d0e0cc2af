"""The column that a reference's rewards are kept in."""

import math

import pytest

from tests.support.for_every import for_every
from whet.data.reference_rewards import reference_rewards
from whet.types import Prompt, WhetError


def prompt(value):
    return Prompt("rows.jsonl:3", (), "2+3", meta={"reference_rewards": value})


def test_a_list_is_read_and_its_json_text():
    assert reference_rewards(prompt([1, 0.5])) == reference_rewards(prompt("[1, 0.5]")) == (1.0, 0.5)


@for_every([[], "often", "3", [1, None], [True], [math.nan], [math.inf], 0.5, {"a": 1}])
def test_what_is_no_list_of_numbers_is_refused(value):
    with pytest.raises(WhetError, match=r"rows.jsonl:3: reference_rewards is no list of numbers.*--keep-rewards"):
        reference_rewards(prompt(value))


def test_a_row_without_it_names_the_command():
    with pytest.raises(WhetError, match="reference_rewards is missing; write it with `whet data difficulty"):
        reference_rewards(Prompt("rows.jsonl:3", (), "2+3"))
