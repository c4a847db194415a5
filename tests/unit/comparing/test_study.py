"""Studies: which trials there are after kills, what they report, when they are pruned, and what is refused.

A process that is killed is one whose `Study` is left without a further call. `Killed` is raised where a kill matters.
"""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import optuna
import pytest

from penstock.cli.main import _run
from penstock.cli.report.study_page import study_page
from penstock.comparing.claims import Claims
from penstock.comparing.search_space import read_space
from penstock.comparing.study import Study, Trial
from penstock.config import Config, load_toml
from penstock.errors import USAGE_ERROR, ConfigurationError
from penstock.runs.folder import RunFolder
from tests.unit.comparing.test_comparison import write_run

SPACE = {"ppo": {"learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}, "epochs": [1, 2, 4]}}
STEPS, INTERVAL = 1_000, 100

Open = Callable[..., Study]


class Killed(BaseException):
    pass


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Opens the study of a name, as a new process does after the former one was killed."""
    monkeypatch.setattr("penstock.comparing.claims._has_died", lambda claim: True)

    def make(name: str = "one", *, seeds: Sequence[int] = (0,), **changes: object) -> Study:
        base = Config(run={"total_steps": STEPS}, evaluation={"interval_steps": INTERVAL}, ppo={"epochs": 8})
        space = read_space({**SPACE, **changes}, base, "space")
        return Study(tmp_path / name, base, space, seeds=seeds, seed=0, prunes=True)

    return make


def evaluated(study: Study, trial: Trial, returns: Sequence[float], seed: int = 0, first: int = 1) -> None:
    """Writes evaluations of a run, slightly after the steps at which they were due."""
    run = RunFolder(trial.folder / f"seed-{seed}")
    run.create()
    lines = [
        json.dumps({"kind": "evaluation", "env_steps": (first + index) * INTERVAL + 7, "return_mean": value})
        for index, value in enumerate(returns)
    ]
    run.metrics.write_text("".join(f"{line}\n" for line in lines))


def reported(study: Study, trial: Trial, seed: int = 0) -> bool:
    run = next(each for each in study.runs_of(trial) if each.seed == seed)
    return study.report(trial, run)


def completed(study: Study, final: float, returns: Sequence[float] = ()) -> Trial:
    trial = study.next_trial(100)
    assert trial is not None
    for seed in study.seeds:
        write_run(trial.folder, seed, None, final=final + seed, trained=STEPS)
        evaluated(study, trial, returns or [final] * 10, seed)
        assert not reported(study, trial, seed)
    study.complete(trial)
    return study.trials()[trial.number]


def test_the_first_trial_has_the_settings_to_start_from(opened: Open) -> None:
    study = opened()
    first, second = study.next_trial(3), study.next_trial(3)
    assert first is not None and second is not None
    assert study.settings_of(first) == study.base
    assert study.settings_of(second).ppo.epochs in (1, 2, 4)
    assert second.cell.keys() == {"ppo.learning_rate", "ppo.epochs"}


def test_the_trials_of_a_killed_process_are_continued_and_none_is_counted_twice(opened: Open) -> None:
    study = opened()
    completed(study, 10.0)
    left = [study.next_trial(3), study.next_trial(3)]
    assert study.next_trial(3) is None
    again = opened()
    assert [again.next_trial(3), again.next_trial(3), again.next_trial(3)] == [*left, None]
    assert [each.state for each in again.trials()] == ["complete", "active", "active"]


def test_two_processes_train_different_trials(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.comparing.claims._has_died", lambda claim: False)
    one, other = opened(), opened()
    trials = [one.next_trial(3), other.next_trial(3), one.next_trial(3)]
    assert [each and each.number for each in trials] == [0, 1, 2]
    assert other.next_trial(3) is None
    assert trials[2] is not None
    one.leave(trials[2])
    assert other.next_trial(3) == trials[2]


@pytest.mark.nightly
def test_many_processes_at_once_make_no_trial_too_many(opened: Open, tmp_path: Path) -> None:
    study = opened()
    program = (
        "import sys; from pathlib import Path; from penstock.comparing.study import Study;"
        "from penstock.comparing.search_space import read_space; from penstock.config import Config, load_toml;"
        f"base = Config(**load_toml(Path({str(study.folder / 'base.toml')!r})));"
        f"study = Study(Path({str(study.folder)!r}), base, read_space({SPACE!r}, base, ''), seeds=(0,), seed=0,"
        "prunes=True); print([trial.number for _ in range(4) if (trial := study.next_trial(6))])"
    )
    running = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    numbers = [number for each in running for number in json.loads(each.communicate()[0])]
    assert {each.number for each in study.trials()} == set(range(6))
    # One may have taken a trial of another that had ended.
    assert set(numbers) == set(range(6))


def test_a_study_that_is_killed_after_each_draw_draws_the_same(opened: Open) -> None:
    one, cells = opened("one"), []
    for number in range(11):
        cells.append(completed(one, float(number)).cell)
        assert completed(opened("other"), float(number)).cell == cells[-1]
    assert len({json.dumps(each) for each in cells}) == 11


def test_a_draw_that_was_cut_short_is_completed(opened: Open) -> None:
    study = opened()
    completed(study, 1.0)
    study._study.ask()
    drawn = study.next_trial(2)
    assert drawn is not None and drawn.cell.keys() == {"ppo.learning_rate", "ppo.epochs"}


GOOD, BAD = [10.0 * index for index in range(1, 11)], [9.0, 19.0, 5.0, 6.0, 7.0]


def test_a_trial_below_the_median_is_pruned_at_its_step_after_a_warm_up(opened: Open) -> None:
    study = opened()
    for _ in range(5):
        completed(study, 1.0, GOOD)
    bad = study.next_trial(10)
    assert bad is not None
    # The second evaluation is within the warm-up of a fifth.
    evaluated(study, bad, BAD[:1])
    assert not reported(study, bad)
    evaluated(study, bad, BAD)
    assert reported(study, bad)
    found = study.trials()[bad.number]
    assert (found.state, found.value) == ("pruned", None)
    assert found.reports == {100: 9.0, 200: 19.0}
    assert found.reason == "best return 19.0 by 200 steps, below the median 20.0"


@pytest.mark.parametrize("kill_at", ["before the report", "after the report", "after each evaluation"])
def test_a_killed_trial_is_pruned_at_the_same_evaluation(
    opened: Open, monkeypatch: pytest.MonkeyPatch, kill_at: str
) -> None:
    study = opened()
    for _ in range(5):
        completed(study, 1.0, GOOD)
    bad = study.next_trial(10)
    assert bad is not None
    if kill_at == "after each evaluation":
        evaluated(study, bad, BAD[:1])
        assert not reported(opened(), bad)
    else:
        with monkeypatch.context() as patched:

            def kill(*arguments: object, **more: object) -> None:
                raise Killed

            if kill_at == "after the report":
                patched.setattr(Study, "_ended", kill)
            else:
                original = study._study._storage.set_trial_intermediate_value

                def kill_at_second(trial: int, step: int, value: float) -> None:
                    if step == 200:
                        raise Killed
                    original(trial, step, value)

                patched.setattr(study._study._storage, "set_trial_intermediate_value", kill_at_second)
            evaluated(study, bad, BAD)
            with pytest.raises(Killed):
                reported(study, bad)
        # Meanwhile trials of other processes end, with which it would not be pruned.
        for _ in range(8):
            study._study.add_trial(optuna.trial.create_trial(value=1.0, intermediate_values={100: 1.0, 200: 1.0}))
    # The resumed run evaluates its policies again, with other returns.
    again = opened()
    assert again.next_trial(10) == again.trials()[bad.number]
    evaluated(again, bad, [each + (0.5 if kill_at == "after each evaluation" else 100.0) for each in BAD])
    pruned = reported(again, bad)
    found = again.trials()[bad.number]
    assert pruned and found.state == "pruned"
    assert list(found.reports) == [100, 200]
    assert found.reports[100] == 9.0
    assert found.reason.startswith(f"best return {found.reports[200]:.1f} by 200 steps")


def test_an_evaluation_is_reported_once_at_the_step_at_which_it_was_due(opened: Open) -> None:
    study = opened()
    trial = study.next_trial(5)
    assert trial is not None
    evaluated(study, trial, [1.0, 2.0])
    reported(study, trial)
    # A resumed run has begun again before its last evaluation.
    evaluated(study, trial, [1.5, 2.5, 3.5])
    reported(opened(), trial)
    assert study.trials()[0].reports == {100: 1.0, 200: 2.0, 300: 3.5}


def test_seeds_follow_one_another_and_their_median_counts(opened: Open) -> None:
    study = opened(seeds=(3, 4, 9))
    done = completed(study, 10.0)
    assert done.value == 14.0
    assert list(done.reports) == [index * INTERVAL for index in range(1, 31)]


def test_the_best_settings_are_those_of_the_best_trial(opened: Open) -> None:
    study = opened()
    trials = [completed(study, final) for final in (10.0, 30.0, 20.0)]
    # Equal in the end, and better before.
    trials.append(completed(study, 30.0, [200.0] * 10))
    best = study.best()
    assert best is not None and best.number == 3
    own = Config(**load_toml(study.best_settings))
    assert own == study.settings_of(trials[3])
    study.best_settings.unlink()
    assert opened().keep_best() == best
    assert Config(**load_toml(study.best_settings)) == own


def test_draws_that_the_settings_refuse_are_not_counted(tmp_path: Path) -> None:
    base = Config(run={"total_steps": STEPS}, policy={"memory": "gru"})
    # Each choice fits the base, and a burn-in without memory is refused.
    space = read_space({"ppo": {"burn_in_steps": [0, 4]}, "policy": {"memory": ["gru", "none"]}}, base, "space")
    study = Study(tmp_path / "some", base, space, seeds=(0,), seed=0, prunes=True)
    assert all(study.next_trial(9) is not None for _ in range(9))
    assert study.next_trial(9) is None
    refused = [each for each in study.trials() if each.state == "refused"]
    assert refused and all("needs policy.memory" in each.reason for each in refused)
    assert len(study.trials()) == 9 + len(refused)


def test_a_space_that_the_settings_refuse_in_every_draw_is_an_error(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.comparing.study._DRAWS", 5)
    base = Config(run={"total_steps": STEPS}, policy={"memory": "gru"}, ppo={"burn_in_steps": 4})
    space = read_space({"ppo": {"burn_in_steps": [1, 2]}, "policy": {"memory": ["gru", "lstm"]}}, base, "space")
    study = Study(tmp_path / "none", base, space, seeds=(0,), seed=0, prunes=True)
    study.next_trial(5)
    study.base = base.changed({"policy": {"memory": None}, "ppo": {"burn_in_steps": 0}})
    study.space = {"ppo.burn_in_steps": space["ppo.burn_in_steps"]}
    with pytest.raises(ConfigurationError, match=r"refused 5 draws in a row, the last one because .*; narrow"):
        study.next_trial(5)
    assert {each.state for each in study.trials()[1:]} == {"refused"}


def test_an_incomplete_last_line_of_the_journal_is_removed(opened: Open) -> None:
    study = opened()
    completed(study, 1.0)
    journal = study.folder / "study.journal"
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"op_code": 5, "trial')
    again = opened()
    found = journal.read_bytes()
    assert found.startswith(whole) and b'"trial{' not in found and b'"trial\n' not in found
    assert completed(again, 2.0).number == 1


def test_a_damaged_journal_is_an_error_with_a_remedy(opened: Open) -> None:
    study = opened()
    completed(study, 1.0)
    journal = study.folder / "study.journal"
    lines = journal.read_text().splitlines()
    journal.write_text("\n".join([lines[0], lines[1][:10], *lines[2:], ""]))
    with pytest.raises(ConfigurationError, match=r"is damaged .*restore a copy, or choose another --name"):
        opened()


def test_the_page_shows_every_trial_and_escapes_its_texts(opened: Open) -> None:
    study = opened()
    completed(study, 10.0)
    failed = study.next_trial(5)
    assert failed is not None
    study.fail(failed, "<b>broken</b>")
    text = study_page(study)
    assert "best: trial 0, the settings to start from with a return of 10.0" in text
    assert "failed: &lt;b&gt;broken&lt;/b&gt;" in text
    assert "<script" not in text and "ppo.learning_rate" in text


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert _run(["tune", *arguments]) == USAGE_ERROR
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_bad_input_is_one_line_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    base = Config(run={"total_steps": STEPS})
    (tmp_path / "base.toml").write_text(base.to_toml())
    (tmp_path / "space.toml").write_text("[ppo]\nepochs = [1, 2]\n")
    (tmp_path / "none.toml").write_text("[run]\ntotal_minutes = 1.0\n")
    (tmp_path / "wrong.toml").write_text("[ppo]\nepoch = [1, 2]\n")
    monkeypatch.setattr("penstock.cli.commands.tune.Tuning.train", lambda self, look: pytest.fail("a trial began"))
    assert "BASE is missing" in refusal(capsys)
    assert "--trials must be" in refusal(capsys, "base.toml", "--trials", "0")
    assert "--seed must be" in refusal(capsys, "base.toml", "--seed", "-1")
    assert "--parallel must be" in refusal(capsys, "base.toml", "--parallel", "0")
    assert "give --steps" in refusal(capsys, "none.toml")
    assert "missing.toml" in refusal(capsys, "base.toml", "--space", "missing.toml")
    assert "did you mean ppo.epochs?" in refusal(capsys, "base.toml", "--space", "wrong.toml")
    assert not Path("tune").exists()
    read = read_space(load_toml(Path("space.toml")), base, "")
    Study(Path("tune/base"), base, read, seeds=(0,), seed=0, prunes=True)
    other = refusal(capsys, "base.toml")
    assert "tune.json has space ppo.epochs 1, 2, not 2 to 10" in other and "choose another --name" in other
    assert "has seeds [0], not [0, 1]" in refusal(capsys, "base.toml", "--space", "space.toml", "--seeds", "2")
    Path("tune/file").write_text("")
    assert "choose another --name" in refusal(capsys, "base.toml", "--space", "space.toml", "--name", "file")
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "optuna" else find(name))
    assert "penstock tune needs optuna; install it with" in refusal(capsys, "base.toml")


def test_a_folder_that_can_no_longer_be_written_is_an_error(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    study = opened()

    def full(self: Claims, folder: Path) -> bool:
        raise OSError(28, "No space left on device", str(folder))

    monkeypatch.setattr(Claims, "take", full)
    with pytest.raises(ConfigurationError, match=r"can't keep the study in .*one: No space left"):
        study.next_trial(5)
