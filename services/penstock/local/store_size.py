"""The size of the store of a run, which must be known before its service starts.

The environment check finds the size of a segment, so that observations of any size fit.
"""

import shutil
from pathlib import Path

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


def free_bytes(folder: Path) -> int:
    """Returns the bytes that are free where this folder is, or would be created."""
    place = folder.absolute()
    return shutil.disk_usage(next(parent for parent in (place, *place.parents) if parent.exists())).free


def with_store(config: Config, least_bytes: int, free_bytes: int) -> Config:
    """Returns the configuration with a store that is large enough.

    Args:
        config: Configuration of the run.
        least_bytes: Size in bytes of a store with `least_segments`.
        free_bytes: Bytes that are free where the stores will be.

    Raises:
        ConfigurationError: The configured size is too small, or the disk is too small for the size that is needed.
    """
    replay, sampling, name = config.replay, config.sampling, config.environment.short_name
    if replay.capacity_bytes is None:
        wanted = _ROOM * least_bytes
        if wanted > replay.store_bytes and wanted * config.train.replay_shards > free_bytes:
            share = free_bytes / (wanted * config.train.replay_shards)
            raise ConfigurationError(
                f"the stores of {name} need {wanted * config.train.replay_shards} bytes for these settings, and"
                f" {free_bytes} are free; set {_smaller(config, share)} or less, or choose another run.dir"
            )
        return config.changed({"replay": {"capacity_bytes": max(wanted, replay.store_bytes)}})
    if replay.store_bytes < least_bytes:
        raise ConfigurationError(
            f"replay.capacity_bytes {replay.store_bytes} is too small for {name}: batches of"
            f" {sampling.batch_segments} segments with sampling.min_replay_segments {sampling.min_replay_segments} need"
            f" {least_segments(config)} in the store; set it to {least_bytes} or more, or leave it unset"
        )
    return config


def _smaller(config: Config, share: float) -> str:
    """Returns the setting, and its value, with which this share of the store's size is large enough."""
    sampling, degree, segments = config.sampling, config.sampling.first_degree, int(share * least_segments(config))
    replay_from = max(0, segments - sampling.fresh_segments)
    if least_segments(config.changed({"sampling": {"min_replay_segments": replay_from}})) <= segments:
        return f"sampling.min_replay_segments to {replay_from}"
    if degree > 1 and least_segments(config.changed({"sampling": {"off_policy_degree": 1}})) <= segments:
        return "sampling.off_policy_degree to 1"
    # The bytes of a segment are about proportional to its steps.
    return f"actor.unroll_length to {max(2, int(share * config.actor.unroll_length))}"
