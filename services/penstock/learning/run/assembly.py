"""Assembles a session of a run from its settings, for the learner's service, for studies and for tests."""

import dataclasses
from pathlib import Path

import torch

from penstock.algo.network import Network
from penstock.algo.spaces import encoders_of_new, large_pictures, shown_encoders
from penstock.config import Config
from penstock.learning.durable import checkpoints
from penstock.learning.durable.checkpoints import Recovered
from penstock.learning.durable.episode_log import EpisodeLog
from penstock.learning.durable.event_files import EventFiles
from penstock.learning.durable.journal import Journal
from penstock.learning.durable.records import Records, RecordSink
from penstock.learning.durable.retried_writes import RetriedWrites
from penstock.learning.members.wanted_actors import ExpectedActors, WantedActors
from penstock.learning.ranks.ranks import ALONE, Ranks
from penstock.learning.report.return_curve import ReturnCurve
from penstock.learning.report.statistics import RunStatistics
from penstock.learning.run.evaluations import Evaluations
from penstock.learning.run.own_callbacks import OwnCallbacks
from penstock.learning.run.session import Lead, LearnerParts, Session
from penstock.learning.run.training import TrainingRun
from penstock.learning.step.chosen_execution import shown_execution
from penstock.learning.step.devices import export_gpu_metrics
from penstock.learning.step.learner import Learner
from penstock.runs.folder import RunFolder, find_checkpoint
from penstock.telemetry import metrics
from penstock.telemetry.logs import Logger
from penstock.types.spaces import EnvironmentSpec

_COMPARED = ("ppo", "policy", "sampling", "actor")
"""Sections of the settings that the HParams page shows."""


def open_session(config: Config, folder: RunFolder, recovered: Recovered) -> Session:
    """Begins a session with the state that earlier ones left."""
    resumed = recovered.progress
    statistics = RunStatistics(
        environment_id=config.environment.short_name,
        limits=config.run.limits,
        earlier_s=resumed.training_s,
        # Checkpoints of earlier releases lack `env_steps_taken`.
        earlier_steps_taken=max(resumed.env_steps, resumed.env_steps_taken),
        earlier_episodes=resumed.episodes,
        earlier_clock_s=resumed.clock_s,
        variants=config.environment.variant_names,
        info_metrics=config.environment.info_metrics,
        wanted=WantedActors(
            None if config.train.actors == "auto" else config.train.actors,
            least=config.least_wanted_actors,
            most=config.most_wanted_actors,
        ),
        expected=ExpectedActors(config.learner.expected_actors, config.learner.actors_command),
        curve=ReturnCurve(
            resumed=resumed.env_steps > 0,
            comparable=config.evaluation.deterministic
            and not (config.environment.variants or config.environment.training_kwargs),
        ),
    )
    for complaint in recovered.complaints:
        statistics.notice(complaint)
    return Session(config, folder, recovered, statistics, RetriedWrites(statistics.notice, folder=folder.root))


_FASTER_ON_A_CORE = "a core trains so small a network faster than a GPU; learner.device cuda uses the GPU all the same"
_WORK_OF_A_CORE = 16_000 * 512
"""Parameters times rows of a minibatch up to which one core takes a gradient step sooner than a GPU.

Measured with 512 rows (results/gpu/learner.json and learner_cpu_1.json): an H100 takes 264,000 samples/s with
9,800 parameters and 257,000 with 143,000, because launches take its time; a core of its host takes 369,000 and 67,000.
Between these, in proportion of logarithms, both take 260,000 with 17,000 parameters.
"""


def learner_of(
    config: Config,
    spec: EnvironmentSpec,
    device: torch.device,
    ranks: Ranks = ALONE,
    continued: Network | None = None,
) -> Learner:
    """Makes the configured learner for these spaces.

    A policy whose weights are loaded next is `continued`: it keeps its offsets, and its leaves their encoders unless
    `policy.encoders` names them. Raises `ConfigurationError` as `Learner`.
    """
    recorded = encoders_of_new(spec, config.policy.moves) if continued is None else continued.encoders
    # Passed by name, so that a setting unknown to the architecture is an error.
    network = Network(**{**dict(config.policy), "encoders": {**recorded, **config.policy.encoders}})
    if continued is not None:
        network = dataclasses.replace(network, observation_offsets=continued.observation_offsets)
    return Learner(
        spec,
        network,
        ppo=config.ppo,
        sampling=config.sampling,
        device=device,
        seed=config.run.seed,
        precision=config.learner.precision,
        execution=config.learner.execution,
        threads=config.learner.threads,
        ranks=ranks,
        loss=config.learner.loss,
        optimizer=config.learner.optimizer,
    )


