"""The method that studies of a reward optimise it by: the cheapest one whose reward is what it is given, unscaled."""

STUDIED_BY = "rloo"
