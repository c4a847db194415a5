"""`penstock learner`: admits actors, trains, publishes weights and maintains the run's folder."""

import dataclasses
import itertools
import time
from functools import partial
from pathlib import Path

import torch

from penstock.algo.policies import Network
from penstock.apps.disk_watch import DiskWatch
from penstock.apps.service import Service
from penstock.config import Config
from penstock.errors import ConfigurationError, SchemaMismatch, TrainingFailed
from penstock.files import remove_leftovers, restored_after, write_atomically
from penstock.learning import checkpoints, gpu_metrics
from penstock.learning.batches import BatchFeed
from penstock.learning.checkpoints import Recovered
from penstock.learning.devices import check_execution, torch_device
from penstock.learning.evaluations import Evaluations
from penstock.learning.journal import Journal
from penstock.learning.learner import Learner
from penstock.learning.retried_writes import RetriedWrites
from penstock.learning.roster import Roster, spread_temperatures
from penstock.learning.run_snapshots import RunSnapshots
from penstock.learning.statistics import RunStatistics
from penstock.learning.training import Conclusion, TrainingRun
from penstock.learning.versions import VersionMark
from penstock.rpc.loop import LoopThread
from penstock.rpc.run_servicer import RunServicer
from penstock.rpc.run_snapshots import RunSnapshotServicer
from penstock.rpc.sharded_source import open_batch_source
from penstock.rpc.snapshot_client import StoreSnapshots
from penstock.run_folder import RunFolder
from penstock.summary import EvaluationOutcome, Summary, VariantOutcome, nothing_left
from penstock.types import EnvironmentSpec, EvaluationSummary, RunStatus, Schema, VariantReturns

_ACTOR_WAIT_S = 0.05
_FAREWELL_S = 3.0


def run(config: Config) -> None:
    """Trains until the run is done or the service is stopped.

    Raises:
        ConfigurationError: A folder, checkpoint, address or device can't be used, or the replay service refuses the
            plan.
        TrainingFailed: The same, after a batch was trained.
    """
    settings = config.learner
    started = time.monotonic()
    with Service("learner", config.telemetry, listen=settings.listen, metrics_port=settings.metrics_port) as service:
        if config.run.dir is None:
            raise ConfigurationError("the learner needs a folder for the run; name one with --run-dir")
        folder = RunFolder(Path(config.run.dir))
        if reason := nothing_left(folder.summary, config.run):
            # The learner was killed after the run's end, or started again: the results must not be replaced.
            service.logger.warning("nothing to do", reason=reason)
            return
        folder.create()
        for leftover in [*remove_leftovers(folder.root), *remove_leftovers(folder.checkpoints)]:
            service.logger.warning("removed what a process left half written", file=str(leftover))
        device = torch_device(settings.device)
        check_execution(device, settings.execution)
        if unknown := gpu_metrics.show(device):
            service.logger.warning("the metrics lack the GPU's utilisation", reason=unknown)
        torch.set_num_threads(settings.threads)
        recovered = checkpoints.recover(folder)
        resumed = recovered.progress
        variants = config.environment.variant_names
        statistics = RunStatistics(
            total_steps=config.run.total_steps,
            earlier_s=resumed.training_s,
            # Checkpoints of earlier releases lack `env_steps_taken`.
            earlier_steps_taken=max(resumed.env_steps, resumed.env_steps_taken),
            variants=variants,
        )
        for complaint in recovered.complaints:
            statistics.notice(complaint)
        writes = RetriedWrites(statistics.notice)
        roster = Roster(
            folder.roster,
            seed=config.run.seed,
            replay_addresses=settings.replay_addresses,
            max_actors=settings.max_actors,
            rejoin_timeout_s=settings.rejoin_timeout_s,
            now=time.monotonic(),
            writes=writes,
            notice=statistics.notice,
            expected=recovered.path is not None,
            variants=max(1, len(variants)),
            temperatures=spread_temperatures(
                config.actor.lowest_temperature, config.actor.highest_temperature, config.train.least_actors
            ),
        )
        roster.spec = recovered.spec
        thread = LoopThread()
        desk = StoreSnapshots(thread, settings.replay_addresses)
        snapshots = RunSnapshots(desk, statistics, interval_s=config.checkpoint.snapshot_interval_s)
        servicer = RunServicer(
            thread,
            roster,
            statistics,
            max_actors=settings.max_actors,
            more_methods=RunSnapshotServicer(snapshots).behaviours,
        )
        thread.run(servicer.server.start(settings.listen))
        service.logger.info(
            "serving",
            listen=settings.listen,
            device=str(device),
            execution=settings.execution,
            precision=settings.precision,
            resumed_from=str(recovered.path),
        )
        disk_watch = DiskWatch(folder.root, lambda sound: thread.run(servicer.server.tell_storage(sound)))
        try:
            schema, spec = _await_first_actor(service, roster)
            if schema is None or spec is None:
                return
            learner = learner_of(config, spec, device)
            if recovered.path is not None:
                checkpoints.restore(learner, recovered.path)
            with restored_after(ConfigurationError, folder.config):
                if not service.supervised:
                    # A launcher writes this file, without which a run can't be evaluated, plotted or repeated.
                    settings_text = config.repeatable().to_toml().encode()
                    writes.write(folder.config.name, partial(write_atomically, folder.config, settings_text))
                conclusion = _train(
                    config,
                    service,
                    thread,
                    servicer,
                    roster,
                    statistics,
                    snapshots,
                    folder,
                    learner,
                    schema,
                    device,
                    recovered,
                    writes,
                )
            wall_s = time.monotonic() - started
            summary = _summary(config, folder, conclusion, statistics.status(), wall_s, resumed.wall_s)
            writes.write(folder.summary.name, partial(summary.write, folder.summary))
            if conclusion.stopped != "interrupted":
                statistics.enters("finished")
                servicer.finish(conclusion.stopped, _FAREWELL_S)
            roster.dismiss()
            writes.finish(f"the run is saved in {folder.checkpoints}; free space or make {folder.root} writable")
        finally:
            disk_watch.close()
            thread.run(servicer.server.stop())
            desk.close()
            thread.close()


