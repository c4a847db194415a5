"""The line of `penstock train` about the batches of a run, and where their sizes come from."""

from penstock.config import Config


def batch_line(config: Config, *, resumed: bool) -> str:
    """Returns the sizes of batches, and the settings from which they were derived.

    The sizes of a resumed run are those of its `config.toml`. If others would be derived for its actors, the line names
    these, and how to change to them.
    """
    sampling, minibatches, fitting = config.sampling, config.ppo.minibatches, config.fitting_batch
    fresh = f" ({sampling.fresh_segments} fresh)"
    sizes = f"batch of {_count(sampling.batch_segments, 'segment')}{fresh}, {_count(minibatches, 'minibatch')}"
    actors = f"{_count(config.train.least_actors, 'actor')} x {_count(config.actor.environments, 'environment')}"
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


def _count(number: int, noun: str) -> str:
    plural = "es" if noun.endswith("ch") else "s"
    return f"{number} {noun}{plural if number != 1 else ''}"
