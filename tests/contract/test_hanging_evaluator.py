"""An evaluator whose environment hangs in a step reports it and exits, so that its supervisor can restart it."""

import os
import subprocess
import sys
from pathlib import Path

from penstock.types.evaluation import EvaluationTask
from tests.support.environments.tiny import spec_of
from tests.support.machine.timing import start_patience_s
from tests.support.services.processes import WITH_HELPERS
from tests.support.services.servers import Loopback
from tests.support.training.policies import fresh_weights

HOUR_S = 3600.0


def test_an_evaluator_that_hangs_reports_it_and_exits_with_1(loopback: Loopback, tmp_path: Path) -> None:
    server = loopback.run(tmp_path / "roster.json")
    command = [
        sys.executable,
        "-m",
        "penstock",
        "evaluator",
        "--env-id=Paced-v0",
        "--env-import=tests.support.environments.paced",
    ]
    command += [f'--environment.kwargs={{"pause_s": {HOUR_S}}}', "--evaluation.episodes=2"]
    command += [f"--evaluation.learner-address={server.address}", "--evaluation.metrics-port=0"]
    command += ["--evaluation.listen=127.0.0.1:0"]
    weights = fresh_weights(spec_of("tests.support.environments.paced:Paced-v0"))
    server.servicer.ask(EvaluationTask(5, weights, 2, deterministic=True, seed=1, max_seconds=2.0))
    with subprocess.Popen(command, env={**os.environ, **WITH_HELPERS}, stderr=subprocess.PIPE, text=True) as evaluator:
        try:
            result = server.servicer.result(start_patience_s())
            assert result is not None, "no result"
            assert (result.id, result.returns) == (5, ())
            assert result.failure == "the environment did not return from a step within 2 s"
            assert evaluator.wait(start_patience_s()) == 1
        finally:
            evaluator.kill()
