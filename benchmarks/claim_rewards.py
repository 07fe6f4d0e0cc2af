"""A reward that pays for length alone: the badly designed one of benchmarks/claims.py."""


def wordy(num_tokens: int, *, most: int = 64) -> float:
    """The share of the longest completion that this one has written."""
    return min(num_tokens / most, 1.0)
