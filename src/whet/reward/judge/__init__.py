"""A language model as judge: it marks completions by a rubric, or compares them two by two.

It is asked through an OpenAI-compatible endpoint, or through any callable (an engine behind it). Its answers are
cached on disk by content, its calls are limited by a budget, and it wants company: a judge can be talked into a good
mark, so it is not to be the only reward unless the user says so.
"""

from whet.reward.judge.ask import Ask, engine_ask
from whet.reward.judge.judge_settings import JudgeSettings
from whet.reward.judge.reward import Judge, check_company, judge
from whet.reward.judge.rubric import Criterion, Rubric, rubric_from
from whet.reward.judge.verdict import preference_in, rubric_scores_in

__all__ = [
    "Ask",
    "Criterion",
    "Judge",
    "JudgeSettings",
    "Rubric",
    "check_company",
    "engine_ask",
    "judge",
    "rubric_scores_in",
    "preference_in",
    "rubric_from",
]
