"""A language model as judge: it marks completions by a rubric, or compares them two by two.

It is asked through an OpenAI-compatible endpoint, or through any callable (an engine behind it). Its answers are
cached on disk by content, its calls are limited by a budget, and it wants company: a judge can be talked into a good
mark, so it is not to be the only reward unless the user says so.
"""
