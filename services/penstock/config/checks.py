"""Checks across settings: combinations that would deadlock, or that contradict each other.

Each check returns one sentence that names the settings and a value that works, or None.
"""

from penstock.config import derived_settings, replay_law
from penstock.config.sections import Sections
from penstock.gate_law import collection_conflict, shard_window_conflict, shards_conflict, window_conflict
from penstock.types.replay import MAX_BATCH_SEGMENTS

ONLY_SINGLE = ("wrappers", "python", "pad_spaces", "show_variant")
"""Settings of [environment] that an environment's own vectorised form can't have."""


def first_conflict(config: Sections) -> str | None:
    """Returns the sentence of the first check that refuses this configuration; None if it can start."""
    return next((reason for check in _CHECKS if (reason := check(config))), None)


def _batch_size(config: Sections) -> str | None:
    if config.sampling.batch_segments <= MAX_BATCH_SEGMENTS:
        return None
    remedy = derived_settings.remedy_of_size(config.fitting_batch, MAX_BATCH_SEGMENTS, config.collection)
    return (
        f"sampling.batch_segments {config.sampling.batch_segments:g} exceeds {MAX_BATCH_SEGMENTS}, the segments"
        f" of the largest batch; {remedy}"
    )


def _normalisation(config: Sections) -> str | None:
    if config.sampling.fresh_segments or not (config.policy.normalise_observations or config.policy.normalise_returns):
        return None
    return (
        "running normalisation learns from fresh segments, and with sampling.fresh_fraction 0 there are none;"
        " set policy.normalise_observations and policy.normalise_returns to false, or raise the fraction"
    )


def _memory(config: Sections) -> str | None:
    if not config.ppo.burn_in_steps or config.policy.memory is not None:
        return None
    return (
        f"ppo.burn_in_steps {config.ppo.burn_in_steps} needs policy.memory, which is not set; set it to gru, or"
        " remove ppo.burn_in_steps"
    )


def _native(config: Sections) -> str | None:
    environment = config.environment
    single = [f"environment.{name}" for name in ONLY_SINGLE if getattr(environment, name)]
    if config.varies_episodes:
        single.append("environment.vary episodes")
    if not single or environment.vectorization != "native":
        return None
    return f"{single[0]} needs single environments, and environment.vectorization is native; set it to sync or process"


def _turns(config: Sections) -> str | None:
    plays_itself = any(arguments.get("opponent") == "self" for arguments in config.environment.training_variants)
    if not plays_itself or not config.environment.id.startswith("open_spiel:") or config.ppo.discount < 0.0:
        return None
    return (
        "a policy that plays against itself needs a negative ppo.discount, because the value after a move is the"
        f" opponent's, and it is {config.ppo.discount:g}; set it to {-config.ppo.discount:g}"
    )


def _windows(config: Sections) -> str | None:
    for arguments in (*config.environment.variant_kwargs, config.environment.training_kwargs):
        if arguments.get("render_mode") == "human":
            return (
                "render_mode human would open a window for each environment; remove it from environment.kwargs, and"
                " watch the policy with `penstock evaluate RUN --human`"
            )
    return None


def _ready(config: Sections) -> str | None:
    environment = config.environment
    if environment.ready_share == 1.0 or environment.vectorization == "process":
        return None
    return (
        f"environment.ready_share {environment.ready_share:g} needs worker processes, because environments in the"
        " actor's process all answer at once; set environment.vectorization to process, or remove"
        " environment.ready_share"
    )


def _moves(config: Sections) -> str | None:
    policy = config.policy
    if policy.moves is None or (policy.trunk == "separate" and policy.memory is None):
        return None
    return (
        "policy.moves computes the logits from the board alone; set policy.trunk to separate, and remove policy.memory"
    )


def _critic_only(config: Sections) -> str | None:
    policy = config.policy
    apart = policy.trunk == "separate" and policy.memory is None and policy.module is None and policy.moves is None
    if apart or not policy.critic_only:
        return None
    return (
        "policy.critic_only needs an actor and a critic that share no layer and have no module of their own; set"
        " policy.trunk to separate, and remove policy.memory, policy.module and policy.moves"
    )


def _gate(config: Sections) -> str | None:
    fresh, degree, window = config.sampling.fresh_segments, config.degree, config.actor.environments
    reason = (
        shards_conflict(fresh, config.shards)
        or window_conflict(fresh, degree, window)
        or shard_window_conflict(fresh, degree, window, config.shards)
    )
    return f"{reason} (sampling.batch_segments {config.fitting_batch} fits)" if reason and fresh else reason


