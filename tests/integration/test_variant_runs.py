"""Runs whose actors differ in environment variants and exploration temperatures."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from penstock.acting.policies.trained import load_policy
from penstock.algo.distributions import DiagonalGaussian
from penstock.algo.policies import Inputs
from penstock.config import build, load_toml
from penstock.replay.store.layout import State
from penstock.replay.store.ring_store import RingStore
from penstock.runs.folder import RunFolder
from penstock.runs.summary import EvaluationOutcome, Summary, VariantOutcome
from penstock.types.evaluation import VariantReturns
from penstock.types.status import RunStatus
from tests.support.segments.direct_buffer import read_rows
from tests.support.services.processes import WITH_HELPERS, Command, Ended, end_in_time, end_of, run, watching

COUNTING = "tests.support.environments.tiny:Counting-v0"
# Step k has reward k, so an episode of 3 steps returns 6 and one of 5 returns 15, with any actions.
LENGTHS = '--environment.variants=[{"length": 3}, {"length": 5}]'


@dataclass(frozen=True, slots=True)
class Varied:
    """Observations of a run in two variants of Counting.

    Attributes:
        folder: Folder of the run.
        status: Status during the run.
        end: Result of `penstock train`.
        evaluated: Result of `penstock evaluate` in both variants.
        evaluated_alone: Result of `penstock evaluate` in variant 1.
    """

    folder: Path
    status: RunStatus
    end: Ended
    evaluated: Ended
    evaluated_alone: Ended


@pytest.fixture(scope="module")
def varied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Varied]:
    folder = tmp_path_factory.mktemp("varied") / "run"
    options = (
        f"--env-id={COUNTING} --actors=3 --envs-per-actor=4 --total-steps=8000 --ppo.epochs=1"
        " --evaluation.episodes=4 --evaluation.interval-steps=2000 --evaluation.mode=synchronous"
    )
    with Command("train", *options.split(), LENGTHS, f"--run-dir={folder}", environment=WITH_HELPERS) as command:
        evaluator = command.until(lambda: command.children().get("evaluator"), "the evaluator starts")
        assert evaluator is not None
        # Training waits for the evaluator, and therefore for the actor with the longest start.
        evaluator.suspend()
        with watching(command, folder) as watch:
            watch.until(lambda now: now.actors == 3, "all actors")
            evaluator.resume()
            status = watch.until(
                lambda now: bool(now.last_evaluation) and all(each.episodes for each in now.variants), "all variants"
            )
        end = end_of(command)
    arguments = ("evaluate", str(folder), "--episodes=6", "--seed=3", "--trust-code")
    with ThreadPoolExecutor() as pool:
        both, alone = pool.map(lambda more: run(*arguments, *more, environment=WITH_HELPERS), ([], ["--variant=1"]))
    yield Varied(folder, status, end, both, alone)


def test_an_active_run_shows_the_returns_of_each_variant(varied: Varied) -> None:
    shown = [(variant.arguments, variant.return_mean) for variant in varied.status.variants]
    assert shown == [("length=3", 6.0), ("length=5", 15.0)]
    # Windows, whose episodes the run counts too, may arrive before the reports, by which the variants count.
    assert 0 < sum(variant.episodes for variant in varied.status.variants) <= varied.status.episodes
    assert varied.status.last_evaluation is not None
    assert varied.status.last_evaluation.variants == (VariantReturns(2, 6.0, 0.0), VariantReturns(2, 15.0, 0.0, 1))


def test_the_summary_and_the_last_lines_show_the_returns_of_each_variant(varied: Varied) -> None:
    assert varied.end.code == 0, varied.end.stdout + varied.end.stderr
    summary = Summary.read(varied.folder / "summary.json")
    assert summary.evaluation == EvaluationOutcome(4, 10.5, 4.5)
    first, second = summary.variants
    assert (first.arguments, first.return_mean, first.evaluation) == ("length=3", 6.0, EvaluationOutcome(2, 6.0, 0.0))
    assert second == VariantOutcome("length=5", second.episodes, 15.0, EvaluationOutcome(2, 15.0, 0.0), 1)
    assert first.episodes > 0 and second.episodes > 0
    assert "15.0 ± 0.0 over 2 episodes, length=5" in varied.end.stdout


def test_the_journal_contains_the_returns_of_each_variant(varied: Varied) -> None:
    records = [json.loads(line) for line in RunFolder(varied.folder).metrics.read_text().splitlines()]
    training = [record for record in records if record["kind"] == "training"]
    assert [(each["arguments"], each["return_mean"]) for each in training[-1]["variants"]] == [
        ("length=3", 6.0),
        ("length=5", 15.0),
    ]
    (final,) = [record for record in records if record["kind"] == "final_evaluation"]
    assert [each["return_mean"] for each in final["variants"]] == [6.0, 15.0]


@pytest.mark.nightly
def test_collection_follows_the_returns_that_actors_report(tmp_path: Path) -> None:
    options = (
        f"--env-id={COUNTING} --actors=2 --envs-per-actor=2 --total-steps=6000 --ppo.epochs=1 --evaluation.episodes=2"
        " --evaluation.interval-steps=6000 --sampling.collection=return"
    )
    end = run("train", *options.split(), LENGTHS, f"--run-dir={tmp_path / 'run'}", environment=WITH_HELPERS)
    assert end.code == 0, end.stdout + end.stderr
    records = [json.loads(line) for line in RunFolder(tmp_path / "run").metrics.read_text().splitlines()]
    variants = [record for record in records if record["kind"] == "training"][-1]["variants"]
    # The return of the first is below that of the second, which keeps a fifth of an equal share.
    assert [each["planned_share"] for each in variants] == pytest.approx([0.9, 0.1])
    assert sum(each["fresh_share"] for each in variants) == pytest.approx(1.0)
    assert min(each["fresh_share"] for each in variants) > 0.0


def test_actors_create_the_variants_of_their_slots(varied: Varied) -> None:
    joined = {}
    for actor in range(3):
        lines = (RunFolder(varied.folder).logs / f"actor-{actor}.log").read_text().splitlines()
        (event,) = [event for event in map(json.loads, lines) if event["event"] == "joined"]
        joined[event["slot"]] = (event["variant"], event["temperature"])
    assert joined == {0: (0, 1.0), 1: (1, 1.0), 2: (0, 1.0)}


def test_evaluate_plays_all_variants_or_the_given_one(varied: Varied) -> None:
    assert varied.evaluated.code == 0, varied.evaluated.stderr
    assert "return 10.5 ± 4.5 over 6 episodes" in varied.evaluated.stdout
    assert (
        "variant 0 (length=3): return 6.00 ± 0.00\nvariant 1 (length=5): return 15.0 ± 0.0\n" in varied.evaluated.stdout
    )
    assert varied.evaluated_alone.code == 0, varied.evaluated_alone.stderr
    assert "return 15.0 ± 0.0 over 6 episodes" in varied.evaluated_alone.stdout
    assert "variant 0" not in varied.evaluated_alone.stdout


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["--variant=2"], "environment variant 2 does not exist; the run has 2 variants, numbered from 0"),
        (["--episodes=1"], "1 episodes can't be spread over the run's 2 environment variants"),
    ],
)
def test_evaluate_refuses_unknown_variants(varied: Varied, more: list[str], reason: str) -> None:
    end = run("evaluate", str(varied.folder), "--trust-code", *more, environment=WITH_HELPERS)
    assert (end.code, end.stderr.count("\n")) == (2, 1)
    assert reason in end.stderr


@pytest.mark.nightly
def test_trained_steps_have_the_probabilities_of_the_tempered_policy(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options = (
        "--env-id=Pendulum-v1 --actors=3 --envs-per-actor=4 --total-steps=10000000 --ppo.epochs=1"
        " --policy.squash-actions=true --policy.state-dependent-std=true --evaluation.interval-steps=2000"
        " --evaluation.episodes=2 --actor.lowest-temperature=0.25 --actor.highest-temperature=4"
        # At this learning rate all versions have the same policy, which is also in the checkpoint.
        " --ppo.learning-rate=1e-30"
    )
    gravities = '--environment.variants=[{"g": 2.0}, {}]'
    with Command("train", *options.split(), gravities, f"--run-dir={folder}", environment=WITH_HELPERS) as command:
        with watching(command, folder) as watch:
            # Segments of all three actors, even if one starts slowly. Episodes of Pendulum have 200 steps.
            first = watch.until(lambda now: now.actors == 3, "all actors")
            watch.until(
                lambda now: now.env_steps > first.env_steps + 6_000 and all(each.episodes for each in now.variants),
                "6,000 steps of them",
            )
            watch.until(lambda now: now.last_evaluation is not None, "an evaluation")
            shown = run("status", str(folder), environment=WITH_HELPERS)
        command.interrupt()
        ended = end_in_time(command)
    assert ended.code == 130, ended.stdout + ended.stderr
    lines = [line for line in shown.stdout.splitlines() if line.startswith("variant ")]
    assert [line.partition(": return -")[0] for line in lines] == ["variant 0 (g=2.0)", "variant 1 (plain)"]

    config = build(load_toml(RunFolder(folder).config))
    assert not config.policy.normalise_observations
    policy = load_policy(RunFolder(folder).numbered_checkpoints()[-1]).policy
    store = RingStore(RunFolder(folder).replay, config.replay.store_size.amount)
    assert store.schema is not None
    trained = np.flatnonzero((store.headers["key"] > 0) & (store.headers["state"] == State.SEEN))
    columns, slots = store.schema.empty(trained.size), store.headers["slot"][trained]
    read_rows(store, trained, columns)
    with torch.inference_mode():
        joint, _ = policy.evaluate(Inputs((torch.from_numpy(columns.column("observation")[:, :-1]),)))
        action = torch.from_numpy(columns.column("action"))
        (plain,) = joint.parts
        assert isinstance(plain, DiagonalGaussian)
        for slot, temperature in enumerate((0.25, 1.0, 4.0)):
            mine = slots == slot
            assert mine.sum() > 10
            found = columns.column("behaviour_log_prob")[mine]
            expected = joint.tempered(temperature).log_prob((action,)).numpy()[mine]
            np.testing.assert_allclose(found, expected, atol=1e-3)
            if temperature != 1.0:
                assert np.abs(found - plain.log_prob(action).numpy()[mine]).mean() > 0.5
            # Frequencies under a normal distribution of that deviation, which proves that actions were drawn from it.
            deviations = (action - plain.mode()).numpy()[mine] / np.exp(plain.log_std.numpy()[mine])
            assert np.std(deviations) == pytest.approx(temperature, rel=0.1)
