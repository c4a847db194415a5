"""`penstock actor`: joins a run, collects windows under grants and sends them."""

import contextlib
import functools
import os
import socket

from penstock.acting.environments.offsets import offsets_of
from penstock.acting.environments.progress import Progress
from penstock.acting.environments.replaceable import ReplaceableEnvironments
from penstock.acting.environments.training_turns import TrainingTurns
from penstock.acting.environments.vectors import Environments, device_of
from penstock.acting.loop import ActorParts, act
from penstock.acting.policies.runners import runner_of
from penstock.acting.protocols import Runner
from penstock.acting.reports import report_failure
from penstock.acting.values.spaces import segment_schema
from penstock.algo.spaces import check_spaces
from penstock.apps.environments import variants_of, variation_of
from penstock.config import Config
from penstock.errors import EnvironmentFailed, RunFinished
from penstock.machine.addresses import Address
from penstock.process.hang_watch import HangWatch
from penstock.process.service import SUPERVISED_VARIABLE, Service
from penstock.rpc.clients.membership import Membership
from penstock.rpc.clients.segment_sink import ReplaySegmentSink
from penstock.rpc.loop import LoopThread
from penstock.rpc.server import serve_health_only
from penstock.runs.services_file import learner_of, patience_s
from penstock.telemetry import metrics
from penstock.types.run import Weights
from penstock.types.spaces import EnvironmentSpec

_DRAIN_S = 2.0


def run(config: Config) -> int:
    """Collects until the run is over or the service is stopped.

    Returns the exit code: 0 if the run is over, else `Service.stop_code`.

    Raises:
        ConfigurationError: The environment or an address can't be used.
        EnvironmentFailed: The environments failed and could not be made again.
        ForeignCode: The learner's policy names another module than policy.module.
        PenstockError: The learner could not be reached for too long.
        SchemaMismatch: The run has another schema or other spaces.
    """
    with Service("actor", config) as service:
        progress = Progress()
        watch = HangWatch(
            progress.now, lambda: service.stopping, timeout_s=config.step_patience_s, env_id=config.environment.id
        )
        turns = TrainingTurns(functools.partial(variation_of, config.environment), config.environment.frame_stack)
        environments = _environments_of(config, service, progress, turns)
        policy = config.policy
        check_spaces(environments.spec, policy.encoders, policy.moves, policy.critic_only)
        offsets_of(environments.spec, config.policy.observation_offsets)
        return _collect(config, service, environments, progress, watch, turns)


def _collect(
    config: Config,
    service: Service,
    environments: ReplaceableEnvironments,
    progress: Progress,
    watch: HangWatch,
    turns: TrainingTurns,
) -> int:
    """Collects with these environments, which it closes; returns the exit code. What is opened last is closed first."""
    settings, schema = config.actor, segment_schema(environments.spec, **config.recorded)
    with contextlib.ExitStack() as stack:
        thread = LoopThread(service.credentials)
        stack.callback(thread.close)
        server = thread.run(serve_health_only(settings.listen, config.telemetry.ready_file))
        stack.callback(lambda: thread.run(server.stop()))
        stack.callback(environments.close)
        membership = Membership(
            thread,
            learner_of(settings),
            schema,
            environments.spec,
            settings.environments,
            name=_actor_name(settings.listen),
            location=service.location,
            progress=progress.now,
            assigned=lambda assignment: service.set_slot(assignment.slot),
            give_up_after_s=patience_s(settings, supervised=service.supervised),
        )
        stack.callback(membership.close)

        def report(failure: EnvironmentFailed) -> None:
            report_failure(membership, service.logger, failure)
            membership.drain(_DRAIN_S)

        watch.report = report
        stack.callback(watch.ending)
        parts = ActorParts(
            run=membership,
            open_sink=lambda assignment: ReplaySegmentSink(
                thread,
                assignment,
                schema,
                place=membership.replay,
                steps=lambda: progress.steps,
                window_s=lambda: progress.window_s,
            ),
            load=functools.partial(_load, config, environments),
            environments=environments,
            process=service,
            log=service.logger,
            schema=schema,
            discount=config.ppo.discount,
            largest_magnitude=config.environment.largest_magnitude,
            ready_share=config.environment.ready_share,
            info_metrics=config.environment.info_metrics,
            play=turns.play,
            exchange=metrics.exchange_cpu_time,
        )
        try:
            act(parts)
        except RunFinished:
            watch.code = 0
        except EnvironmentFailed as failure:
            report(failure)
            raise
        else:
            watch.code = service.stop_code
    return watch.code


def _load(config: Config, environments: ReplaceableEnvironments, weights: Weights, temperature: float) -> Runner:
    device = device_of(environments.current) if config.environment.ready_share == 1.0 else None
    inference, module = config.actor.inference, config.policy.module
    runner = runner_of(weights, temperature=temperature, inference=inference, module=module, device=device)
    metrics.ACTOR_NUMPY.set(runner.library == "numpy")
    return runner


def _environments_of(
    config: Config, service: Service, progress: Progress, turns: TrainingTurns
) -> ReplaceableEnvironments:
    environment = config.environment
    # Each environment may be awaited by itself.
    alone = environment.ready_share < 1.0 and environment.workers is None
    variants = variants_of(
        environment,
        environment.training_variants,
        timeout_s=config.actor.step_timeout_s,
        workers=config.actor.environments if alone else None,
    )

    def make(variant: int | None, spec: EnvironmentSpec | None) -> Environments:
        count = config.actor.environments
        if variant is None:
            return turns.make(variants.makings[0], count, spec=spec, progress=progress)
        return variants.make(variant, count, spec=spec, progress=progress)

    return ReplaceableEnvironments(make, progress, service, service.logger)


def _actor_name(listen: str) -> str:
    """Returns the actor's name: the one given by its launcher, else host and port, or host and process id for port 0.

    A process that replaces the actor has the same name, unless the name contains the process id.
    """
    supervised = os.environ.get(SUPERVISED_VARIABLE, "")
    return supervised or f"{socket.gethostname()}:{Address.parse(listen).port or os.getpid()}"
