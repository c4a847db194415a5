from penstock.cli.screen.batch_line import FEW_BATCHES, batch_line, steps_line
from penstock.config import Config, build, merge

HALF_FRESH: dict[str, object] = {"sampling": {"fresh_fraction": 0.5}}


def config_of(actors: object = 2, environments: int = 16, **settings: object) -> Config:
    own = {"train": {"actors": actors}, "actor": {"environments": environments}}
    return build(merge(HALF_FRESH, own, settings))


def test_derived_sizes_are_shown_with_the_actors_and_environments() -> None:
    sizes = "batch of 64 segments (32 fresh), 8 minibatches; derived from 2 actors x 16 environments"
    assert batch_line(config_of(), resumed=False) == sizes
    # Recorded as numbers, they are the same ones in the resumed run.
    assert batch_line(config_of().changed({}), resumed=True) == sizes
    automatic = batch_line(config_of("auto", 16), resumed=False)
    assert automatic == "batch of 32 segments (16 fresh), 4 minibatches; derived from 1 actor x 16 environments"


def test_given_sizes_are_not_called_derived() -> None:
    given = config_of(sampling={"batch_segments": 128})
    assert batch_line(given, resumed=False) == "batch of 128 segments (64 fresh), 16 minibatches, as set"
    given = config_of(ppo={"minibatches": 3})
    assert batch_line(given, resumed=False) == "batch of 64 segments (32 fresh), 3 minibatches, as set"
    assert batch_line(given, resumed=True) == "batch of 64 segments (32 fresh), 3 minibatches, as recorded"


def test_a_run_that_is_resumed_with_more_actors_keeps_its_batches_if_they_fit() -> None:
    begun = config_of()
    resumed = begun.changed({"train": {"actors": 8}})
    assert (resumed.sampling, resumed.ppo) == (begun.sampling, begun.ppo)
    assert batch_line(resumed, resumed=True) == (
        "batch of 64 segments (32 fresh), 8 minibatches; derived from 8 actors x 16 environments"
    )


def test_a_run_that_is_resumed_with_other_actors_names_the_batches_that_fit_them() -> None:
    resumed = config_of().changed({"train": {"actors": 128}})
    assert batch_line(resumed, resumed=True) == (
        "batch of 64 segments (32 fresh), 8 minibatches, as recorded; for 128 actors x 16"
        " environments, --sampling.batch-segments auto --ppo.minibatches auto would choose 128 segments and 16"
        " minibatches"
    )
    adopted = resumed.changed({"sampling": {"batch_segments": "auto"}, "ppo": {"minibatches": "auto"}})
    assert batch_line(adopted, resumed=True) == (
        "batch of 128 segments (64 fresh), 16 minibatches; derived from 128 actors x 16 environments"
    )


def test_a_batch_is_derived_for_a_given_degree_too() -> None:
    given = config_of(8, sampling={"off_policy_degree": 1})
    assert batch_line(given, resumed=False) == (
        "batch of 256 segments (128 fresh), 32 minibatches; derived from 8 actors x 16 environments"
    )


def test_the_new_steps_of_a_batch_and_the_batches_of_the_run_are_shown() -> None:
    run = {"total_steps": 50_000}
    shown = "2 actors x 8 environments x 32 steps: 512 new steps per batch, 98 batches in this run"
    assert steps_line(config_of(2, 8, run=run)) == shown
    given = config_of(2, 8, sampling={"batch_segments": 64}, run=run)
    assert steps_line(given).startswith("32 fresh segments x 32 steps: 1,024 new steps per batch, 49 batches in this")
    endless = config_of(2, 8, run={"total_minutes": 5})
    assert steps_line(endless) == "2 actors x 8 environments x 32 steps: 512 new steps per batch"
    raw = {"normalise_observations": False, "normalise_returns": False}
    assert steps_line(config_of(2, 8, sampling={"fresh_fraction": 0.0, "batch_segments": 64}, policy=raw)) == ""


def test_a_run_of_few_batches_is_warned_with_the_settings_to_change() -> None:
    for actors, environments, steps in ((16, 8, 20_000), (2, 64, 20_000), (2, 8, 512 * FEW_BATCHES - 512)):
        line = steps_line(config_of(actors, environments, run={"total_steps": steps}))
        assert "fewer than 50 rarely suffice: raise run.total_steps, or lower sampling.batch_segments" in line
    assert (
        "16 fresh segments x 32 steps: 512 new steps per batch, up to 8 batches ahead, 40 batches in this run; fewer"
        in steps_line(config_of(16, 8, run={"total_steps": 20_000}))
    )
    assert "fewer" not in steps_line(config_of(2, 8, run={"total_steps": 512 * FEW_BATCHES}))
