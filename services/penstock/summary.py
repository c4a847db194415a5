"""What came out of a run: `summary.json`, and what `penstock.train` returns."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.config import RunConfig
from penstock.errors import ConfigurationError
from penstock.files import write_json
from penstock.types import Ages, CoordinatorStatistics, Drops, LearningNumbers, MeanTimes, Wait


@dataclass(frozen=True, slots=True)
class EvaluationOutcome:
    """Returns over some evaluation episodes; `unfinished` of them were cut, and count with their returns until then."""

    episodes: int
    return_mean: float
    return_std: float
    unfinished: int = 0


@dataclass(frozen=True, slots=True)
class VariantOutcome:
    """What came out in one environment variant.

    Attributes:
        arguments: What sets it apart, for people.
        episodes: Training episodes of this session that ended in it.
        return_mean: Mean over the last 100 of them; None if there were none.
        evaluation: Of the best checkpoint, over the episodes that were played in it; None if nothing evaluated.
    """

    arguments: str
    episodes: int
    return_mean: float | None
    evaluation: EvaluationOutcome | None


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
        learn_wall_s_to_threshold: The same in seconds from the first environment step, without those in which
            training waited for an evaluation.
        policy_version: The version of the evaluated checkpoint.
        staleness_mean: Mean age of trained segments, in policy versions.
        samples_per_insert: Uses of segments over segments collected.
        stopped: Why the run ended: total_steps, stop_at_return or interrupted.
        variants: The same return in each environment variant, in their order; empty where the run had none.
        statistics: How collecting and training got along in this session; None in summaries of earlier releases.
        best_evaluation: By which the best checkpoint was chosen; None if nothing evaluated.
        env_steps_taken: Environment steps that actors took, over all sessions: also those that were not trained, since
            they came too late or were refused.
        sessions: Commands that trained the run, this one included.
        total_wall_s: Seconds of all of them.
        total_env_steps_per_s: Environment steps over the seconds of training, of all sessions.
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
    variants: tuple[VariantOutcome, ...] = ()
    statistics: CoordinatorStatistics | None = None
    best_evaluation: EvaluationOutcome | None = None
    env_steps_taken: int = 0
    sessions: int = 1
    total_wall_s: float = 0.0
    total_env_steps_per_s: float = 0.0

    def timed(self, wall_s: float) -> "Summary":
        """The same of a command that took so many seconds in all."""
        return dataclasses.replace(self, wall_s=wall_s, total_wall_s=self.total_wall_s - self.wall_s + wall_s)

    def nothing_left(self, run: RunConfig) -> str:
        """Why going on with these settings would train nothing; empty if it would train."""
        best = self.best_evaluation.return_mean if self.best_evaluation else None
        if self.stopped == "interrupted":
            return ""
        if self.env_steps >= run.total_steps:
            return f"this run has trained its {run.total_steps:,} steps; raise --total-steps to go on"
        if run.stop_at_return is not None and best is not None and best >= run.stop_at_return:
            return (
                f"this run has reached its return of {run.stop_at_return:g} (an evaluation of {best:.1f}); raise"
                " --stop-at-return to go on"
            )
        return ""

    def write(self, path: Path) -> None:
        """Writes the summary, atomically."""
        write_json(path, dataclasses.asdict(self))

    @classmethod
    def read(cls, path: Path) -> "Summary":
        """Reads a summary. Raises `ConfigurationError` if there is none or it can't be read."""
        try:
            values = json.loads(path.read_text())
            evaluation = _read_evaluation(values.pop("evaluation"))
            # Summaries of earlier releases have none of the following.
            best_evaluation = _read_evaluation(values.pop("best_evaluation", None))
            variants = tuple(
                VariantOutcome(**{**variant, "evaluation": _read_evaluation(variant["evaluation"])})
                for variant in values.pop("variants", ())
            )
            statistics = values.pop("statistics", None)
            return cls(
                evaluation=evaluation,
                best_evaluation=best_evaluation,
                variants=variants,
                statistics=_read_statistics(statistics) if statistics else None,
                **values,
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(f"can't read the summary {path}: {error}") from None


def nothing_left(path: Path, run: RunConfig) -> str:
    """Why a run with this summary would train nothing with these settings; empty if it would train.

    Where there is no summary that can be read, it is to be written, so that there is something to do.
    """
    try:
        return Summary.read(path).nothing_left(run) if path.exists() else ""
    except ConfigurationError:
        return ""


def _read_evaluation(values: dict[str, Any] | None) -> EvaluationOutcome | None:
    return EvaluationOutcome(**values) if values else None


def _read_statistics(values: dict[str, Any]) -> CoordinatorStatistics:
    for name, kind in (("lag", Ages), ("staleness", Ages), ("last", LearningNumbers), ("recent", LearningNumbers)):
        if values[name] is not None:
            values[name] = kind(**values[name])
    values["times"], values["drops"] = MeanTimes(**values["times"]), Drops(**values["drops"])
    values["waits"] = tuple(Wait(**wait) for wait in values["waits"])
    return CoordinatorStatistics(**values)
