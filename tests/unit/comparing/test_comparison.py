"""Comparisons of runs that have ended: what they show, and what can't be compared."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.cli.main import _run
from penstock.comparing.comparison import compare, differences
from penstock.comparing.outcomes import means, read_outcome
from penstock.config import Config
from penstock.errors import USAGE_ERROR, ConfigurationError
from penstock.runs.folder import RunFolder
from penstock.runs.summary import EvaluationOutcome, Summary
from penstock.types.status import Stopped

SLOW, FAST = [10_000, 12_000, 14_000, 9_000, 11_000], [5_000, 6_500, 6_900, 4_400, 5_600]


def write_run(
    folder: Path,
    seed: int,
    steps: int | None,
    *,
    final: float = 480.0,
    trained: int = 20_000,
    stopped: Stopped = "total_steps",
    **settings: object,
) -> Path:
    run = RunFolder(folder / f"seed-{seed}")
    run.create()
    config = Config(**{"evaluation": {"threshold": 475.0}, "run": {"seed": seed}, **settings})
    run.config.write_text(config.to_toml())
    Summary(
        run_dir=str(run.root),
        env_id="CartPole-v1",
        seed=seed,
        env_steps=trained,
        wall_s=10.0,
        env_steps_per_s=1_000.0,
        evaluation=EvaluationOutcome(20, final, 1.0),
        env_steps_to_threshold=steps,
        learn_wall_s_to_threshold=1.0,
        policy_version=25,
        staleness_mean=1.5,
        samples_per_insert=2.0,
        stopped=stopped,
        total_wall_s=10.0,
    ).write(run.summary)
    records = [(1_000, 20.0), (steps or trained // 2, final - 10.0), (trained, final)]
    run.metrics.write_text(
        "".join(
            json.dumps({"kind": "evaluation", "env_steps": at, "return_mean": value}) + "\n" for at, value in records
        )
    )
    return run.root


def write_runs(folder: Path, steps: Sequence[int | None], **settings: object) -> Path:
    for seed, each in enumerate(steps):
        write_run(folder, seed, each, **settings)  # type: ignore[arg-type]
    return folder


@pytest.fixture
def sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    monkeypatch.chdir(tmp_path)
    return write_runs(tmp_path / "slow", SLOW), write_runs(tmp_path / "fast", FAST, ppo={"epochs": 7})


def outcomes_of(folder: Path) -> list[object]:
    return [read_outcome(folder / f"seed-{seed}") for seed in range(5)]


def test_a_verdict_is_that_of_paired_steps(sides: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    slow, fast = sides
    assert _run(["compare", str(slow), str(fast)]) == 0
    shown = capsys.readouterr().out
    ratio = math.exp(sum(math.log(b / a) for a, b in zip(SLOW, FAST, strict=True)) / 5)
    assert f"B is faster: steps to threshold ratio {ratio:.2f} [" in shown
    assert "ppo.epochs 4 -> 7" in shown or "ppo.epochs" in shown
    assert "a verdict has a probability of 5%; 5 pairs of runs." in shown
    table = json.loads(Path("compare/slow-fast/compare.json").read_text())
    assert table["verdict"] in shown
    assert [run["steps_to_threshold"] for run in table["runs"]["b"]] == FAST
    assert table["design"] == {
        "seeds": [0, 1, 2, 3, 4],
        "sequential": False,
        "runs": {
            label: [str(folder / f"seed-{seed}") for seed in range(5)]
            for label, folder in zip("ab", sides, strict=True)
        },
    }
    # The other way round.
    assert _run(["compare", str(fast), str(slow)]) == 0
    assert f"B is slower: steps to threshold ratio {1 / ratio:.2f} [" in capsys.readouterr().out


def test_without_a_threshold_the_verdict_is_about_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for seed, gain in enumerate([200.0, 190.0, 210.0]):
        own: dict[str, object] = {"evaluation": {"threshold": None}}
        write_run(tmp_path / "low", seed, None, final=-300.0, **own)  # type: ignore[arg-type]
        write_run(tmp_path / "high", seed, None, final=-300.0 + gain, ppo={"epochs": 7}, **own)  # type: ignore[arg-type]
    assert _run(["compare", "low", "high", "--seeds", "3"]) == 0
    assert "B is better: final return difference +200 [+175.2, +224.8]" in capsys.readouterr().out


def test_a_sequential_verdict_uses_the_pairs_up_to_the_look_that_decides(
    sides: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(["compare", *map(str, sides), "--sequential"]) == 0
    shown = capsys.readouterr().out
    assert "B is faster: steps to threshold ratio" in shown
    assert "5% over all 5 looks; 4 pairs of runs." in shown


def test_equal_outcomes_show_no_difference(sides: tuple[Path, Path], tmp_path: Path) -> None:
    same = write_runs(tmp_path / "same", SLOW, ppo={"epochs": 8})
    result = compare(outcomes_of(sides[0]), outcomes_of(same), threshold=True, most=None)  # type: ignore[arg-type]
    assert not result.decided
    assert result.verdict == (
        "no difference is shown: steps to threshold ratio 1.00, too few or equal values for an interval"
    )


def test_runs_that_missed_the_threshold_are_counted(tmp_path: Path) -> None:
    folder = write_runs(tmp_path / "some", [10_000, None, 10_000])
    found = means([outcome for seed in range(3) if (outcome := read_outcome(folder / f"seed-{seed}"))])
    assert (found.runs, found.reached) == (3, 2)
    assert found.steps_to_threshold.mean == pytest.approx((10_000 * 20_000 * 10_000) ** (1 / 3))


def test_a_run_that_can_be_resumed_has_no_outcome(tmp_path: Path) -> None:
    assert read_outcome(write_run(tmp_path, 0, None, stopped="interrupted")) is None
    assert read_outcome(tmp_path / "missing") is None


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({}, "same settings"),
        ({"environment.id": "Pendulum-v1"}, "different environments: environment.id is CartPole-v1 and Pendulum-v1"),
        ({"evaluation.episodes": "5"}, "evaluated differently"),
    ],
)
def test_settings_that_cannot_be_compared_are_refused(other: dict[str, str], reason: str) -> None:
    a = {"environment.id": "CartPole-v1", "evaluation.episodes": "20", "run.seed": "0", "ppo.epochs": "4"}
    with pytest.raises(ConfigurationError, match=reason):
        differences(a, {**a, "run.seed": "1", **other})


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert _run(["compare", *arguments]) == USAGE_ERROR
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_bad_input_is_one_line(sides: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow, fast = map(str, sides)
    (tmp_path / "other.toml").write_text('[environment]\nid = "Pendulum-v1"\n')
    assert "there is no file and no preset 'nothing'" in refusal(capsys, "nothing", "cartpole")
    assert "did you mean cartpole?" in refusal(capsys, "cartpol", "cartpole")
    assert "missing.toml" in refusal(capsys, "missing.toml", "cartpole")
    assert "A and B have the same settings" in refusal(capsys, "cartpole", "cartpole")
    assert "different environments" in refusal(capsys, "cartpole", "other.toml")
    assert "contains no runs" in refusal(capsys, str(tmp_path / "slow" / "seed-0" / "logs"), fast)
    assert "--seeds must be a number from 3" in refusal(capsys, slow, fast, "--seeds", "2")
    assert "5 common seeds, fewer than --seeds 6" in refusal(capsys, slow, fast, "--seeds", "6")
    assert "--name must be a name" in refusal(capsys, slow, fast, "--name", "../x")
    assert "--processes must be" in refusal(capsys, "cartpole", "cartpole_no_replay", "--processes", "0")
    write_run(sides[0], 5, None, stopped="interrupted")
    assert "has not ended" in refusal(capsys, slow, fast)


def test_a_folder_of_another_comparison_is_refused(
    sides: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    slow, fast = map(str, sides)
    assert _run(["compare", slow, fast, "--name", "mine"]) == 0
    assert _run(["compare", slow, fast, "--name", "mine"]) == 0
    capsys.readouterr()
    assert "has other runs" in refusal(capsys, slow, fast, "--name", "mine", "--seeds", "4")
    assert "has other runs" in refusal(capsys, fast, slow, "--name", "mine")
    Path("compare/foreign").mkdir()
    Path("compare/foreign/notes.txt").write_text("")
    assert "has other runs (no design)" in refusal(capsys, slow, fast, "--name", "foreign")


def test_runs_of_different_settings_in_one_folder_are_refused(
    sides: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(sides[0], 5, 9_000, ppo={"epochs": 9})
    assert "differ in ppo.epochs" in refusal(capsys, *map(str, sides))
