"""Runs whose few actors play many variants in turn, which are added and retired while they train."""

import functools
import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.runs.folder import RunFolder
from penstock.runs.summary import Summary
from penstock.types.status import RunStatus
from tests.support.services.processes import WITH_HELPERS, Command, Ended, Watch, end_of, run, watching

COUNTING = "tests.support.environments.tiny:Counting-v0"
# Step k has reward k, so an episode of N steps returns N (N + 1) / 2 with any actions.
LENGTHS = '--environment.variants=[{"length": 3}, {"length": 5}, {"length": 2}]'
OPTIONS = (
    f"--env-id={COUNTING} --actors=1 --envs-per-actor=4 --ppo.epochs=1 --evaluation.episodes=4"
    " --evaluation.interval-steps=2000"
)


def variants(folder: Path, *words: str) -> Ended:
    return run("variants", *words, f"--run={folder}", environment=WITH_HELPERS)


def listed(folder: Path) -> list[dict[str, Any]]:
    end = variants(folder, "--json", "--all")
    assert end.code == 0, end.stderr
    found: list[dict[str, Any]] = json.loads(end.stdout)
    return found


def played(status: RunStatus, numbers: Sequence[int]) -> bool:
    """Returns whether these variants are played, and an episode has ended in each of them."""
    return [each.number for each in status.variants] == list(numbers) and all(each.episodes for each in status.variants)


def test_variants_come_and_go_in_a_run_that_is_interrupted_and_resumed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    arguments = (*OPTIONS.split(), LENGTHS, f"--run-dir={folder}", "--total-steps=100000000")
    with Command("train", *arguments, environment=WITH_HELPERS) as command:
        with watching(command, folder) as watch:
            check_changes(folder, watch)
            check_refusals(folder)
            shown = run("status", str(folder), environment=WITH_HELPERS).stdout
        command.interrupt()
        assert end_of(command).code == 130
    assert "variant 4 (length=6): return 21.0" in shown
    inactive = variants(folder)
    assert (inactive.code, inactive.stderr.count("\n")) == (2, 1)
    assert "no" in inactive.stderr and "active" in inactive.stderr

    with Command("train", "--resume", str(folder), "--trust-code", environment=WITH_HELPERS) as command:
        with watching(command, folder) as watch:
            check_changes_of_a_resumed_run(folder, watch)
        command.interrupt()
        end_of(command)
    check_ended(folder)


def check_changes(folder: Path, watch: Watch) -> None:
    first = watch.until(lambda now: played(now, [0, 1, 2]), "all")
    assert [each.return_mean for each in first.variants] == [6.0, 15.0, 3.0]
    changed = variants(folder, "add", "length=4", "length=6")
    assert changed.code == 0 and "length=6" in changed.stdout, changed.stderr
    assert variants(folder, "retire", "0", "1").code == 0
    status = watch.until(lambda now: played(now, [2, 3, 4]), "the changed variants")
    assert [each.return_mean for each in status.variants] == [3.0, 10.0, 21.0]
    watch.until(
        lambda now: (
            now.last_evaluation is not None
            and [(each.number, each.return_mean) for each in now.last_evaluation.variants]
            == [(2, 3.0), (3, 10.0), (4, 21.0)]
        ),
        "their evaluation",
    )
    watch.until(lambda now: all(abs((each.fresh_share or 0.0) - 1 / 3) < 0.05 for each in now.variants), "equal shares")


def check_refusals(folder: Path) -> None:
    for words, reason in [
        (("retire", "0"), "variant 0 is not played"),
        (("add", "width=3"), "no table of environment.variants has the argument 'width'"),
        (("retire", "2", "3", "4"), "no variant would be left"),
        (("add",), "expected list, add with tables or retire with numbers"),
        (("add", "length"), "a variant to add"),
        (("retire", "first"), "expected the number of a variant to retire, got 'first'"),
    ]:
        refused = variants(folder, *words)
        assert (refused.code, refused.stderr.count("\n")) == (2, 1), refused.stderr
        assert reason in refused.stderr


def check_changes_of_a_resumed_run(folder: Path, watch: Watch) -> None:
    watch.until(lambda now: played(now, [2, 3, 4]), "the same variants again")
    known = [(each["number"], each["retired"]) for each in listed(folder)]
    assert known == [(0, True), (1, True), (2, False), (3, False), (4, False)]
    run_of_python = penstock.Run(folder)
    assert run_of_python.add_variants({"length": 7}, {"length": 1}) == [5, 6]
    run_of_python.retire_variants(2)
    watch.until(lambda now: played(now, [3, 4, 5, 6]), "the variants of the Python API")


def check_ended(folder: Path) -> None:
    summary = Summary.read(folder / "summary.json")
    known = [(each.number, each.arguments) for each in summary.variants]
    assert known == [(3, "length=4"), (4, "length=6"), (5, "length=7"), (6, "length=1")]
    both = run("evaluate", str(folder), "--episodes=8", "--trust-code", environment=WITH_HELPERS)
    assert "variant 3 (length=4): return 10.0" in both.stdout and "variant 6 (length=1): return 1.0" in both.stdout
    assert "variant 0" not in both.stdout, both.stdout
    retired = run("evaluate", str(folder), "--episodes=1", "--variant=1", "--trust-code", environment=WITH_HELPERS)
    assert "variant 1 (length=5): return 15.0" in retired.stdout, retired.stderr
    unknown = run("evaluate", str(folder), "--variant=7", "--trust-code", environment=WITH_HELPERS)
    assert "environment variant 7 does not exist; the run has 7 variants" in unknown.stderr
    with closing(penstock.make(folder, variant=5, trust_code=True)) as made:
        made.reset(seed=1)
        assert [made.step(np.int64(0))[2:4] for _ in range(7)][-1] != (False, False)
    episodes = RunFolder(folder).metrics.read_text().splitlines()
    assert {each["number"] for line in episodes for each in json.loads(line).get("variants", ())} == set(range(7))


@pytest.mark.nightly
@pytest.mark.parametrize("more", ["--environment.vectorization=process", "--environment.vary=episodes"])
def test_fifty_changes_reach_the_environments_of_two_actors_and_starve_no_variant(tmp_path: Path, more: str) -> None:
    folder = tmp_path / "run"
    arguments = (
        *OPTIONS.replace("actors=1", "actors=2").split(),
        LENGTHS,
        f"--run-dir={folder}",
        "--total-steps=100000000",
        more,
    )
    with Command("train", *arguments, environment=WITH_HELPERS) as command, watching(command, folder) as watch:
        watch.until(lambda now: played(now, [0, 1, 2]), "the configured variants")
        active, made = [0, 1, 2], penstock.Run(folder)
        for change in range(50):
            active += made.add_variants({"length": 2 + change % 7})
            made.retire_variants(active.pop(change % (len(active) - 1)))
            status = watch.until(
                functools.partial(played, numbers=tuple(active)),
                f"change {change}",
            )
            assert status.actors == 2
        found = {each.number: each for each in made.list_variants()}
        assert all(each.episodes > 0 for each in found.values()) and len(found) == 53
