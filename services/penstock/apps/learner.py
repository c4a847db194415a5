"""`penstock learner`: takes actors in, trains, publishes, keeps the run's folder."""

import dataclasses
import itertools
import time
from pathlib import Path

import torch

from penstock.algo.policies import Network
from penstock.apps.service import Service
from penstock.config import Config
from penstock.errors import ConfigurationError, SchemaMismatch
from penstock.files import restored_after, write_atomically
from penstock.learning import checkpoints, gpu_metrics
from penstock.learning.batches import BatchFeed
from penstock.learning.checkpoints import RunProgress
from penstock.learning.devices import check_execution, torch_device
from penstock.learning.evaluations import Evaluations
from penstock.learning.journal import Journal
from penstock.learning.learner import Learner
from penstock.learning.roster import Roster, spread_temperatures
from penstock.learning.statistics import RunStatistics
from penstock.learning.training import Conclusion, TrainingRun
from penstock.learning.versions import VersionMark
from penstock.rpc.loop import LoopThread
from penstock.rpc.run_servicer import RunServicer
from penstock.rpc.sharded_source import open_batch_source
from penstock.run_folder import RunFolder
from penstock.summary import EvaluationOutcome, Summary, VariantOutcome
from penstock.types import EnvironmentSpec, EvaluationSummary, Schema, VariantReturns, VariantStatus

_ACTOR_WAIT_S = 0.05
_FAREWELL_S = 3.0


def run(config: Config) -> None:
    """Trains until the run is done or told to stop.

    Raises:
        ConfigurationError: A folder, checkpoint, address or device can't be used, or the replay service refuses the
            plan.
    """
    settings = config.learner
    started = time.monotonic()
    with Service("learner", config.telemetry, listen=settings.listen, metrics_port=settings.metrics_port) as service:
        if config.run.dir is None:
            raise ConfigurationError("the learner needs a folder for the run; name one with --run-dir")
        folder = RunFolder(Path(config.run.dir))
        folder.create()
        device = torch_device(settings.device)
        check_execution(device, settings.execution)
        if unknown := gpu_metrics.show(device):
            service.logger.warning("the metrics lack the GPU's utilisation", reason=unknown)
        torch.set_num_threads(settings.threads)
        newest = checkpoints.newest(folder)
        resumed = checkpoints.read_progress(newest) if newest else RunProgress()
        variants = config.environment.variant_names
        statistics = RunStatistics(total_steps=config.run.total_steps, earlier_s=resumed.training_s, variants=variants)
        roster = Roster(
            folder.roster,
            seed=config.run.seed,
            replay_addresses=settings.replay_addresses,
            max_actors=settings.max_actors,
            rejoin_timeout_s=settings.rejoin_timeout_s,
            now=time.monotonic(),
            variants=max(1, len(variants)),
            temperatures=spread_temperatures(
                config.actor.lowest_temperature, config.actor.highest_temperature, config.train.least_actors
            ),
        )
        roster.spec = checkpoints.read_spec(newest) if newest else None
        thread = LoopThread()
        servicer = RunServicer(thread, roster, statistics, max_actors=settings.max_actors)
        thread.run(servicer.server.start(settings.listen))
        service.logger.info(
            "serving",
            listen=settings.listen,
            device=str(device),
            execution=settings.execution,
            precision=settings.precision,
            resumed_from=str(newest),
        )
        try:
            schema, spec = _await_first_actor(service, roster)
            if schema is None or spec is None:
                return
            learner = learner_of(config, spec, device)
            if newest is not None:
                checkpoints.restore(learner, newest)
            with restored_after(ConfigurationError, folder.config):
                if not service.supervised:
                    # As a launcher would: it makes the folder a run that can be evaluated, plotted and repeated.
                    write_atomically(folder.config, config.repeatable().to_toml().encode())
                conclusion = _train(
                    config, service, thread, servicer, roster, statistics, folder, learner, schema, device, resumed
                )
            _write_summary(config, folder, conclusion, statistics.status().variants, time.monotonic() - started)
            if conclusion.stopped != "interrupted":
                statistics.enters("finished")
                servicer.finish(conclusion.stopped, _FAREWELL_S)
            roster.dismiss()
        finally:
            thread.run(servicer.server.stop())
            thread.close()


