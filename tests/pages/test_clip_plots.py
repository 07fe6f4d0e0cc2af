"""Every clip rule has its picture, fresh in docs/images/clip, and what a picture shows is what the rule does."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from xml.etree import ElementTree

import pytest
import torch

from tests.support.drawings import same_drawing
from whet.objective import AXES, PRESETS
from whet.objective.clip import Cap, GeometricMean, PPOClip, Unclipped, VariationMask
from whet.pages import clip_plots as plots
from whet.pages.chart_specs import chart, curve
from whet.pages.chart_svg import figure_file, straightened, ticks, within

FOLDER = Path(__file__).parents[2] / "docs" / "images" / "clip"
REFRESH = "python -m whet.pages.methods"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def pictures():
    return {name: plots.rule_plot(rule) for name, rule in plots.plotted().items()}


def test_every_rule_and_every_method_has_a_fresh_picture(pictures):
    assert set(AXES["clip"]) <= set(pictures)
    there = {path.stem: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.svg")}
    assert set(there) == set(pictures), f"pictures missing or left over in docs/images/clip; {REFRESH}"
    stale = [name for name, text in pictures.items() if not same_drawing(there[name], text)]
    assert not stale, f"stale: {', '.join(stale)}; {REFRESH}"


def test_a_method_with_numbers_of_its_own_has_a_picture_of_its_own():
    drawn = plots.plotted()
    assert "gspo" in drawn and "grpo" not in drawn
    for name, preset in PRESETS.items():
        assert drawn.get(name, drawn[preset.objective.clip.name]) == preset.objective.clip, name


def test_pictures_are_written(tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "plotted", lambda: {"cap": Cap(), "mine": PPOClip(0.1, 0.3)})
    written = plots.write_plots(tmp_path / "new")
    assert [path.name for path in written] == ["cap.svg", "mine.svg"]
    assert (tmp_path / "new" / "cap.svg").read_text(encoding="utf-8") == plots.rule_plot(Cap())


def test_a_picture_is_a_drawing_with_both_signs_of_the_advantage(pictures):
    several = ("variation_mask", "divergence_mask", "probability_band")
    for name in AXES["clip"]:
        root = ElementTree.fromstring(pictures[name])
        said = [element.text for element in root.iter() if element.text]
        assert {name, "A > 0", "A < 0", "ratio"} <= set(said), name
        titles = [text for text in said if text.startswith("old probability")]
        expected = (
            [f"old probability {probability:g}" for probability in plots.PROBABILITIES] if name in several else []
        )
        assert titles == expected, name
        assert any("prefers-color-scheme:dark" in text for text in said)
        _, _, wide, high = (float(number) for number in root.attrib["viewBox"].split())
        for path in root.iter(f"{SVG}path"):
            x, y = (float(number) for number in re.match(r"M([\d.]+) ([\d.]+)", path.attrib["d"]).groups())
            assert 0 <= x <= wide and 0 <= y <= high, name


def test_weights_are_the_rules():
    assert plots.weights(PPOClip(0.2, 0.2), [0.5, 1.0, 1.1, 1.3], 1.0) == [0.5, 1.0, 1.1, 0.0]
    assert plots.weights(PPOClip(0.2, 0.2), [0.5, 1.0, 1.1, 1.3], -1.0) == [0.0, 1.0, 1.1, 1.3]
    assert plots.weights(GeometricMean(0.4), [1.3], 1.0) == [pytest.approx(1.3 ** (1 / 8))]
    assert plots.weights(VariationMask(), [1.2], 1.0, 0.9) == [0.0]
    assert plots.weights(VariationMask(), [1.2], 1.0, 0.05) == [1.2]


def test_the_range_is_chosen_from_the_rule():
    assert plots.ratio_range(PPOClip(0.2, 0.2)) == plots.ratio_range(Unclipped()) == (0.0, 3.0)
    assert plots.ratio_range(Cap(5.0)) == (0.0, 6.0)
    low, high = plots.ratio_range(PPOClip(3e-4, 4e-4))
    assert 0.99 < low < 1 - 3e-4 and 1 + 4e-4 < high < 1.01
    # a token of probability 0.05 is stopped at ratio 4 only, which must be seen
    assert plots.ratio_range(VariationMask(0.15, 0.15))[1] > 4


def test_what_a_rule_looks_at_is_found_out():
    kinds = {name: kind() for name, kind in AXES["clip"].items()}
    likely = {name for name, rule in kinds.items() if plots.looks_at_probability(rule)}
    assert likely == {"variation_mask", "divergence_mask", "probability_band"}
    assert {name for name, rule in kinds.items() if plots.looks_at_completion(rule)} == {"geometric_mean"}


def test_a_rule_nobody_has_seen_is_drawn():
    @dataclass(frozen=True)
    class Halved(Unclipped):
        edge: float = 2.0
        name: ClassVar[str] = "halved"

        def __call__(self, ratio, advantage, action, logp):
            return torch.where(ratio > self.edge, 0.0, ratio)

    text = plots.rule_plot(Halved(4.0))
    assert "halved" in text and "edge 4" in text and plots.ratio_range(Halved(4.0)) == (0.0, 5.0)


def test_the_text_plot_by_hand():
    """A good token is dropped above 1.2, a bad one below 0.8; between them both weigh what their ratio is."""
    lines = plots.clip_text(PRESETS["grpo"].objective.clip).splitlines()
    assert len(lines) == 12 and max(len(line) for line in lines) <= 60
    assert lines[0] == "weight against ratio: + A > 0, - A < 0, * both"
    assert lines[-1].split() == ["0", "1", "3"]
    bottom = lines[9].split("|")[1]
    # 50 columns from 0 to 3, 0.06 each: 0.8 is the end of column 12, 1.2 the end of column 19
    assert bottom == "***" + "-" * 10 + " " * 7 + "+" * 30
    assert lines[1].startswith("     3 |") and lines[1].endswith("---")


def test_every_method_has_a_text_plot():
    for name, rule in plots.plotted().items():
        lines = plots.clip_text(rule).splitlines()
        assert len(lines) == 12 and max(len(line) for line in lines) <= 66, name
        drawn = "".join(line.split("|", 1)[1] for line in lines[1:-2])
        assert set(drawn) <= set("+-* ") and "*" in drawn, name
        assert all(any(line[8 + column : 9 + column].strip() for line in lines[1:-2]) for column in range(50)), name


# the drawing itself


def test_a_curve_is_cut_where_it_leaves_the_frame():
    assert within([(0.0, 0.0), (1.0, 4.0), (2.0, 0.0)], 0.0, 2.0) == [(0.0, 0.0), (0.5, 2.0), (1.5, 2.0), (2.0, 0.0)]
    assert within([(0.0, -1.0), (1.0, 1.0)], 0.0, 2.0) == [(0.5, 0.0), (1.0, 1.0)]
    assert within([(0.0, 5.0), (1.0, 6.0)], 0.0, 2.0) == []


def test_points_on_a_straight_way_are_left_out():
    straight = [(float(at), 2.0 * at) for at in range(50)]
    assert straightened(straight) == [straight[0], straight[-1]]
    assert straightened([*straight, (50.0, 0.0)]) == [straight[0], straight[-1], (50.0, 0.0)]


def test_ticks_are_round_numbers_inside():
    assert ticks(0.0, 3.0, 5) == (0.0, 1.0, 2.0, 3.0)
    assert ticks(0.9992, 1.0008, 5) == pytest.approx((0.9995, 1.0, 1.0005))


def panel(*curves, **more):
    axis = {"label": "", "min": 0.0, "max": 2.0}
    return chart(curves, x=axis, y=axis, smooth=False, **more)


def test_a_jump_is_a_riser_and_a_limit_is_shaded():
    jumps = curve("jumps & more", (((0.0, 0.0), (1.0, 1.0)), ((1.0, 0.0), (2.0, 0.0))))
    text = figure_file([panel(jumps, limit={"x": 1.5, "text": "out"})], "title", size=(200, 100))
    assert text.count('class="jump s0"') == 1 and text.count('class="shade"') == 1
    assert "jumps &amp; more" in text and ">out<" in text
    assert text.count('class="line s0"') == 3  # two stretches and the legend
    calm = figure_file([panel(curve("a", (((0.0, 0.0), (2.0, 2.0)),), dashed=True))], "title", size=(200, 100))
    assert 'class="jump' not in calm and 'class="shade"' not in calm and "line s0 dashed" in calm


def test_a_long_legend_takes_another_line():
    curves = [curve(f"a curve with a long name {number}", (((0.0, 0.0), (2.0, 2.0)),)) for number in range(3)]
    one, three = (
        ElementTree.fromstring(figure_file([panel(*curves[:count])], "title", size=(200, 100))) for count in (1, 3)
    )
    assert float(three.attrib["height"]) > float(one.attrib["height"])
    names = [element for element in three.iter() if element.attrib.get("class") == "name"]
    assert len({element.attrib["y"] for element in names}) == 3


@dataclass(frozen=True)
class Repelled(PPOClip):
    """Pushes back what strayed too far: negative weights."""

    name: ClassVar[str] = "repelled"

    def __call__(self, ratio, advantage, action, logp):
        return torch.where((ratio - 1).abs() > 0.5, -2 * ratio, ratio)


@dataclass(frozen=True)
class Sunk(PPOClip):
    name: ClassVar[str] = "sunk"

    def __call__(self, ratio, advantage, action, logp):
        return -ratio


@dataclass(frozen=True)
class Nothing(PPOClip):
    name: ClassVar[str] = "nothing"

    def __call__(self, ratio, advantage, action, logp):
        return torch.zeros_like(ratio)


@dataclass(frozen=True)
class Steep(PPOClip):
    name: ClassVar[str] = "steep"

    def __call__(self, ratio, advantage, action, logp):
        return torch.where(ratio > 2, torch.inf, torch.where(ratio < 0.5, torch.nan, ratio))


def test_negative_weights_have_a_place_in_both_pictures():
    lines = plots.clip_text(Repelled()).splitlines()
    assert lines[1].startswith("   1.5 |") and lines[9].startswith("    -6 |")
    assert sum("*" in line for line in lines[1:10]) >= 5 and lines[9].rstrip().endswith("*")
    assert [line[:8] for line in lines].count("     0 |") == 1 and [line[:8] for line in lines].count("     1 |") == 1
    root = ElementTree.fromstring(plots.rule_plot(Repelled()))
    heights = [
        float(number)
        for path in root.iter(f"{SVG}path")
        for number in re.findall(r"[ML][\d.]+ ([\d.]+)", path.attrib["d"])
    ]
    assert "-6" in {each.text for each in root.iter() if each.text} and max(heights) > min(heights) + 100
    assert max(heights) <= float(root.attrib["height"])


@pytest.mark.parametrize("rule", [Sunk(), Nothing(), Steep()])
def test_no_rule_is_too_strange_to_draw(rule):
    lines = plots.clip_text(rule).splitlines()
    assert len(lines) == plots.TEXT_ROWS + 4 and any("*" in line for line in lines[1:-2])
    assert ElementTree.fromstring(plots.rule_plot(rule)).tag.endswith("svg")


def test_an_edge_between_any_two_probes_is_found():
    rule = PPOClip(0.2, 0.3)
    for grid in ([1.1, 1.4], [1.1, 1.2, 1.4], [1.1, 1.4, 1.5]):
        assert plots._edges(rule, 1.0, grid, 0.5) == pytest.approx([1.3])
    assert plots._edges(rule, -1.0, [0.7, 0.9], 0.5) == pytest.approx([0.8])
