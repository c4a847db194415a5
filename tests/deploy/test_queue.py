"""examples/queue: scripts for several runs on one host, with programs that stand for the queue and for Docker."""

import os
import shutil
import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests.deploy.engines import ROOT
from tests.support.machine.timing import PATIENCE_S, wait_for

QUEUE = ROOT / "examples" / "queue"


def program(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def variables(folder: Path, **others: str) -> dict[str, str]:
    return {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", **others}


@pytest.mark.skipif(shutil.which("flock") is None, reason="flock of util-linux is not installed")
def test_commands_at_the_same_time_have_a_gpu_each_and_a_third_waits_for_one(tmp_path: Path) -> None:
    # Each command waits for the end of its input.
    held = 'echo "$CUDA_VISIBLE_DEVICES" > "$0"; cat'
    environment = variables(tmp_path, GPUS="0 1", LOCKS=str(tmp_path))

    def start(name: str) -> subprocess.Popen[bytes]:
        command = ["sh", str(QUEUE / "on_a_free_gpu.sh"), "sh", "-c", held, str(tmp_path / name)]
        return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE)

    def gpu(name: str) -> str:
        file = tmp_path / name
        return file.read_text().strip() if file.exists() else ""

    started = []
    try:
        for name, expected in (("first", "0"), ("second", "1")):
            started.append(start(name))
            wait_for(partial(gpu, name), f"the {name} command")
            assert gpu(name) == expected
        started.append(start("third"))
        assert not gpu("third")
        started[1].communicate(timeout=PATIENCE_S)
        assert started[1].returncode == 0
        wait_for(partial(gpu, "third"), "the third command")
        assert (gpu("third"), started[0].poll()) == ("1", None)
    finally:
        for process in started:
            if process.returncode is None:
                process.communicate(timeout=PATIENCE_S)


@pytest.mark.parametrize(("restarts", "states"), [(0, ["running", "running", "exited"]), (21, ["restarting"])])
def test_a_stack_ends_with_its_learner_or_when_that_fails_again_and_again(
    restarts: int, states: list[str], tmp_path: Path
) -> None:
    for number, state in enumerate(states):
        (tmp_path / f"state-{number}").write_text(state)
    (tmp_path / "look").write_text("0")
    docker = f"""echo "$*" >> said
case "$*" in
  *" ps --all --quiet learner") echo abc ;;
  *State.Status*abc) cat "state-$(cat look)" ;;
  *RestartCount*abc) echo {restarts} ;;
  *ExitCode*abc) echo 3 ;;
esac"""
    program(tmp_path / "bin", "docker", docker)
    program(tmp_path / "bin", "sleep", "echo $(($(cat look) + 1)) > look")
    command = ["sh", str(QUEUE / "compose_run.sh"), "first"]
    ended = subprocess.run(command, cwd=tmp_path, env=variables(tmp_path), timeout=PATIENCE_S, check=False)
    said = (tmp_path / "said").read_text().splitlines()
    assert ended.returncode == 3
    assert said[0] == "compose --project-name first up --detach"
    assert said[-1] == "compose --project-name first down"
    assert sum("State.Status" in line for line in said) == len(states)


def test_a_stack_that_does_not_start_is_no_run_that_ended(tmp_path: Path) -> None:
    program(tmp_path / "bin", "docker", "exit 17")
    command = ["sh", str(QUEUE / "compose_run.sh"), "first"]
    assert subprocess.run(command, env=variables(tmp_path), timeout=PATIENCE_S, check=False).returncode == 17


def test_runs_are_queued_in_order_and_those_that_began_are_resumed(tmp_path: Path) -> None:
    program(tmp_path / "bin", "tsp", 'echo "$*" >> said')
    (tmp_path / "runs" / "lander-1").mkdir(parents=True)
    (tmp_path / "runs" / "lander-1" / "config.toml").touch()
    subprocess.run(
        ["sh", str(QUEUE / "runs.sh")], cwd=tmp_path, env=variables(tmp_path), timeout=PATIENCE_S, check=True
    )
    assert (tmp_path / "said").read_text().splitlines() == [
        "-L lander-1 penstock train --resume runs/lander-1",
        "-L lander-2 penstock train --run-dir runs/lander-2 --preset lunar_lander --run.seed 2",
    ]


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_finds_nothing() -> None:
    scripts = [str(path) for path in sorted(QUEUE.glob("*.sh"))]
    assert subprocess.run(["shellcheck", *scripts], capture_output=True, text=True, timeout=PATIENCE_S).stdout == ""
