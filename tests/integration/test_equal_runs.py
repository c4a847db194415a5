"""With degree 0 and one actor, a run writes the same best checkpoint, however its services are started."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.services.ports import free_ports
from tests.support.services.processes import Command, end_of, run
from tests.support.training import equal_run

pytestmark = pytest.mark.nightly


def test_penstock_train_and_services_started_one_by_one_write_the_same_best_checkpoint(tmp_path: Path) -> None:
    together, apart = tmp_path / "together", tmp_path / "apart"
    ended = run("train", *equal_run.options(), f"--run-dir={together}", directory=tmp_path)
    assert ended.code == 0, ended.stdout + ended.stderr
    _run_services(apart, tmp_path)
    assert equal_run.digest(apart) == equal_run.digest(together)


def _run_services(folder: Path, directory: Path) -> None:
    """Runs each service by its own command, to the end. Without the store's folder, all data travels in messages."""
    replay, learner, actor, evaluator = (f"127.0.0.1:{port}" for port in free_ports(4))
    common = [
        *equal_run.options(),
        f"--learner.replay-addresses={replay}",
        f"--actor.learner-address={learner}",
        f"--evaluation.learner-address={learner}",
    ]
    own = {
        "replay": [f"--replay.listen={replay}", "--replay.metrics-port=0", "--replay.stop-with-run=true"],
        "learner": [f"--learner.listen={learner}", "--learner.metrics-port=0", f"--run-dir={folder}"],
        "actor": [f"--actor.listen={actor}", "--actor.metrics-port=0"],
        "evaluator": [f"--evaluation.listen={evaluator}", "--evaluation.metrics-port=0"],
    }
    with ExitStack() as stack:
        started = [
            stack.enter_context(Command(name, *common, *options, directory=directory)) for name, options in own.items()
        ]
        for command in started:
            ended = end_of(command)
            assert ended.code == 0, ended.stderr
