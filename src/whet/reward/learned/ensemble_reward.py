"""What all rewards of reward models share: which models they are, how their scores become one, how far they differ."""

# no annotations as text here: a subclass in another module shows them as its own settings
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, get_args

from whet.record.metrics.reward_model import Ensemble, disagreement, ensemble_score
from whet.reward.learned.members import folders_of, model_folders
from whet.reward.learned.network import Place
from whet.types import WhetError


def check_choice(choice: str, choices: Any, what: str) -> None:
    """Refuse a value that is none of the choices."""
    if choice not in get_args(choices):
        raise WhetError(f"{what} is {choice!r}; give one of {', '.join(get_args(choices))}")


@dataclass(frozen=True, kw_only=True)
class EnsembleSettings:
    """Which reward models score a completion, and what is made of several scores."""

    folder: str | Sequence[str] = ""  # of a model or its run; several make an ensemble
    name: str = ""
    label: str = ""  # which label is the score, by name or number; needed where there are several classes
    ensemble: Ensemble = "mean"
    deviations: float = 1.0  # of mean_minus_std
    variance_weight: float = 0.1  # of mean_minus_variance
    tokenizer: str = ""  # another folder; "" for the model's own
    device: str = "auto"
    dtype: str = "auto"
    micro_batch_tokens: int = 16_384

    def __post_init__(self) -> None:
        if not folders_of(self.folder) or not all(folders_of(self.folder)):
            raise WhetError(f"reward {self.name!r} has no model; give folder=FOLDER, or a list of them for an ensemble")
        check_choice(self.ensemble, Ensemble, f"ensemble of reward {self.name!r}")
        for setting, default, owner in (
            ("deviations", 1.0, "mean_minus_std"),
            ("variance_weight", 0.1, "mean_minus_variance"),
        ):
            weight = getattr(self, setting)
            if weight != default and self.ensemble != owner:
                raise WhetError(
                    f"reward {self.name!r} has {setting}={weight:g}, which ensemble={self.ensemble} does not look at; "
                    f"give ensemble={owner}, or drop it"
                )
            if not (math.isfinite(weight) and weight >= 0):
                raise WhetError(f"reward {self.name!r} has {setting}={weight:g}; give 0 or more")
        if self.micro_batch_tokens < 1:
            raise WhetError(f"reward {self.name!r} has micro_batch_tokens={self.micro_batch_tokens}; give at least 1")

    @property
    def places(self) -> list[Place]:
        """The networks to load, each with its device and dtype."""
        folders = model_folders(self.folder)
        return [Place(folder, self.tokenizer, self.device, self.dtype, self.micro_batch_tokens) for folder in folders]


Settings = TypeVar("Settings", bound=EnsembleSettings)


class EnsembleReward(Generic[Settings]):
    """A reward whose members are reward models, or the heads of one."""

    limits_itself = True  # nothing in a completion can make a forward pass hang
    is_read_early = True  # by `prepare`, before the run begins: a bad folder is told then
    unversioned: tuple[str, ...] = ("folder", "name", "device", "micro_batch_tokens")  # settings that change no score

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._apart: list[float] = []

    @property
    def name(self) -> str:
        """What the scores are reported under."""
        return self.settings.name

    @property
    def made_of(self) -> Mapping[str, Any]:
        """What a score depends on."""
        settings = {key: value for key, value in vars(self.settings).items() if key not in self.unversioned}
        return {"folder": model_folders(self.settings.folder), **settings}

    def take_notes(self) -> dict[str, float]:
        """How far the members were apart since the last call, on average; nothing for a single one."""
        apart, self._apart = self._apart, []
        return {f"{self.name}_disagreement": sum(apart) / len(apart)} if apart else {}

    def _combined(self, scores: Sequence[float]) -> float:
        """The score that the members' scores make; how far they are apart is noted."""
        if len(scores) > 1:
            self._apart.append(disagreement(scores))
        return ensemble_score(scores, self.settings.ensemble, self.settings.deviations, self.settings.variance_weight)
