"""A reward that every completion earns: a tiny teacher's traces are then all kept."""


def always_right(completion: str) -> float:
    return 1.0
