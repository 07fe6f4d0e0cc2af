"""whet from Python: the same runs as on the command line, as functions that return values."""

from whet.api.evaluation import EvalResult, evaluate, evaluation_config
from whet.api.run import Run, load
from whet.api.training import resume, train

__all__ = ["EvalResult", "Run", "evaluate", "evaluation_config", "load", "resume", "train"]