def core_is_faster(config: Config, spec: EnvironmentSpec, continued: Network | None = None) -> bool:
    """Returns whether one core of a CPU trains this policy faster than a GPU. Takes the arguments of `learner_of`.

    It does so for small networks with dense layers alone, which take direct steps there. With another execution or
    precision, with several ranks, and with a loss of the user's own, no core was measured.
    """
    settings = config.learner
    if settings.execution != "auto" or settings.precision != "float32" or settings.loss is not None:
        return False
    learner = learner_of(config, spec, torch.device("cpu"), ALONE, continued)
    rows = config.sampling.batch_segments * config.actor.unroll_length / config.ppo.minibatches
    return learner.execution == "direct" and learner.parameters.numel() * rows <= _WORK_OF_A_CORE


def opened_learner(
    session: Session, spec: EnvironmentSpec, device: torch.device, lead: Lead, logger: Logger
) -> Learner:
    """Builds the learner for the first actor's spaces, so that its machine needs no environment.

    It continues the policy of the session's checkpoint, if there is one. Where the device is "auto", a
    core replaces the GPU for a small network that it trains faster.
    """
    config = session.config
    begun = config.run.start_from
    continued = session.recovered.path or (None if begun is None else find_checkpoint(Path(begun)))
    network = None if continued is None else checkpoints.read_network(continued)
    choosing = config.learner.device == "auto" and device.type == "cuda" and lead.link is None
    if choosing and core_is_faster(config, spec, network):
        device = torch.device("cpu")
        logger.info("device chosen", device="cpu", reason=_FASTER_ON_A_CORE)
    if missing := export_gpu_metrics(device):
        logger.warning("GPU utilisation not exported", reason=missing)
    learner = learner_of(config, spec, device, lead.ranks, network)
    metrics.LEARNER_DEVICE.labels(device.type).set(1)
    metrics.LEARNER_EXECUTION.labels(learner.execution).set(1)
    logger.info("policy built", parameters=learner.parameters.numel(), device=str(device), execution=learner.execution)
    if session.recovered.path is not None:
        checkpoints.restore(learner, session.recovered.path)
    elif continued is not None:
        checkpoints.start_from(learner, continued)
    encoders, hidden = learner.policy.network.encoders, learner.policy.network.critic_only
    executed = shown_execution(learner.execution, learner.policy, config.learner.execution)
    pictures = large_pictures(spec, encoders)
    for notice in (*learner.notices, shown_encoders(spec, encoders, hidden), *pictures, executed):
        session.statistics.notice(notice)
    return learner


def training_run(session: Session, parts: LearnerParts) -> TrainingRun:
    """Makes the training run of a session, with the sinks of its records."""
    folder, writes, notice = session.folder, session.writes, session.statistics.notice
    journal = Journal(folder.metrics, writes=writes, notice=notice)
    events = EventFiles(
        folder.event_files,
        folder.metrics,
        writes=writes,
        notice=notice,
        hyperparameters=_hyperparameters_of(session.config),
    )
    sinks: list[RecordSink] = [journal, events]
    if session.config.run.record_episodes:
        episodes = EpisodeLog(folder.episodes, writes=writes, notice=notice)
        session.statistics.record_episodes = episodes.ended
        sinks.append(episodes)
    callbacks = OwnCallbacks(session.config, parts.learner, session.statistics.session.called_back)
    resumed_at = session.recovered.progress.env_steps
    records = Records(sinks, resumed_at=resumed_at, completed=callbacks.completed)
    return TrainingRun(session, parts, records, Evaluations(parts.desk, session, records, parts.population), callbacks)


def _hyperparameters_of(config: Config) -> dict[str, str | float | bool]:
    """Returns the settings that TensorBoard's HParams page compares, by name."""
    settings: dict[str, str | float | bool] = {
        "environment.id": config.environment.short_name,
        "run.seed": config.run.seed,
    }
    for section in _COMPARED:
        for name, value in getattr(config, section):
            settings[f"{section}.{name}"] = value if isinstance(value, str | float | int) else str(value)
    return settings
