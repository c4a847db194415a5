"""An evaluator survives the effects of its environments on its process, and reports their exceptions to the learner."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.types.evaluation import EvaluationResult, EvaluationTask
from tests.support.environments.tiny import spec_of
from tests.support.machine.timing import start_patience_s
from tests.support.services.processes import WITH_HELPERS
from tests.support.services.servers import LiveRun, Loopback
from tests.support.tiers import gate_of
from tests.support.training.policies import fresh_weights


@pytest.fixture
def server(loopback: Loopback, tmp_path: Path) -> LiveRun:
    return loopback.run(tmp_path / "roster.json")


@contextlib.contextmanager
def evaluator(server: LiveRun, env_id: str, kwargs: str = "{}") -> Iterator["subprocess.Popen[str]"]:
    command = [
        sys.executable,
        "-m",
        "penstock",
        "evaluator",
        f"--env-id={env_id}",
        "--env-import=tests.support.environments.failing",
    ]
    command += [f"--environment.kwargs={kwargs}", "--evaluation.episodes=2"]
    command += [f"--evaluation.learner-address={server.address}", "--evaluation.metrics-port=0"]
    # So that the first reset is that of the evaluation, and not a search for masks.
    command += ["--evaluation.listen=127.0.0.1:0", "--environment.action-masks=false"]
    variables = {**os.environ, **WITH_HELPERS}
    with subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def evaluated(server: LiveRun, number: int, episodes: int = 2) -> EvaluationResult:
    # The spaces of all environments in that module; creating some of them would change this process.
    weights = fresh_weights(spec_of("tests.support.environments.failing:Failing-v0"))
    server.servicer.ask(EvaluationTask(number, weights, episodes, deterministic=True, seed=1))
    result = server.servicer.result(start_patience_s())
    assert result is not None and result.id == number, result
    return result


def test_an_evaluator_ends_on_a_signal_that_its_environments_ignore(server: LiveRun) -> None:
    with evaluator(server, "Rude-v0") as process:
        assert evaluated(server, 1).failure == ""
        assert Path(f"/proc/{process.pid}/cwd").readlink() == Path.cwd()
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=start_patience_s())
    assert process.returncode == 143, log
    assert "Traceback" not in log
    assert "closing an environment failed" in log


@pytest.mark.parametrize(
    ("kind", "failure"),
    gate_of(
        1,
        [
            ("raises", "RuntimeError: simulator lost and not found"),
            ("exits", "SystemExit: no display"),
            ("interrupts", "KeyboardInterrupt"),
            ("reset raises", "RuntimeError: simulator lost at reset"),
        ],
    ),
)
def test_an_environments_exception_fails_its_evaluation_and_not_the_next_one(
    kind: str, failure: str, server: LiveRun, tmp_path: Path
) -> None:
    at, once = (0 if kind.startswith("reset") else 3), tmp_path / "failed"
    with evaluator(server, "Failing-v0", f'{{"kind": "{kind}", "at": {at}, "once": "{once}"}}') as process:
        reported = evaluated(server, 1).failure
        assert reported.startswith(f"environment 0: {failure} "), reported
        assert "(Failing-v0)" in reported
        assert evaluated(server, 2).failure == ""
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=start_patience_s())
    assert process.returncode == 143, log
    assert "Traceback" not in log


def test_an_evaluation_fails_if_its_environments_can_not_be_created_again(server: LiveRun, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    with evaluator(server, "Fragile-v0", f'{{"gone": "{gone}"}}') as process:
        assert evaluated(server, 1).failure == ""
        gone.touch()
        reported = evaluated(server, 2, episodes=3).failure
        assert reported.startswith("can't make the environment 'Fragile-v0': SystemExit: simulator gone (")
        _, log = process.communicate(timeout=start_patience_s())
    assert process.returncode == 1, log
    assert "Traceback" not in log
    assert log.rstrip().endswith(f"penstock: {reported}")
