"""Settings that cannot start or leave nothing to replay: one line that names them and a value that works."""

from typing import NamedTuple

import pytest

from penstock.cli import main
from penstock.cli.options import parse


class Refused(NamedTuple):
    """Options, what the line says, and options that the line suggests, which are accepted instead.

    The last are added to the first; the later of two values of a setting counts.
    """

    options: str
    line: str
    remedy: str


RAW = "--policy.normalise-observations=false --policy.normalise-returns=false"
REPLAYED = f"{RAW} --sampling.fresh-fraction=0"

REFUSED = {
    "a_half_life_that_leaves_no_mass": Refused(
        "--sampling.half-life=1e-300", "sampling.half_life to 0.1 or more", "--sampling.half-life=0.1"
    ),
    "no_half_life": Refused(
        "--sampling.half-life=0", "sampling.half_life must be a number above 0", "--sampling.half-life=inf"
    ),
    "a_half_life_far_below_the_age_of_fresh_segments": Refused(
        "--sampling.publish-interval=500 --sampling.max-staleness=600",
        "sampling.half_life to 15.69 or more",
        "--sampling.half-life=15.69",
    ),
    "an_alpha_that_leaves_no_mass": Refused(
        "--sampling.alpha=1e6", "sampling.alpha must be a number from 0 to 10;", "--sampling.alpha=10"
    ),
    "a_negative_alpha": Refused("--sampling.alpha=-1", "a number from 0 to 10; got '-1'", "--sampling.alpha=0"),
    "an_epsilon_that_vanishes": Refused(
        "--sampling.epsilon=1e-300", "sampling.epsilon must be a number from 1e-09", "--sampling.epsilon=1e-9"
    ),
    "an_epsilon_in_which_priorities_vanish": Refused(
        "--sampling.epsilon=1e300", "sampling.epsilon must be a number from 1e-09 to 1e+09", "--sampling.epsilon=1e9"
    ),
    "a_store_of_one_byte": Refused(
        "--replay.capacity-bytes=1",
        "replay.capacity_bytes must be a size in bytes from 65,536",
        "--replay.capacity-bytes=65536",
    ),
    "a_staleness_below_the_age_of_fresh_segments": Refused(
        "--sampling.max-staleness=2", "sampling.max_staleness to 3 or more", "--sampling.max-staleness=3"
    ),
    "a_degree_above_the_staleness": Refused(
        "--sampling.off-policy-degree=70 --sampling.half-life=10",
        "sampling.max_staleness to 72 or more",
        "--sampling.max-staleness=72",
    ),
    "publications_rarer_than_the_staleness_without_fresh_segments": Refused(
        f"{REPLAYED} --sampling.publish-interval=65",
        "sampling.max_staleness to 65 or more",
        "--sampling.max-staleness=65",
    ),
    "a_batch_without_a_fresh_segment": Refused(
        "--sampling.batch-segments=2 --sampling.fresh-fraction=0.1 --envs-per-actor=1",
        "sampling.fresh_fraction to 0.5 or more",
        "--sampling.fresh-fraction=0.5",
    ),
    "one_segment_half_of_which_is_fresh": Refused(
        "--sampling.batch-segments=1 --envs-per-actor=1",
        "sampling.fresh_fraction to 1 or more",
        "--sampling.fresh-fraction=1",
    ),
    "normalisation_without_fresh_segments": Refused(
        "--sampling.fresh-fraction=0", "policy.normalise_observations and policy.normalise_returns to false", RAW
    ),
    "shards_without_fresh_segments": Refused(
        f"{REPLAYED} --train.replay-shards=2", "set train.replay_shards to 1", "--train.replay-shards=1"
    ),
    "a_fraction_that_makes_batches_too_large": Refused(
        "--sampling.fresh-fraction=1e-9",
        "sampling.fresh_fraction to 0.000245 or more",
        "--sampling.fresh-fraction=0.000245",
    ),
    "the_smallest_fraction": Refused(
        "--sampling.fresh-fraction=5e-324",
        "sampling.fresh_fraction to 0.000245 or more",
        "--sampling.fresh-fraction=0.000245",
    ),
    "environments_that_make_batches_too_large": Refused(
        "--envs-per-actor=100000 --sampling.fresh-fraction=0.5",
        "actor.environments to 10922 or less",
        "--envs-per-actor=10922",
    ),
    "a_batch_too_large": Refused("--sampling.batch-segments=65537", "auto", "--sampling.batch-segments=auto"),
    "windows_larger_than_the_fresh_segments": Refused(
        "--sampling.batch-segments=8 --sampling.off-policy-degree=1 --envs-per-actor=64 --sampling.fresh-fraction=0.5",
        "(sampling.batch_segments 256 fits)",
        "--sampling.batch-segments=256",
    ),
    "windows_that_do_not_divide_the_fresh_segments_at_degree_0": Refused(
        "--sampling.batch-segments=24 --sampling.off-policy-degree=0 --sampling.fresh-fraction=0.5",
        "(sampling.batch_segments 32 fits)",
        "--sampling.batch-segments=32",
    ),
    "windows_that_do_not_divide_the_parts_of_shards_at_degree_0": Refused(
        "--sampling.batch-segments=64 --sampling.off-policy-degree=0 --actors=4 --train.replay-shards=4"
        " --envs-per-actor=16 --sampling.fresh-fraction=0.5",
        "(sampling.batch_segments 128 fits)",
        "--sampling.batch-segments=128",
    ),
    "windows_larger_than_the_parts_of_shards": Refused(
        "--sampling.batch-segments=32 --sampling.off-policy-degree=1 --actors=4 --train.replay-shards=4"
        " --envs-per-actor=16 --sampling.fresh-fraction=0.5",
        "(sampling.batch_segments 128 fits)",
        "--sampling.batch-segments=128",
    ),
    "more_shards_than_fresh_segments": Refused(
        "--sampling.batch-segments=2 --actors=4 --train.replay-shards=4 --envs-per-actor=1"
        " --sampling.fresh-fraction=0.5",
        "(sampling.batch_segments 32 fits)",
        "--sampling.batch-segments=32",
    ),
    "more_shards_than_actors": Refused(
        "--actors=1 --train.replay-shards=4", "train.replay_shards to 1 or less", "--train.replay-shards=1"
    ),
    "more_actors_than_places": Refused("--actors=300", "set both to 300, or train.actors to 256", "--actors=256"),
    "no_actors": Refused("--actors=0", "train.actors must be a whole number from 1, or auto", "--actors=auto"),
    "more_minibatches_than_steps": Refused(
        "--ppo.minibatches=4000", "ppo.minibatches to auto, or to 256 or less", "--ppo.minibatches=256"
    ),
    "more_minibatches_than_segments_with_memory": Refused(
        "--ppo.minibatches=65 --policy.memory=gru", "auto, or to 64 or less", "--ppo.minibatches=64"
    ),
    "minibatches_of_one_step": Refused(
        "--ppo.minibatches=2048", "standardised over 8 steps or more; set ppo.minibatches", "--ppo.minibatches=auto"
    ),
    "a_batch_of_a_few_steps": Refused(
        "--sampling.batch-segments=2 --sampling.fresh-fraction=0.5 --actors=1 --envs-per-actor=1"
        " --actor.unroll-length=2",
        "set sampling.batch_segments to 4 or more",
        "--sampling.batch-segments=4 --sampling.fresh-fraction=0.5 --actors=1 --envs-per-actor=1"
        " --actor.unroll-length=2",
    ),
    "a_segment_of_one_step": Refused(
        "--actor.unroll-length=1", "actor.unroll_length must be a whole number from 2", "--actor.unroll-length=2"
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_is_one_line_with_a_value_that_works(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    refused = REFUSED[name]
    assert main._run(["train", "--preset=none", *refused.options.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("penstock: ") and refused.line in line
    given = dict(option.split("=", 1) for option in (*refused.options.split(), *refused.remedy.split()))
    accepted = [f"{option}={value}" for option, value in given.items()]
    parse("penstock train", "", ["--preset=none", *accepted], trains=True)
