"""Size of the store of `penstock train`.

The environment check finds the size of a segment, so that observations of any size fit.
"""

from penstock.config import Config
from penstock.errors import ConfigurationError

_ROOM = 2
"""Multiple of the least size that a store has by default, so that about as many segments can be replayed."""


def sized_segments(config: Config) -> int:
    """Returns the segments whose size in bytes decides about the store: as many as configured, or the least."""
    return config.replay.store_size.segments(config.actor.unroll_length) or config.least_segments


def with_store(config: Config, needed_bytes: int, free_bytes: int) -> Config:
    """Returns the configuration with a store that is large enough.

    A size in segments or steps was checked with the configuration, and the replay service converts it.

    Args:
        config: Configuration of the run.
        needed_bytes: Size in bytes of a store with `sized_segments`.
        free_bytes: Bytes that are free where the stores will be.

    Raises:
        ConfigurationError: The configured size in bytes is too small, or the disk is too small for the size that is
            needed.
    """
    replay, sampling, name = config.replay, config.sampling, config.environment.short_name
    size = replay.store_size
    if size.unit != "bytes":
        return config
    if replay.capacity_bytes is None:
        wanted = _ROOM * needed_bytes
        stores = wanted * config.train.replay_shards
        if wanted > size.amount and stores > free_bytes:
            raise ConfigurationError(
                f"the stores of {name} need {stores} bytes for these settings, and {free_bytes} are free; set"
                f" {_smaller(config, free_bytes / stores)} or less, or choose another replay.folder"
            )
        return config.changed({"replay": {"capacity_bytes": max(wanted, size.amount)}})
    if size.amount < needed_bytes:
        raise ConfigurationError(
            f"{size} is too small for {name}: batches of {sampling.batch_segments} segments with"
            f" sampling.min_replay_segments {sampling.min_replay_segments} need {config.least_segments} in the store;"
            f" set it to {needed_bytes} or more, or leave it unset"
        )
    return config


def _smaller(config: Config, share: float) -> str:
    """Returns the setting, and its value, with which this share of the store's size is large enough."""
    sampling, segments = config.sampling, int(share * config.least_segments)
    replay_from = max(0, segments - sampling.fresh_segments)
    if config.changed({"sampling": {"min_replay_segments": replay_from}}).least_segments <= segments:
        return f"sampling.min_replay_segments to {replay_from}"
    degree_1 = config.changed({"sampling": {"off_policy_degree": 1}})
    if config.degree > 1 and degree_1.least_segments <= segments:
        return "sampling.off_policy_degree to 1"
    # The bytes of a segment are about proportional to its steps.
    return f"actor.unroll_length to {max(2, int(share * config.actor.unroll_length))}"


def conversion(config: Config, needed_bytes: int) -> str:
    """Returns one line with the size in bytes of a store that is configured in segments or steps; else empty."""
    size, segments = config.replay.store_size, sized_segments(config)
    if size.unit == "bytes":
        return ""
    each = f" for each of {config.train.replay_shards} services" if config.train.replay_shards > 1 else ""
    return f"{size}: a store of {segments:,} segments, {needed_bytes:,} bytes{each}"
