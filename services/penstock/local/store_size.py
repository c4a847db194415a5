"""The size of the store of a run, which must be known before its service starts.

The environment check finds the size of a segment, so that observations of any size fit.
"""

from penstock.config import Config
from penstock.errors import ConfigurationError

_ROOM = 2
"""Multiple of the least size that a store has by default, so that about as many segments can be replayed."""


def sized_segments(config: Config) -> int:
    """Returns the segments whose size in bytes decides about the store: as many as configured, or the least."""
    return config.replay.store_size.segments(config.actor.unroll_length) or config.least_segments


def with_store(config: Config, needed_bytes: int) -> Config:
    """Returns the configuration with a store that is large enough; `needed_bytes` hold `sized_segments`.

    A size in segments or steps was checked with the configuration, and the replay service converts it. Raises
    `ConfigurationError` if the configured size in bytes is too small.
    """
    replay, size = config.replay, config.replay.store_size
    if size.unit != "bytes":
        return config
    if replay.capacity_bytes is None:
        wanted = max(size.amount, _ROOM * needed_bytes)
        return config.changed({"replay": {"capacity_bytes": wanted}})
    # Each of several services holds only a part of a batch, and checks its store itself.
    if config.train.replay_shards == 1 and size.amount < needed_bytes:
        raise ConfigurationError(
            f"{size} is too small for {config.environment.short_name}: batches of {config.sampling.batch_segments}"
            f" segments need {config.least_segments} in the store; set it to {needed_bytes} or more, or leave it unset"
        )
    return config


def conversion(config: Config, needed_bytes: int) -> str:
    """Returns one line with the size in bytes of a store that is configured in segments or steps; else empty."""
    size, segments = config.replay.store_size, sized_segments(config)
    if size.unit == "bytes":
        return ""
    each = f" for each of {config.train.replay_shards} services" if config.train.replay_shards > 1 else ""
    return f"{size}: a store of {segments:,} segments, {needed_bytes:,} bytes{each}"
