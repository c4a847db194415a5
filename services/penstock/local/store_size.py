"""The size of the store of a run, which must be known before its service starts.

The environment check finds the size of a segment, so that observations of any size fit.
"""

from penstock.config import Config
from penstock.errors import ConfigurationError
from penstock.gate_law import least_capacity, least_part

_ROOM = 2
"""Multiple of the least size that a store has by default, so that about as many segments can be replayed."""


def least_segments(config: Config) -> int:
    """Returns the least number of segments that each store of this run must hold."""
    sampling, shards = config.sampling, config.train.replay_shards
    # Each of several services holds its part of the fresh segments, and has room to replay a whole batch.
    fresh = -(-sampling.fresh_segments // shards)
    least = least_capacity(
        max(fresh, least_part(sampling.first_degree, config.actor.environments)) if fresh and shards > 1 else fresh,
        sampling.first_degree,
        sampling.batch_segments,
        -(-sampling.min_replay_segments // shards),
    )
    return max(least, sampling.batch_segments)


def with_store(config: Config, least_bytes: int) -> Config:
    """Returns the configuration with a store that is large enough; `least_bytes` hold `least_segments`.

    Raises `ConfigurationError` if the configured size is too small.
    """
    replay, sampling = config.replay, config.sampling
    if replay.capacity_bytes is None:
        wanted = max(replay.store_bytes, _ROOM * least_bytes)
        return config.changed({"replay": {"capacity_bytes": wanted}})
    if replay.store_bytes < least_bytes:
        raise ConfigurationError(
            f"replay.capacity_bytes {replay.store_bytes} is too small for {config.environment.short_name}: batches of"
            f" {sampling.batch_segments} segments with sampling.min_replay_segments {sampling.min_replay_segments} need"
            f" {least_segments(config)} in the store; set it to {least_bytes} or more, or leave it unset"
        )
    return config
