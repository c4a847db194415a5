"""Records of a run's progress, and the sinks that store them, such as the journal."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from numpy.typing import NDArray

from penstock.runs.metrics import INFO_METRIC, OWN_NUMBER, OWN_STATISTIC
from penstock.types.evaluation import EvaluationSummary, InfoMetric, VariantReturns
from penstock.types.records import plain
from penstock.types.statistics import MeanTimes
from penstock.types.status import RunStatus, VariantStatus

if TYPE_CHECKING:
    # It imports torch, which a host that restores a run may lack.
    from penstock.learning.step.training_statistics import TrainingStatistics


@dataclass(frozen=True, slots=True)
class Record:
    """State of training, or result of an evaluation, at one environment step.

    Attributes:
        kind: Kind of the record. The final evaluation is of the best checkpoint.
        env_steps: Environment steps trained.
        values: Numbers by name; None where not known.
        variants: Results in each environment variant; empty if the run has none.
        distributions: <number>[B] values of the last batch's segments, by name; the journal leaves them out.
    """

    kind: Literal["training", "evaluation", "final_evaluation"]
    env_steps: int
    values: dict[str, float | None]
    variants: tuple[VariantStatus | VariantReturns, ...] = ()
    distributions: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    @classmethod
    def of_training(
        cls,
        status: RunStatus,
        statistics: "TrainingStatistics",
        times: MeanTimes,
        training_s: float,
        *,
        ended_return: float | None,
        distributions: Mapping[str, NDArray[Any]] | None = None,
    ) -> "Record":
        """Returns a record of the last batch, with seconds of training.

        `times` and `ended_return`, the mean return of training episodes, are those since the previous record.
        """
        coordinator = status.coordinator
        replayed = coordinator.replayed if coordinator else None
        values = {
            "env_steps_taken": status.env_steps_taken,
            "progress_share": _rounded(status.limit.share) if status.limit else None,
            "version": status.version,
            "training_s": round(training_s, 3),
            "env_steps_per_s": round(status.env_steps_per_s, 1),
            "updates_per_s": round(status.updates_per_s, 1),
            "episodes": status.episodes,
            "return_mean": status.return_mean,
            "episode_return_mean": _rounded(ended_return),
            "replay_stored": status.replay_stored,
            "samples_per_insert": round(status.samples_per_insert, 3),
            "off_policy_degree": coordinator.off_policy_degree if coordinator else None,
            "late_segments": coordinator.drops.late_segments if coordinator else None,
            "replayed_age_mean": _rounded(replayed.age_mean) if replayed else None,
            "replayed_age_90": _rounded(replayed.age_90) if replayed else None,
            "drawn_priority": _rounded(replayed.drawn_priority) if replayed else None,
        }
        measured = {**_measured(statistics), **plain(times)}
        rounded = {name: _rounded(value) for name, value in measured.items()} | _of_infos(status.info_metrics)
        return cls("training", status.env_steps, {**values, **rounded}, status.variants, distributions or {})

    def with_own(self, numbers: Mapping[str, float | None]) -> "Record":
        """Returns the record with numbers that the user's callbacks have logged."""
        own = {f"{OWN_NUMBER}{name}": _rounded(value) for name, value in numbers.items()}
        return dataclasses.replace(self, values={**self.values, **own})

    @classmethod
    def of_evaluation(cls, evaluation: EvaluationSummary, training_s: float, *, final: bool) -> "Record":
        """Returns a record of an evaluation after `training_s` seconds of training."""
        values = {"training_s": round(training_s, 3), **plain(evaluation), **_of_infos(evaluation.info_metrics)}
        del values["env_steps"], values["variants"], values["info_metrics"]
        return cls("final_evaluation" if final else "evaluation", evaluation.env_steps, values, evaluation.variants)


class RecordSink(Protocol):
    """Store of records. Used by one thread."""

    def resume(self, env_steps: int) -> None:
        """Drops the records after this environment step, from which training resumes. Called once, before `write`."""

    def write(self, record: Record) -> None:
        """Stores a record, now or later. Does not raise an error of the disk."""


class Records:
    """Sinks of a session's records, which each receive every record. Used by one thread."""

    def __init__(
        self,
        sinks: Sequence[RecordSink],
        *,
        resumed_at: int,
        completed: Callable[[Record], Record] = lambda record: record,
    ) -> None:
        """Opens the sinks of a run that resumes at environment step `resumed_at`.

        `completed` returns a record with the numbers of the user's callbacks.
        """
        self._sinks, self._completed = tuple(sinks), completed
        for sink in self._sinks:
            sink.resume(resumed_at)

    def write(self, record: Record) -> None:
        """Passes a record to every sink."""
        record = self._completed(record)
        for sink in self._sinks:
            sink.write(record)


def batch_numbers(status: RunStatus, statistics: "TrainingStatistics") -> dict[str, float | None]:
    """Returns numbers of one batch by their names in records, for the callbacks of a user."""
    run: dict[str, float | None] = {
        "env_steps": status.env_steps,
        "version": status.version,
        "episodes": status.episodes,
        "return_mean": status.return_mean,
    }
    return {**run, **_measured(statistics), **_of_infos(status.info_metrics)}


def _measured(statistics: "TrainingStatistics") -> dict[str, float | None]:
    learning = plain(statistics)
    own = {f"{OWN_STATISTIC}{name}": value for name, value in learning.pop("own").items()}
    return {**learning.pop("learning"), **learning, **own}


def _of_infos(info_metrics: Sequence[InfoMetric]) -> dict[str, float | None]:
    return {f"{INFO_METRIC}{each.name}": _rounded(each.mean) for each in info_metrics}


def _rounded(value: float | None) -> float | None:
    return float(f"{value:.6g}") if value is not None else None