def _replay(config: Sections) -> str | None:
    sampling, fresh = config.sampling, config.sampling.fresh_segments
    if fresh == sampling.batch_segments:
        return None
    age = replay_law.first_replay_age(
        fresh=fresh,
        degree=config.degree,
        publish_interval=sampling.publish_interval,
        prefetched=config.learner.prefetch_batches,
    )
    return replay_law.staleness_conflict(sampling.max_staleness, age) or replay_law.decay_conflict(
        sampling.half_life, age
    )


def _store(config: Sections) -> str | None:
    sampling, size, least = config.sampling, config.replay.store_size, config.least_segments
    length = config.actor.unroll_length
    segments = size.segments(length)
    if segments is None or segments >= least:
        return None
    works = least * length if size.unit == "steps" else least
    return (
        f"{size} is too small: batches of {sampling.batch_segments} segments with sampling.min_replay_segments"
        f" {sampling.min_replay_segments} need {least} segments of {length} steps in the store; set it to {works} or"
        " more"
    )


def _episodes(config: Sections) -> str | None:
    if config.sampling.fresh_segments:
        return None
    for amounts, name in (
        (config.run.limits, "run.total_episodes"),
        (config.evaluation.intervals, "evaluation.interval_episodes"),
        (config.checkpoint.intervals, "checkpoint.save_interval_episodes"),
    ):
        if amounts.episodes is not None:
            return (
                f"{name} {amounts.episodes} needs fresh segments, in which episodes are counted, and with"
                " sampling.fresh_fraction 0 there are none; use the setting for steps, or raise the fraction"
            )
    return None


def _minibatches(config: Sections) -> str | None:
    return replay_law.minibatch_conflict(
        minibatches=config.ppo.minibatches,
        segments=config.sampling.batch_segments,
        unroll_length=config.actor.unroll_length,
        recurrent=config.policy.memory is not None,
        normalise=config.ppo.normalise_advantages,
    )


def _collection(config: Sections) -> str | None:
    sampling = config.sampling
    if config.varies_episodes and config.environment.variants:
        if sampling.collection != "error":
            return None
        return (
            "sampling.collection error needs segments of one variant each, and with environment.vary episodes a segment"
            " has several; set it to return or learnability"
        )
    return collection_conflict(
        sampling.collection,
        variants=len(config.environment.variants),
        fresh=sampling.fresh_segments,
        degree=config.degree,
    )


def _places(config: Sections) -> str | None:
    actors, most = config.train.least_actors, min(config.learner.max_actors, config.shards * config.replay.max_actors)
    if actors <= most:
        return None
    return (
        f"{actors} actors exceed the {most} that learner.max_actors {config.learner.max_actors} and"
        f" replay.max_actors {config.replay.max_actors} permit; set both to {actors}, or train.actors to {most}"
    )


def _wanted_actors(config: Sections) -> str | None:
    least, most, places = config.least_wanted_actors, config.most_wanted_actors, config.learner.max_actors
    if least <= most <= places:
        return None
    if least > most:
        return (
            f"learner.most_wanted_actors {most} is below the {least} actors that the run needs (learner"
            f".least_wanted_actors, replay services and environment.variants); set it to {least} or more"
        )
    return (
        f"learner.most_wanted_actors {most} exceeds learner.max_actors {places}, and further actors are refused; set it"
        f" to {places} or less"
    )


def _variants(config: Sections) -> str | None:
    variants, actors, episodes = len(config.environment.variants), config.train.least_actors, config.evaluation.episodes
    if config.environment.vary == "episodes" and not variants:
        return (
            "environment.vary episodes needs environment.variants, and there is none; give at least one, or set it to"
            " auto"
        )
    if variants > actors and not config.varies_episodes:
        return (
            f"{actors} actors are too few for {variants} environment.variants, each of which needs one with"
            " environment.vary actors; set it to auto, raise train.actors or remove variants"
        )
    if variants > episodes:
        return f"{episodes} episodes can't be spread over {variants} environment.variants; raise evaluation.episodes"
    return None


def _temperatures(config: Sections) -> str | None:
    lowest, highest = config.actor.lowest_temperature, config.actor.highest_temperature
    if config.train.least_actors > 1 or lowest == highest:
        return None
    return (
        f"a single actor can't have temperatures from {lowest:g} to {highest:g}; raise train.actors, or set"
        " actor.lowest_temperature and actor.highest_temperature to the same value"
    )


_CHECKS = (
    _batch_size,
    _normalisation,
    _memory,
    _moves,
    _critic_only,
    _native,
    _turns,
    _windows,
    _ready,
    _gate,
    _replay,
    _store,
    _episodes,
    _minibatches,
    _collection,
    _places,
    _wanted_actors,
    _variants,
    _temperatures,
)
