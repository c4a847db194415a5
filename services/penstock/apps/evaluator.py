"""`penstock evaluator`: plays the episodes that the learner requests."""

import contextlib
from functools import partial
from pathlib import Path

from penstock.acting.evaluation_films import FilmedEvaluations
from penstock.acting.evaluator import Evaluator
from penstock.apps.environments import make_configured
from penstock.config import Config
from penstock.errors import RunFinished
from penstock.process.service import Service
from penstock.rpc.clients.evaluation_work import EvaluationWork
from penstock.rpc.loop import LoopThread
from penstock.rpc.server import serve_health_only
from penstock.runs.folder import RunFolder
from penstock.runs.services_file import learner_of, patience_s
from penstock.types.evaluation import EvaluatorHello


def run(config: Config) -> int:
    """Evaluates until the run is over or the service is stopped.

    Returns the exit code: 0 if the run is over, else `Service.stop_code`.

    Raises:
        ConfigurationError: The environment or an address can't be used, or the run has other variants.
        EnvironmentFailed: The environments could not be made again, or could not be made although the launcher's
            check has made them before.
        PenstockError: The learner could not be reached for too long.
        SchemaMismatch: The run has other spaces.
    """
    settings = config.evaluation
    with Service("evaluator", config) as service, contextlib.ExitStack() as stack:
        evaluator = Evaluator(
            partial(make_configured, config.environment),
            episodes=settings.episodes,
            variants=len(config.environment.variant_kwargs),
            process=service,
            log=service.logger,
            module=config.policy.module,
            info_metrics=config.environment.info_metrics,
        )
        thread = LoopThread(service.credentials)
        stack.callback(thread.close)
        server = thread.run(serve_health_only(settings.listen, config.telemetry.ready_file))
        stack.callback(lambda: thread.run(server.stop()))
        stack.callback(evaluator.close)
        hello = EvaluatorHello(evaluator.environments.spec, service.location)
        patience = patience_s(settings, supervised=service.supervised)
        work = EvaluationWork(thread, learner_of(settings), hello, give_up_after_s=patience)
        stack.callback(work.close)
        root = settings.run or config.run.dir
        videos = None if root is None else RunFolder(Path(root).absolute()).videos
        films = FilmedEvaluations(
            work, videos, every=settings.film_every, limit_s=settings.timeout_s, log=service.logger
        )
        stack.callback(films.close)
        try:
            evaluator.run(films)
            return service.stop_code
        except RunFinished:
            return 0
