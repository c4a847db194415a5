"""Records of a run's progress, and the sinks that store them, such as the journal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from numpy.typing import NDArray

from penstock.runs.metrics import INFO_METRIC, OWN_STATISTIC
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
        coordinator, learning = status.coordinator, plain(statistics)
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
        own = {f"{OWN_STATISTIC}{name}": value for name, value in learning.pop("own").items()}
        measured = {**learning.pop("learning"), **learning, **own, **plain(times)}
        rounded = {name: _rounded(value) for name, value in measured.items()} | _of_infos(status.info_metrics)
        return cls("training", status.env_steps, {**values, **rounded}, status.variants, distributions or {})

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

    def __init__(self, sinks: Sequence[RecordSink], *, resumed_at: int) -> None:
        """Opens the sinks of a run that resumes at environment step `resumed_at`."""
        self._sinks = tuple(sinks)
        for sink in self._sinks:
            sink.resume(resumed_at)

    def write(self, record: Record) -> None:
        """Passes a record to every sink."""
        for sink in self._sinks:
            sink.write(record)


def _of_infos(info_metrics: Sequence[InfoMetric]) -> dict[str, float | None]:
    return {f"{INFO_METRIC}{each.name}": _rounded(each.mean) for each in info_metrics}


def _rounded(value: float | None) -> float | None:
    return float(f"{value:.6g}") if value is not None else None
