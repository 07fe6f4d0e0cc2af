"""The pipelines by name. A new one is a `Recipe` in a file of its own, and a line here."""

from __future__ import annotations

from whet.pipeline import Recipe
from whet.pipeline.constitutional import CONSTITUTIONAL
from whet.pipeline.judged import JUDGED
from whet.pipeline.rounds import OWN_PAIRS, SELF_PLAY
from whet.pipeline.self_rewarding import SELF_REWARDING
from whet.types import WhetError, did_you_mean

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe for recipe in (OWN_PAIRS, SELF_PLAY, JUDGED, SELF_REWARDING, CONSTITUTIONAL)
}


def recipe_named(name: str) -> Recipe:
    if name not in RECIPES:
        hint = did_you_mean(name, RECIPES, cutoff=0.4)
        raise WhetError(f"no pipeline is called {name!r}{hint}; `whet pipeline` lists them: {', '.join(RECIPES)}")
    return RECIPES[name]
