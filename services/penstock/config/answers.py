"""Answers to names of other libraries that stand for something else in Penstock."""

from collections.abc import Callable

from penstock.config.replay_law import most_minibatches
from penstock.config.sections import Sections
from penstock.config.setting_types import read_count

Answer = Callable[[object, Sections], "str | dict[str, object]"]
"""Returns one line for a value, given the other settings, or the nested settings that it stands for."""


def _number(value: object) -> int | None:
    """Returns a positive whole number; None for anything else."""
    number = read_count(value)
    return number if isinstance(number, int) and not isinstance(number, bool) and number > 0 else None


def _environments(value: object, config: Sections) -> str | dict[str, object]:
    number, actors = _number(value), config.train.least_actors
    if number is not None and number % actors == 0:
        return {"actor": {"environments": number // actors}}
    if number is not None and number < actors and "actors" not in config.train.model_fields_set:
        return {"train": {"actors": number}, "actor": {"environments": 1}}
    works = actors * max(1, round((number or actors) / actors))
    return (
        f"there are train.actors times actor.environments environments, so their number must be a multiple of the"
        f" {actors} actors; got {value}. Set it to {works}, or set --actors and --envs-per-actor"
    )


def _iterations(value: object, config: Sections) -> str:
    fresh = config.sampling.fresh_segments * config.actor.unroll_length
    number = _number(value)
    steps = f"{number} of them are --total-steps {number * fresh}" if number else "set --total-steps"
    return f"the length of a run is given in environment steps. A batch has {fresh} new ones, so {steps}"


def _rollout(value: object, config: Sections) -> str:
    length = config.actor.unroll_length
    return (
        "other libraries collect 128 to 2,048 steps per environment between updates. Penstock collects all the time,"
        f" in segments of actor.unroll_length {length} steps, and a batch has sampling.batch_segments"
        f" {config.sampling.batch_segments} of them. Keep these, or set --sampling.batch-segments for larger batches"
    )


def _batch(value: object, config: Sections) -> str:
    length, segments, parts = config.actor.unroll_length, config.sampling.batch_segments, config.ppo.minibatches
    number, size = _number(value), ""
    if number:
        most = most_minibatches(
            segments=segments,
            unroll_length=length,
            recurrent=config.policy.memory is not None,
            normalise=config.ppo.normalise_advantages,
        )
        fitting = min(most, max(1, round(segments * length / number)))
        number = segments * length // fitting if fitting == most else number
        size = f" For minibatches of about {number} steps, set --ppo.minibatches {fitting}"
    return (
        f"a batch has sampling.batch_segments {segments} segments of {length} steps, and every epoch divides it into"
        f" ppo.minibatches {parts}.{size}"
    )


def _minibatches(value: object, config: Sections) -> str | dict[str, object]:
    return {"ppo": {"minibatches": value}}


def _capacity(value: object, config: Sections) -> str:
    number = _number(value)
    sizes = (
        f"--replay.capacity-steps {number} or --replay.capacity-segments {number}"
        if number
        else ("--replay.capacity-bytes, --replay.capacity-steps or --replay.capacity-segments")
    )
    return f"the size of the buffer has a unit: write {sizes}"


def _warm_up(value: object, config: Sections) -> str:
    number, length = _number(value), config.actor.unroll_length
    written = f" For {number} steps, write --sampling.min-replay-segments {-(-number // length)}" if number else ""
    return (
        f"replay begins after sampling.min_replay_segments {config.sampling.min_replay_segments} segments of"
        f" {length} steps were trained.{written}"
    )


def _hidden(value: object, config: Sections) -> str:
    return f"the width of each hidden layer is given: --policy.hidden-sizes {value},{value}"


def _line(text: str) -> Answer:
    return lambda value, config: text


_PLOTS = _line(
    "there is no tracker yet. The run's folder has all numbers in metrics.jsonl, which any program can read;"
    " `penstock plot` draws them and compares runs, and Prometheus reads the services' metrics"
)
_FILMS = _line("training shows no environment; `penstock evaluate --record-video` films the trained policy")
_LOGGING = _line(
    "the terminal shows progress all the time, and metrics.jsonl has a record per second; set --telemetry.log-level for"
    " the services' logs"
)
_SHARED = _line("all actors share one policy; set their number with --actors")

ANSWERS: dict[str, Answer] = {
    **dict.fromkeys(("num_envs", "n_envs"), _environments),
    **dict.fromkeys(("num_iterations", "num_updates", "train_iterations"), _iterations),
    **dict.fromkeys(("num_steps", "n_steps", "steps_per_worker", "rollout", "rollout_length"), _rollout),
    **dict.fromkeys(("batch_size", "mini_batch_size", "minibatch_size"), _batch),
    **dict.fromkeys(("buffer_size", "buffer_capacity"), _capacity),
    **dict.fromkeys(("min_buffer_size", "min_batch_size", "learning_starts"), _warm_up),
    "num_minibatches": _minibatches,
    **dict.fromkeys(("train_shared", "distributed"), _SHARED),
    **dict.fromkeys(("log_interval", "verbose"), _LOGGING),
    **dict.fromkeys(("use_wandb", "with_wandb", "wandb", "wandb_project_name", "wandb_entity", "wandb_mode"), _PLOTS),
    **dict.fromkeys(("track", "tracker", "tensorboard_log", "tensorboard", "mlflow", "neptune", "trackio"), _PLOTS),
    **dict.fromkeys(("render", "capture_video"), _FILMS),
    "policy": _line(
        "the networks follow from the environment's spaces; change them with --policy.hidden-sizes, --policy.memory and"
        " the other settings of [policy], or name a network of your own with --policy.module file.py:MyNetwork"
    ),
    "algo": _line("Penstock has one algorithm, asynchronous PPO with replay; remove the option"),
    "hidden_dim": _hidden,
    "normalize": _line(
        "observations and returns are normalised by default; policy.normalise_observations and"
        " policy.normalise_returns change that"
    ),
    "quick_test": _line("set --total-steps 10000 for a short run"),
    "warmup_seconds": _line("services wait until all others are ready, however long that takes; remove the option"),
    "episodes": _line("set evaluation.episodes for those of an evaluation, or run.total_episodes for those to train"),
}
"""By name, with underscores."""
