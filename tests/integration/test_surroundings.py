"""Runs whose surroundings lack something that is usual: a reader of their output, or a call of the system."""

import os
import subprocess
import sys
from pathlib import Path

from helpers.processes import PENSTOCK, run
from helpers.timing import PATIENCE_S
from penstock.run_folder import RunFolder

SMALL = (
    *("--env-id=CartPole-v1", "--preset=none", "--actors=1", "--total-steps=600", "--ppo.epochs=1"),
    *("--evaluation.episodes=2", "--evaluation.max-episode-steps=50", "--run-dir=run"),
)
LEAVING_NOTHING = """
import gc
import sys

import penstock

if __name__ == "__main__":
    left = []
    sys.unraisablehook = lambda unraisable: left.append(repr(unraisable.object))
    settings = {"evaluation": {"episodes": 2, "max_episode_steps": 50}, "run_dir": "run", "epochs": 1, "actors": 1}
    penstock.train("CartPole-v1", preset="none", total_steps=600, **settings)
    policy, env = penstock.load_policy("run"), penstock.make("run")
    policy.act(env.reset(seed=1)[0])
    env.close()
    assert penstock.load_metrics("run") is not None
    try:
        penstock.train("Nothing-v0")
    except penstock.ConfigurationError:
        pass
    gc.collect()
    sys.exit("left open: " + ", ".join(left) if left else 0)
"""
NO_PIDFD_OPEN = """
import os


def refused(*arguments):
    raise OSError(38, "Function not implemented")


os.pidfd_open = refused
"""


def test_a_run_continues_to_its_end_after_its_reader_has_left(tmp_path: Path) -> None:
    with subprocess.Popen(
        [PENSTOCK, "train", *SMALL], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as command:
        assert command.stdout is not None and command.stdout.readline()
        command.stdout.close()
        _, errors = command.communicate(timeout=PATIENCE_S)
    assert command.returncode == 0
    assert errors.decode() == "penstock: the reader of the output has left; the run continues, and Ctrl-C stops it\n"
    folder = RunFolder(tmp_path / "run")
    assert folder.summary.exists() and folder.learning_curve.exists() and not folder.services.exists()


def test_without_pidfd_open_services_are_commands_and_none_counts_as_dead(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_PIDFD_OPEN)
    ended = run("train", *SMALL, directory=tmp_path, environment={"PYTHONPATH": str(tmp_path)})
    assert ended.code == 0, ended.stderr
    assert ended.stdout.count("template is not usable: pidfd_open") == 1 and "restarting" not in ended.stdout


def test_a_program_that_trains_is_left_no_open_files(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(LEAVING_NOTHING)
    program = (sys.executable, "-W", "error::ResourceWarning", "program.py")
    ended = run(directory=tmp_path, program=program, environment={"PYTHONPATH": os.environ.get("PYTHONPATH", "")})
    assert ended.code == 0, ended.stderr
