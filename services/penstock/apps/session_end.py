"""The end of a learner's session: its summary, what it tells others of the end, and the errors that end it."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from penstock.config import Config
from penstock.errors import ConfigurationError, PenstockError, SchemaMismatch, TrainingFailed, exit_code
from penstock.learning.report.statistics import RunStatistics
from penstock.learning.run.session import Session
from penstock.learning.run.training import Conclusion
from penstock.process.service import Service
from penstock.runs.end import RunEnd, announce
from penstock.runs.folder import RunFolder
from penstock.runs.summary import EvaluationOutcome, Summary, VariantOutcome
from penstock.telemetry import metrics
from penstock.types.evaluation import EvaluationSummary, VariantReturns


def summary_of(session: Session, conclusion: Conclusion, wall_s: float) -> Summary:
    """Returns the summary of a session that took `wall_s` seconds."""
    config, status = session.config, session.statistics.status()
    progress, evaluation, statistics = conclusion.progress, conclusion.evaluation, conclusion.statistics
    evaluated = {each.number: each for each in (evaluation.variants if evaluation else ())}
    return Summary(
        run_dir=str(session.folder.root),
        env_id=config.environment.short_name,
        seed=config.run.seed,
        env_steps=progress.env_steps,
        wall_s=wall_s,
        env_steps_per_s=conclusion.env_steps_per_s,
        evaluation=_outcome(evaluation),
        env_steps_to_threshold=progress.env_steps_to_threshold,
        learn_wall_s_to_threshold=progress.learn_wall_s_to_threshold,
        policy_version=evaluation.version if evaluation else progress.version,
        staleness_mean=statistics.staleness.mean if statistics and statistics.staleness else 0.0,
        samples_per_insert=conclusion.samples_per_insert,
        stopped=conclusion.stopped,
        variants=tuple(
            VariantOutcome(
                training.arguments,
                training.episodes,
                training.return_mean,
                _outcome(evaluated.get(training.number)),
                training.number,
            )
            for training in status.variants
        ),
        statistics=statistics,
        best_evaluation=_outcome(status.best_evaluation),
        env_steps_taken=progress.env_steps_taken,
        sessions=progress.sessions,
        total_wall_s=session.recovered.progress.wall_s + wall_s,
        total_env_steps_per_s=progress.env_steps / progress.training_s if progress.training_s > 0.0 else 0.0,
        updates=progress.updates,
        episodes=progress.episodes,
        minutes=progress.clock_s / 60.0,
        limit=config.run.limits.nearest(progress.extent),
        threshold=config.evaluation.threshold,
        stop_reason=conclusion.stop_reason,
    )


def announce_end(config: Config, service: Service, end: RunEnd | None) -> None:
    """Tells whom `run.on_end` names of the run's end, unless a launcher does."""
    if service.supervised or end is None:
        return
    if failure := announce(config.run.on_end, end):
        service.logger.warning("end of the run not sent", reason=failure)


@contextlib.contextmanager
def announcing_faults(config: Config, service: Service) -> Iterator[None]:
    """Announces an error that ends the context as the end of the run."""
    try:
        yield
    except Exception as error:
        folder = RunFolder(Path(config.run.dir or "."))
        announce_end(config, service, RunEnd.of_fault(folder, error, exit_code(error), config.environment.short_name))
        raise


@contextlib.contextmanager
def showing_errors(service: Service) -> Iterator[None]:
    """Shows an error that ends the context in the metrics, until Prometheus has read them."""
    try:
        yield
    except PenstockError:
        metrics.LEARNER_RUN_END.labels("error").set(1)
        service.await_scrape()
        raise


@contextlib.contextmanager
def failing_after_a_batch(statistics: RunStatistics) -> Iterator[None]:
    """Turns errors of settings into `TrainingFailed` once a batch was trained.

    The settings were valid then, and the files in the folder belong to the run.
    """
    try:
        yield
    except (ConfigurationError, SchemaMismatch) as error:
        cause = ConfigurationError if statistics.session.last is None else TrainingFailed
        raise cause(str(error)) from error


def _outcome(returns: EvaluationSummary | VariantReturns | None) -> EvaluationOutcome | None:
    if returns is None:
        return None
    if isinstance(returns, VariantReturns):
        return EvaluationOutcome(returns.episodes, returns.return_mean, returns.return_std)
    return EvaluationOutcome(
        returns.episodes, returns.return_mean, returns.return_std, returns.unfinished, returns.info_metrics
    )
