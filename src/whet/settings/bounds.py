"""The largest and smallest numbers that settings and options take, where several share them."""

from __future__ import annotations

MOST_STEPS = 1_000_000_000
MOST_SEED = 2**63 - 1  # TOML's integers end there
MOST_ROWS = 1_000_000  # that are generated, or sampled in one step
MOST_SAMPLES = 65_536  # completions per prompt
MOST_TOKENS = 10_000_000
MOST_WEIGHT = 1e6
MOST_REPEATS = 1000  # rounds, and runs that differ in their seed only
LEAST_NUMBER, MOST_NUMBER = 1e-12, 1e9  # of an objective, whichever sign: float32 holds their squares
COLDEST = 1e-3  # temperature: logits divided by less leave the range of float32
LONGEST_BENCH = 3600.0  # seconds
LEAST_HOURS, MOST_HOURS = 0.001, 8760.0  # of a run
MOST_EPOCHS = 1e6
