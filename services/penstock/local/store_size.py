"""The size of the store of a run, which must be known before its service starts.

The environment check finds the size of a segment, so that observations of any size fit.
"""

from penstock.config import Config
from penstock.errors import ConfigurationError
from penstock.gate_law import least_capacity

_ROOM = 2
"""Multiple of the least size that a store has by default, so that about as many segments can be replayed."""


def least_segments(config: Config) -> int:
    """Returns the least number of segments that the store of this run must hold."""
    sampling = config.sampling
    least = least_capacity(sampling.fresh_segments, sampling.first_degree, sampling.batch_segments)
    return max(least, sampling.batch_segments)


def with_store(config: Config, least_bytes: int) -> Config:
    """Returns the configuration with a store that is large enough; `least_bytes` hold `least_segments`.

    Raises `ConfigurationError` if the configured size is too small.
    """
    replay = config.replay
    if replay.capacity_bytes is None:
        wanted = max(replay.store_bytes, _ROOM * least_bytes)
        return config.changed({"replay": {"capacity_bytes": wanted}})
    # Each of several services holds only a part of a batch, and checks its store itself.
    if config.train.replay_shards == 1 and replay.store_bytes < least_bytes:
        raise ConfigurationError(
            f"replay.capacity_bytes {replay.store_bytes} is too small for {config.environment.short_name}: batches of"
            f" {config.sampling.batch_segments} segments need {least_segments(config)} in the store; set it to"
            f" {least_bytes} or more, or leave it unset"
        )
    return config
