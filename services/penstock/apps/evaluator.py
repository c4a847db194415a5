"""`penstock evaluator`: plays the episodes that the learner requests."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from penstock.acting import faults
from penstock.acting.environments import Environments
from penstock.acting.evaluation import evaluate
from penstock.acting.inference import use_one_thread
from penstock.apps.environments import make_configured, take_process_back
from penstock.apps.service import Service
from penstock.config import Config, EnvironmentConfig
from penstock.errors import ConfigurationError, EnvironmentFailed, PenstockError, RunFinished
from penstock.rpc.evaluation_work import EvaluationWork
from penstock.rpc.loop import LoopThread
from penstock.rpc.server import serve_health_only
from penstock.telemetry import metrics
from penstock.telemetry.logs import Logger
from penstock.types import EvaluationResult, EvaluationTask

_WAIT_S = 0.5
_HANG_FACTOR = 1.05
"""Multiple of an evaluation's time limit after which a step counts as hung: the limit is checked after each step."""

_DELIVERY_S = 1.0
"""Seconds for sending the last result before the process ends itself."""

_CRASHED = 1


def run(config: Config) -> None:
    """Evaluates until the run is over or the service is stopped.

    Raises:
        ConfigurationError: The environment or an address can't be used, or the run has other variants.
        EnvironmentFailed: The environments could not be made again, or could not be made although the launcher's
            check has made them before.
        SchemaMismatch: The run has other spaces.
    """
    settings = config.evaluation
    use_one_thread()
    with Service("evaluator", config.telemetry, listen=settings.listen, metrics_port=settings.metrics_port) as service:
        folder = Path.cwd()
        environments = _first(config.environment, settings.episodes, service, folder)
        thread = LoopThread()
        server = thread.run(serve_health_only(settings.listen))
        work = EvaluationWork(thread, settings.learner_address, environments.spec)
        usable = True
        try:
            with contextlib.suppress(RunFinished):
                while not service.stopping:
                    task = work.next(_WAIT_S)
                    if task is None:
                        continue
                    _check_variants(config.environment, task.variants)
                    with _ended_if_it_hangs(task, work):
                        if not usable or task.episodes != environments.count:
                            _close(environments, service.logger)
                            with _reported(task, work):
                                environments = _made(config.environment, task.episodes, service, folder)
                        result = play(task, environments, lambda: service.stopping)
                    if result is None:
                        continue
                    work.deliver(result)
                    metrics.EVALUATOR_SECONDS.inc(result.seconds)
                    _log(service.logger, result)
                    # Environments that raised may be in any state.
                    usable = not result.failure
        finally:
            work.close()
            _close(environments, service.logger)
            thread.run(server.stop())
            thread.close()


def play(task: EvaluationTask, environments: Environments, stopping: Callable[[], bool]) -> EvaluationResult | None:
    """Plays a task; returns its result, which is a failure if an environment raised, or None if `stopping` ended it."""
    started = time.monotonic()
    try:
        return evaluate(task, environments, stopping)
    except faults.MISBEHAVIOUR as error:
        # The service handles signals itself, so an interrupt or an exit here comes from the environment.
        return _failed(task, time.monotonic() - started, _reason(error))


def _first(environment: EnvironmentConfig, count: int, service: Service, folder: Path) -> Environments:
    """Makes the environments before any task. Raises `ConfigurationError`, or `EnvironmentFailed` under a launcher."""
    try:
        return _made(environment, count, service, folder)
    except EnvironmentFailed as failed:
        if service.supervised:
            raise
        raise ConfigurationError(str(failed)) from failed


def _made(environment: EnvironmentConfig, count: int, service: Service, folder: Path) -> Environments:
    """Makes the configured environments. Raises `EnvironmentFailed` if they can't be made."""
    try:
        return make_configured(environment, count)
    except faults.MISBEHAVIOUR as error:
        raise EnvironmentFailed(_reason(error)) from error
    finally:
        take_process_back(service, folder)


def _close(environments: Environments, logger: Logger) -> None:
    """Closes environments; an error is only logged."""
    try:
        environments.close()
    except faults.MISBEHAVIOUR as error:
        logger.warning("closing an environment failed", error=faults.describe(error))


def _reason(error: BaseException) -> str:
    """Describes an error in one line, with the exception's class unless the message is Penstock's own."""
    return faults.one_line(str(error)) if isinstance(error, PenstockError) else faults.describe(error)


@contextlib.contextmanager
def _reported(task: EvaluationTask, work: EvaluationWork) -> Iterator[None]:
    """Reports a failure to make environments as the task's result before the failure ends this process."""
    try:
        yield
    except EnvironmentFailed as failed:
        work.deliver(_failed(task, 0.0, str(failed)))
        time.sleep(_DELIVERY_S)
        raise


@contextlib.contextmanager
def _ended_if_it_hangs(task: EvaluationTask, work: EvaluationWork) -> Iterator[None]:
    """Ends this process, so that it is restarted, if a step hangs: a hung thread can't be ended otherwise."""

    def end() -> None:
        work.deliver(_failed(task, limit_s, f"the environment did not come back from a step within {limit_s:.0f} s"))
        time.sleep(_DELIVERY_S)
        os._exit(_CRASHED)

    limit_s = min(_HANG_FACTOR * task.max_seconds, threading.TIMEOUT_MAX)
    watch = threading.Timer(limit_s, end)
    watch.daemon = True
    watch.start()
    try:
        yield
    finally:
        watch.cancel()


def _failed(task: EvaluationTask, seconds: float, failure: str) -> EvaluationResult:
    return EvaluationResult(task.id, task.weights.version, (), (), seconds, failure=failure)


def _log(logger: Logger, result: EvaluationResult) -> None:
    if result.failure:
        logger.warning("evaluation failed", version=result.version, reason=result.failure)
    else:
        mean, unfinished = result.return_mean, result.unfinished
        logger.info("evaluated", version=result.version, return_mean=mean, unfinished=unfinished)


def _check_variants(environment: EnvironmentConfig, asked: int) -> None:
    known = len(environment.variant_kwargs)
    if asked != known:
        raise ConfigurationError(
            f"the run evaluates in {asked} environment variants, and here there are {known}; start all services with"
            " the run's configuration"
        )
