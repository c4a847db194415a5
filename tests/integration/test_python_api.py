"""Runs that the Python API trains: a stream that is left early, and a run that starts from the policy in hand."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import penstock
from penstock.runs.folder import RunFolder
from tests.support.docstrings import examples, trains
from tests.support.services.processes import run

SMALL: dict[str, Any] = {
    "preset": "none",
    "policy": {"hidden_sizes": (4,)},
    "train": {"actors": 1},
    "evaluation": {"episodes": 2, "interval_steps": 300},
    "progress": False,
}


@dataclass(frozen=True, slots=True)
class Streamed:
    """A stream that was left once it had a record of training and one of an evaluation, in either order.

    Attributes:
        records: Records until then.
        run: The run.
    """

    records: list[dict[str, Any]]
    run: penstock.TrainedRun


@pytest.fixture(scope="module")
def streamed(tmp_path_factory: pytest.TempPathFactory) -> Streamed:
    folder, records = tmp_path_factory.mktemp("streamed"), []
    stream = penstock.stream("CartPole-v1", total_steps=10**9, run_dir=str(folder / "run"), **SMALL)
    for record in stream:
        records.append(record)
        if {each["kind"] for each in records} == {"training", "evaluation"}:
            break
    return Streamed(records, stream.run)


def test_a_stream_that_is_left_early_ends_the_run_with_its_summary(streamed: Streamed) -> None:
    assert {record["kind"] for record in streamed.records} == {"training", "evaluation"}
    trained = streamed.run
    assert trained.stopped == "callback" and trained.env_steps >= streamed.records[-1]["env_steps"]
    assert penstock.TrainedRun.of(trained.summary) == trained and not RunFolder(Path(trained)).services.exists()
    written = trained.metrics().training["env_steps"].tolist()
    seen = [float(record["env_steps"]) for record in streamed.records if record["kind"] == "training"]
    assert written[: len(seen)] == seen


@pytest.mark.nightly
def test_a_run_starts_from_the_policy_in_hand(streamed: Streamed, tmp_path: Path) -> None:
    policy = streamed.run.policy
    with torch.no_grad():
        next(policy.policy.parameters()).add_(3.0)
    # With such a rate, the parameters stay as they were.
    again = penstock.train(
        "CartPole-v1", total_steps=600, run_dir=str(tmp_path / "run"), start_from=policy, lr=1e-12, **SMALL
    )
    assert again.config.run.start_from == str(RunFolder(Path(again)).start)
    begun, ended = policy.policy.parameters(), again.policy.policy.parameters()
    for before, after in zip(begun, ended, strict=True):
        np.testing.assert_allclose(after.detach().numpy(), before.detach().numpy(), atol=1e-5)
    assert again.policy.version > 0


@pytest.mark.nightly
def test_a_policy_of_other_spaces_is_refused_and_leaves_no_folder(streamed: Streamed, tmp_path: Path) -> None:
    with pytest.raises(penstock.PenstockError, match=r"^[^\n]*saved for CartPole-v1[^\n]*; give this run[^\n]*$"):
        penstock.train(
            "Acrobot-v1", total_steps=600, run_dir=str(tmp_path / "run"), start_from=streamed.run.policy, **SMALL
        )
    assert not (tmp_path / "run").exists()


HELD = """
import penstock
if __name__ == "__main__":
    records = iter(penstock.stream("CartPole-v1", total_steps=10**9, run_dir="run", progress=False))
    next(records)
    print("begun")
"""


@pytest.mark.nightly
def test_a_program_that_keeps_an_unfinished_stream_ends_its_run(tmp_path: Path) -> None:
    (tmp_path / "held.py").write_text(HELD)
    ended = run("held.py", directory=tmp_path, program=(sys.executable,))
    assert (ended.code, ended.stdout, ended.left_behind) == (0, "begun\n", []), ended.stderr
    assert penstock.Run(tmp_path / "run").summary.stopped == "callback"


@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name, code in examples().items() if trains(code)])
def test_an_example_that_trains_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("moviepy")
    monkeypatch.chdir(tmp_path)
    code = examples()[name].replace("50_000", "600")
    exec(compile(code, name, "exec"), {"penstock": penstock, "observation": np.zeros(4, np.float32)})
