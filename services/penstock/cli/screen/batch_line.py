"""The lines of `penstock train` about the batches of a run, and where their sizes come from."""

import math

from penstock.config import Config

FEW_BATCHES = 50
"""Batches below which a run has too few versions of its policy to learn most tasks."""


def batch_line(config: Config, *, resumed: bool) -> str:
    """Returns the sizes of batches, and the settings from which they were derived.

    A resumed run has the sizes in its `config.toml`. If others would be derived for its actors, the line names these,
    and how to change to them.
    """
    sampling, minibatches, fitting = config.sampling, config.ppo.minibatches, config.fitting_batch
    fresh = f" ({sampling.fresh_segments} fresh)"
    sizes = f"batch of {_count(sampling.batch_segments, 'segment')}{fresh}, {_count(minibatches, 'minibatch')}"
    actors = f"{_count(config.collection.actors, 'actor')} x {_count(config.actor.environments, 'environment')}"
    if (sampling.batch_segments, minibatches) == (fitting, config.fitting_minibatches(fitting)):
        return f"{sizes}; derived from {actors}"
    if not resumed:
        return f"{sizes}, as set"
    if sampling.batch_segments == fitting:
        return f"{sizes}, as recorded"
    others = f"{_count(fitting, 'segment')} and {_count(config.fitting_minibatches(fitting), 'minibatch')}"
    return (
        f"{sizes}, as recorded; for {actors}, --sampling.batch-segments auto --ppo.minibatches auto would choose"
        f" {others}"
    )


def steps_line(config: Config) -> str:
    """Returns the new environment steps of a batch, and the batches in the run if its steps are limited.

    Also says how far collection may run ahead of training, unless that is by one batch, as usual.

    Names the settings to change if these are few, because each batch gives one policy. Empty if batches have no fresh
    segments, because their number then says nothing about the new steps.
    """
    fresh, length, environments = config.sampling.fresh_segments, config.actor.unroll_length, config.actor.environments
    if not fresh:
        return ""
    actors = config.collection.actors
    source = f"{_count(actors, 'actor')} x {_count(environments, 'environment')}"
    if fresh != actors * environments:
        source = _count(fresh, "fresh segment")
    line = f"{source} x {_count(length, 'step')}: {fresh * length:,} new steps per batch"
    if config.degree > 1:
        line += f", up to {config.degree} batches ahead"
    if config.run.total_steps is None:
        return line
    batches = math.ceil(config.run.total_steps / (fresh * length))
    line += f", {batches:,} {'batch' if batches == 1 else 'batches'} in this run"
    if batches >= FEW_BATCHES:
        return line
    return f"{line}; fewer than {FEW_BATCHES} rarely suffice: raise run.total_steps, or lower sampling.batch_segments"


def _count(number: int, noun: str) -> str:
    plural = "es" if noun.endswith("ch") else "s"
    return f"{number} {noun}{plural if number != 1 else ''}"
