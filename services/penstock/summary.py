"""What came out of a run: `summary.json`, and what `penstock.train` returns."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import ConfigurationError
from penstock.files import write_json


@dataclass(frozen=True, slots=True)
class EvaluationOutcome:
    """Returns over some evaluation episodes."""

    episodes: int
    return_mean: float
    return_std: float


@dataclass(frozen=True, slots=True)
class Summary:
    """A run in numbers.

    Attributes:
        run_dir: The run's folder.
        env_id: The environment.
        seed: The run's.
        env_steps: Environment steps trained, over all sessions of the run.
        wall_s: Seconds of this command, from its start.
        env_steps_per_s: Environment steps of this session over the seconds since its first one.
        evaluation: Of the best checkpoint, on episodes that played no part in choosing it; None if nothing evaluated.
        env_steps_to_threshold: When an evaluation first reached `evaluation.threshold`; None: it did not, or there is
            none.
        learn_wall_s_to_threshold: The same in seconds from the first environment step.
        policy_version: The version of the evaluated checkpoint.
        staleness_mean: Mean age of trained segments, in policy versions.
        samples_per_insert: Uses of segments over segments collected.
        stopped: Why the run ended: total_steps, stop_at_return or interrupted.
    """

    run_dir: str
    env_id: str
    seed: int
    env_steps: int
    wall_s: float
    env_steps_per_s: float
    evaluation: EvaluationOutcome | None
    env_steps_to_threshold: int | None
    learn_wall_s_to_threshold: float | None
    policy_version: int
    staleness_mean: float
    samples_per_insert: float
    stopped: str

    def write(self, path: Path) -> None:
        """Writes the summary, atomically."""
        write_json(path, dataclasses.asdict(self))

    @classmethod
    def read(cls, path: Path) -> "Summary":
        """Reads a summary. Raises `ConfigurationError` if there is none or it can't be read."""
        try:
            values = json.loads(path.read_text())
            evaluation = values.pop("evaluation")
            return cls(evaluation=EvaluationOutcome(**evaluation) if evaluation else None, **values)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(f"can't read the summary {path}: {error}") from None
