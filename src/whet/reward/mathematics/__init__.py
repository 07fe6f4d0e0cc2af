"""Answers of mathematics: read in full, compared exactly and in bounded time; math-verify only where that cannot."""
