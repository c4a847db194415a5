"""`penstock evaluator`: plays the episodes that the learner asks for."""

import contextlib

from penstock.acting.evaluation import evaluate
from penstock.acting.inference import use_one_thread
from penstock.apps.environments import make_configured
from penstock.apps.service import Service
from penstock.config import Config, EnvironmentConfig
from penstock.errors import ConfigurationError, RunFinished
from penstock.rpc.evaluation_work import EvaluationWork
from penstock.rpc.loop import LoopThread
from penstock.rpc.server import serve_health_only
from penstock.telemetry import metrics

_WAIT_S = 0.5


def run(config: Config) -> None:
    """Evaluates until the run is over or told to stop.

    Raises:
        ConfigurationError: The environment or address can't be used.
        SchemaMismatch: The run trains something else.
    """
    settings = config.evaluation
    use_one_thread()
    with Service("evaluator", config.telemetry, listen=settings.listen, metrics_port=settings.metrics_port) as service:
        environments = make_configured(config.environment, settings.episodes)
        thread = LoopThread()
        server = thread.run(serve_health_only(settings.listen))
        work = EvaluationWork(thread, settings.learner_address, environments.spec)
        try:
            with contextlib.suppress(RunFinished):
                while not service.stopping:
                    task = work.next(_WAIT_S)
                    if task is None:
                        continue
                    _check_variants(config.environment, task.variants)
                    if task.episodes != environments.count:
                        environments.close()
                        environments = make_configured(config.environment, task.episodes)
                    result = evaluate(task, environments, lambda: service.stopping)
                    if result is not None:
                        work.deliver(result)
                        metrics.EVALUATOR_SECONDS.inc(result.seconds)
                        service.logger.info("evaluated", version=result.version, return_mean=result.return_mean)
        finally:
            work.close()
            environments.close()
            thread.run(server.stop())
            thread.close()


def _check_variants(environment: EnvironmentConfig, asked: int) -> None:
    known = len(environment.variant_kwargs)
    if asked != known:
        raise ConfigurationError(
            f"the run evaluates in {asked} environment variants, and here there are {known}; start all services with"
            " the run's configuration"
        )