def _await_first_actor(service: Service, roster: Roster) -> tuple[Schema | None, EnvironmentSpec | None]:
    """Waits for the first actor; returns its schema and spaces, so that the learner's machine needs no environment.

    Both are None if the service is stopped first.
    """
    while roster.schema is None and not service.wait(_ACTOR_WAIT_S):
        pass
    return roster.schema, roster.spec


def learner_of(config: Config, spec: EnvironmentSpec, device: torch.device) -> Learner:
    """Makes the configured learner for these spaces. Raises `ConfigurationError` as `Learner`."""
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
    """Returns the configured architecture."""
    # Passed by name, so that a setting unknown to the architecture is an error.
    return Network(**dict(config.policy))


def _train(
    config: Config,
    service: Service,
    thread: LoopThread,
    servicer: RunServicer,
    roster: Roster,
    statistics: RunStatistics,
    snapshots: RunSnapshots,
    folder: RunFolder,
    learner: Learner,
    schema: Schema,
    device: torch.device,
    recovered: Recovered,
    writes: RetriedWrites,
) -> Conclusion:
    resumed, notice = recovered.progress, statistics.notice
    journal = Journal(folder.metrics, resumed_at=resumed.env_steps, writes=writes, notice=notice)
    evaluations = Evaluations(
        servicer,
        config.evaluation,
        seed=config.run.seed,
        folder=folder,
        journal=journal,
        statistics=statistics,
        writes=writes,
        resumed=resumed,
        best=recovered.best,
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
            snapshots=snapshots,
            journal=journal,
            statistics=statistics,
            versions=VersionMark(
                folder.versions, resumed.version if resumed.env_steps else None, tell=statistics.notice
            ),
            folder=folder,
            writes=writes,
            resumed=resumed,
            stopping=lambda: service.stopping,
            largest_window=lambda: max(config.actor.environments, roster.largest_window),
        )
        conclusion = training.run()
        if conclusion.stopped != "interrupted":
            source.finish()
    except (ConfigurationError, SchemaMismatch) as error:
        # If a batch was trained, the settings were valid, and the files in the folder belong to the run.
        cause = ConfigurationError if statistics.training is None else TrainingFailed
        raise cause(str(error)) from error
    finally:
        source.close()
        feed.close()
    service.logger.info(
        "trained", stopped=conclusion.stopped, batches_by=source.reads, **dataclasses.asdict(conclusion.progress)
    )
    return conclusion


def _summary(
    config: Config, folder: RunFolder, conclusion: Conclusion, status: RunStatus, wall_s: float, earlier_s: float
) -> Summary:
    progress, evaluation, statistics = conclusion.progress, conclusion.evaluation, conclusion.statistics
    return Summary(
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
            for training, returns in itertools.zip_longest(status.variants, evaluation.variants if evaluation else ())
        ),
        statistics=statistics,
        best_evaluation=_outcome(status.best_evaluation),
        env_steps_taken=progress.env_steps_taken,
        sessions=progress.sessions,
        total_wall_s=earlier_s + wall_s,
        total_env_steps_per_s=progress.env_steps / progress.training_s if progress.training_s > 0.0 else 0.0,
    )


def _outcome(returns: EvaluationSummary | VariantReturns | None) -> EvaluationOutcome | None:
    if returns is None:
        return None
    unfinished = returns.unfinished if isinstance(returns, EvaluationSummary) else 0
    return EvaluationOutcome(returns.episodes, returns.return_mean, returns.return_std, unfinished)
