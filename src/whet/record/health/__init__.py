"""The health of a run: rules over its steps, each with evidence, cause, remedy and the cases where all is well.

A rule is a value in `RULES`; `findings` asks those of a run's kind. The files are the topics.
"""
