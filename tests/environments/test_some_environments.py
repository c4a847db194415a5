"""Some of the environments of `make all-environments`, with the packages that Penstock's own environment has."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.runs.folder import RunFolder
from penstock.runs.summary import Summary
from tests.environments.all_environments import in_turn
from tests.environments.results import described, read, record_of, write
from tests.environments.runs import Outcome, Result, steps_of, train_two_windows
from tests.environments.suites import SUITES, Listed
from tests.support.machine.timing import start_patience_s


def listed(env_id: str, suite: str = "gymnasium", kind: str = "toy text", error: str = "") -> Listed:
    return Listed(env_id, suite, kind, "" if error else "Discrete(48)", "" if error else "Discrete(4)", error)


# Without a preset, with an integer observation; with a Tuple; with a preset whose windows are larger.
@pytest.mark.nightly
@pytest.mark.parametrize(("env_id", "steps"), [("CliffWalking-v1", 512), ("Blackjack-v1", 512), ("Pendulum-v1", 4096)])
def test_an_environment_trains_for_two_windows_by_its_id_alone(env_id: str, steps: int, tmp_path: Path) -> None:
    assert steps_of(env_id) == steps
    result = train_two_windows(env_id, tmp_path, start_patience_s())
    assert result.outcome is Outcome.TRAINED, result.output
    assert result.steps >= steps and result.batches >= 1 and not result.message
    assert Summary.read(RunFolder(tmp_path / "run").summary).env_id == env_id


def test_an_id_that_does_not_exist_is_refused_with_its_message(tmp_path: Path) -> None:
    result = train_two_windows("CartPole-v7", tmp_path, start_patience_s())
    assert result.outcome is Outcome.REFUSED and "CartPole-v7" in result.message
    assert not result.steps and not result.batches


def test_a_run_is_ended_at_its_deadline(tmp_path: Path) -> None:
    result = train_two_windows("CliffWalking-v1", tmp_path, 0.0)
    assert result.outcome is Outcome.TIMED_OUT


def test_records_are_read_as_they_were_written_in_the_order_of_suites(tmp_path: Path) -> None:
    trained = Result(Outcome.TRAINED, 512, 1, 7.25, "", ("Taxi-v4: masks",), "")
    refused = Result(Outcome.REFUSED, 0, 0, 2.0, f"no file {tmp_path}/x", (), "")
    game = record_of(listed("ALE/Pong-v5", "ale", "`ALE/`"), trained, tmp_path)
    moved = record_of(listed("Ant-v2", kind="MuJoCo v4, v5", error="ImportError: moved"), refused, tmp_path)
    output = tmp_path / "environments.json"
    write(output, [game, moved], {"gymnasium": {"MuJoCo v4, v5": 9}})
    assert list(read(output).values()) == [moved, game] and moved.message == "no file RUNS/x"
    # Another program that runs one suite keeps what is known of the others.
    write(output, [game, moved], {"ale": {"`ALE/`": 104}})
    suites = json.loads(output.read_text())["suites"]
    assert suites["gymnasium"]["registered"] == {"MuJoCo v4, v5": 9}
    assert suites["ale"]["registered"] == {"`ALE/`": 104}


def test_a_new_description_keeps_the_result_of_the_run(tmp_path: Path) -> None:
    before = record_of(listed("Ant-v2"), Result(Outcome.FAILED, 0, 0, 2.0, "gone", (), ""), tmp_path)
    after = described(before, listed("Ant-v2", error="ImportError: moved"))
    assert after.creation_error == "ImportError: moved" and after.message == "gone"
    assert replace(after, creation_error="", observation="Discrete(48)", action="Discrete(4)") == before


def test_the_first_environment_of_each_kind_is_trained_first_and_old_forms_last() -> None:
    ids = [("a", "toy text"), ("b", "toy text"), ("c", "Box2D"), ("d", "older forms of the same games")]
    ids += [("e", "older forms of the same games"), ("f", "Box2D"), ("g", "Box2D")]
    turns = in_turn([listed(env_id, kind=kind) for env_id, kind in ids])
    assert "".join(each.id for each in turns) == "acdbfge"


def test_every_kind_of_a_suite_has_a_pattern_that_finds_its_ids() -> None:
    gymnasium, *_, ale = SUITES
    assert gymnasium.kind_of("Taxi-v4", "gymnasium.envs.toy_text.taxi:TaxiEnv") == "toy text"
    assert gymnasium.kind_of("Ant-v2", "gymnasium.envs:_raise_mujoco_py_error").startswith("placeholders")
    assert ale.kind_of("ALE/Pong-v5", "ale_py.env:AtariEnv") == "`ALE/`"
    assert ale.kind_of("Pong-v4", "ale_py.env:AtariEnv").startswith("older")
