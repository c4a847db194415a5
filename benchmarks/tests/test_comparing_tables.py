"""The tables of searches, intrinsic rewards and watched runs."""

from dataclasses import asdict
from typing import Any

from benchmarks import centralised_critic, comparing_tables
from benchmarks.comparing_tables import intrinsic_rewards, tuning, watching
from benchmarks.intrinsic_rewards import ROWS, Trained
from benchmarks.watching import FORMS, TRAINING, WATCHERS, Run, kind_of


def study(values: list[float | None], comparison: dict[str, Any]) -> dict[str, Any]:
    """The result of a study whose last trial was pruned."""
    return {
        "env_id": "LunarLander-v3",
        "trials": 3,
        "steps": 200_000,
        "states": ["complete", "complete", "pruned"],
        "seconds": [60.0, 90.0, None],
        "values": values,
        "final_returns": [230.0, 250.0, 270.0],
        "comparison": comparison,
    }


def test_a_better_trial_is_beside_the_defaults_with_the_verdict_of_the_comparison() -> None:
    runs = {"a": [{"final_return": each} for each in (180.0, 200.0, 220.0)], "b": []}
    table = tuning(study([200.0, 260.0, None], {"runs": runs, "verdict": "B is better"}))
    assert "| trial 0, the defaults | 200.0 | 200.0 [180.0, 220.0] |" in table
    assert "| trial 1, the best | 260.0 | 250.0 [230.0, 270.0] |" in table
    assert "200,000 steps, which took 2 minutes together; pruned: 1" in table
    assert table.endswith("`penstock compare`: B is better.")


def test_defaults_that_no_trial_beat_have_one_row() -> None:
    table = tuning(study([281.4, 260.0, 150.0], {}))
    assert "| trial 0, the defaults and the best | 281.4 | 250.0 [230.0, 270.0] |" in table
    assert table.count("\n| ") == 1


def test_successes_are_shown_for_each_seed() -> None:
    runs = [
        Trained("Rooms-v0", row, seed, [1_000], [120.0], [0.0], [0.0, 0.5 * number], [0.5 * number] * 2)
        for number, row in enumerate(ROWS)
        for seed in (1, 2)
    ]
    document = {"tasks": {"Rooms-v0": 300_000}, "runs": [asdict(each) for each in runs]}
    table = intrinsic_rewards(document)
    assert f"| Rooms-v0 | 300,000 | {ROWS[0]} | 0%, 0% | 0%, 0% |" in table
    assert f"| Rooms-v0 | 300,000 | {ROWS[1]} | 50%, 50% | 100%, 100% |" in table


def test_returns_of_both_critics_are_shown_for_each_seed() -> None:
    runs = [
        centralised_critic.Trained(row, seed, [1_000], [-20.0], 0.9, -20.0 - seed)
        for row in centralised_critic.ROWS
        for seed in (1, 2)
    ]
    table = comparing_tables.centralised_critic({"steps": 1_000_000, "runs": [asdict(each) for each in runs]})
    assert "| the agent's view | -21.0, -22.0 | 0.900, 0.900 |" in table
    assert "| the whole game | -21.0, -22.0 | 0.900, 0.900 |" in table


def test_the_cost_of_each_watcher_is_beside_the_training() -> None:
    def run(form: str, **watchers: float) -> Run:
        cpu_s = {TRAINING: 180.0} | dict.fromkeys(WATCHERS, 0.0) | watchers
        return Run(form, 0, 1e5, 100.0, cpu_s, {kind: int(bool(value)) for kind, value in cpu_s.items()}, 20)

    runs = [run(FORMS[0]), run(FORMS[1], films=5.0, page=1.0)]
    document = {
        "rounds": 1,
        "steps": 24_000_000,
        "film_every": 100,
        "ratio": {"mean": 0.99, "low": 0.98, "high": 1.0},
        "runs": [asdict(each) for each in runs],
    }
    table = watching(document)
    assert "| training, not watched | 1 | 180.0 | 180.0% |" in table
    assert "| films | 1 | 5.0 | 5.0% |" in table
    assert "0.990 [0.980, 1.000] of the pace" in table


def test_processes_are_known_by_their_commands() -> None:
    commands = {
        "python -m penstock train --preset=pendulum --evaluation.film-every=100 --tracker=wandb": TRAINING,
        "python -Pm penstock evaluator --config run/config.toml": TRAINING,
        "python -Pm penstock evaluate --episodes=0 --trust-code --checkpoint=run/videos/a.safetensors": "films",
        "lib/imageio_ffmpeg/binaries/ffmpeg-linux-x86_64-v7.0.2 -y": "encoders of films",
        "python -Pm penstock track run --to=wandb --project=penstock": "tracker",
        "lib/wandb/bin/wandb-core --port-filename port.txt": "tracker",
        "python -m penstock report --serve run": "page",
    }
    assert {command: kind_of(command.split()) for command in commands} == commands
