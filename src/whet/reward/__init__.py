"""Rewards: plain functions turned into parts of a score, and a few built in.

`find_reward` and `as_reward` make a `Reward` of a name or a function; `score` applies weighted parts to samples,
each call under a time limit, and says which sample, file and line broke when one does.
"""