def _await_first_actor(service: Service, roster: Roster) -> tuple[Schema | None, EnvironmentSpec | None]:
    """The schema and spaces of the first actor that joins; the learner's machine needs no environment of its own."""
    while roster.schema is None and not service.wait(_ACTOR_WAIT_S):
        pass
    return roster.schema, roster.spec


def learner_of(config: Config, spec: EnvironmentSpec, device: torch.device) -> Learner:
    """The learner that is configured, of these spaces. Raises `ConfigurationError` as `Learner`."""
    return Learner(
        spec,
        _network_of(config),
        ppo=config.ppo,
        sampling=config.sampling,
        device=device,
        seed=config.run.seed,
        precision=config.learner.precision,
        execution=config.learner.execution,
    )


def _network_of(config: Config) -> Network:
    """The architecture that is configured."""
    policy = config.policy
    return Network(
        hidden_sizes=policy.hidden_sizes,
        trunk=policy.trunk,
        activation=policy.activation,
        initial_log_std=policy.initial_log_std,
        state_dependent_std=policy.state_dependent_std,
        squash_actions=policy.squash_actions,
        normalise_observations=policy.normalise_observations,
        normalise_returns=policy.normalise_returns,
    )


def _train(
    config: Config,
    service: Service,
    thread: LoopThread,
    servicer: RunServicer,
    roster: Roster,
    statistics: RunStatistics,
    folder: RunFolder,
    learner: Learner,
    schema: Schema,
    device: torch.device,
    resumed: RunProgress,
) -> Conclusion:
    journal = Journal(folder.metrics, resumed_at=resumed.env_steps)
    evaluations = Evaluations(
        servicer,
        config.evaluation,
        seed=config.run.seed,
        folder=folder,
        journal=journal,
        statistics=statistics,
        resumed=resumed,
        variants=len(config.environment.variants),
    )
    feed = BatchFeed(device)
    source = open_batch_source(
        thread,
        config.learner.replay_addresses,
        schema,
        prefetch_batches=config.learner.prefetch_batches,
        shard_timeout_s=config.learner.shard_timeout_s,
        largest_window=lambda: max(config.actor.environments, roster.largest_window),
        stopping=lambda: service.stopping,
        arrived=feed.arrived,
    )
    try:
        training = TrainingRun(
            config,
            learner,
            feed=feed,
            source=source,
            sink=servicer,
            evaluations=evaluations,
            journal=journal,
            statistics=statistics,
            versions=VersionMark(folder.versions),
            folder=folder,
            resumed=resumed,
            stopping=lambda: service.stopping,
        )
        conclusion = training.run()
        if conclusion.stopped != "interrupted":
            source.finish()
    except SchemaMismatch as error:
        raise ConfigurationError(str(error)) from error
    finally:
        source.close()
        feed.close()
        journal.close()
    service.logger.info(
        "trained", stopped=conclusion.stopped, batches_by=source.reads, **dataclasses.asdict(conclusion.progress)
    )
    return conclusion


def _write_summary(
    config: Config, folder: RunFolder, conclusion: Conclusion, variants: tuple[VariantStatus, ...], wall_s: float
) -> None:
    progress, evaluation, statistics = conclusion.progress, conclusion.evaluation, conclusion.statistics
    Summary(
        run_dir=str(folder.root),
        env_id=config.environment.id,
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
            VariantOutcome(training.arguments, training.episodes, training.return_mean, _outcome(returns))
            for training, returns in itertools.zip_longest(variants, evaluation.variants if evaluation else ())
        ),
        statistics=statistics,
    ).write(folder.summary)


def _outcome(returns: EvaluationSummary | VariantReturns | None) -> EvaluationOutcome | None:
    return EvaluationOutcome(returns.episodes, returns.return_mean, returns.return_std) if returns else None
