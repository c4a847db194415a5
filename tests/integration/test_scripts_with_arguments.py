"""Files that read arguments of their own, as argparse, absl, hydra and tyro do, in every command that imports them."""

import sys
from pathlib import Path

import pytest

from penstock import load_metrics
from tests.support.services.processes import run

pytestmark = pytest.mark.nightly

ENVIRONMENT = """
import gymnasium
import numpy as np

assert sys.argv[0].endswith("script.py"), sys.argv

class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self):
        self.constructed = level()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        assert level() == self.constructed
        return np.zeros(2, np.float32), float(level()), self.steps == 10, False, {}


if __name__ == "__main__":
    import penstock

    settings = {"total_steps": 500, "actors": 1, "epochs": 1, "evaluation": {"episodes": 2}, "run_dir": "run"}
    penstock.train(Env, **settings)
"""
ABSL = """
import sys


class Flags:
    def __init__(self):
        self.values = None

    def __call__(self, arguments):
        self.values = {"level": "1"}
        for argument in arguments[1:]:
            name, _, value = argument.removeprefix("--").partition("=")
            if name not in self.values:
                sys.exit(f"FATAL Flags parsing error: Unknown command line flag {name!r}")
            self.values[name] = value


FLAGS = Flags()
FLAGS(sys.argv)


def level():
    return int(FLAGS.values["level"])
"""
HYDRA = """
import os
import sys
from pathlib import Path

VALUES = {"level": 1}
for override in sys.argv[1:]:
    name, value = override.split("=")
    assert name in VALUES, override
    VALUES[name] = int(value)
Path("outputs").mkdir(exist_ok=True)
os.chdir("outputs")


def level():
    return VALUES["level"]
"""
TYRO = """
import argparse
import dataclasses
import sys


@dataclasses.dataclass
class Arguments:
    level: int = 1


def cli(kind):
    parser = argparse.ArgumentParser()
    for field in dataclasses.fields(kind):
        parser.add_argument(f"--{field.name}", type=field.type, default=field.default)
    return kind(**vars(parser.parse_args()))


def level():
    return cli(Arguments).level


cli(Arguments)
"""
SCRIPTS = {"absl": (ABSL, "--level=3"), "hydra": (HYDRA, "level=3"), "tyro": (TYRO, "--level=3")}
ALONE = ("--env-id=script.py:Env", "--preset=none", "--actors=1", "--total-steps=500", "--evaluation.episodes=2")


@pytest.mark.parametrize(("reading", "given"), SCRIPTS.values(), ids=SCRIPTS)
def test_services_get_the_arguments_of_a_script_and_commands_the_file_alone(
    reading: str, given: str, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(reading + ENVIRONMENT)
    ended = run(str(script), given, directory=tmp_path, program=(sys.executable,))
    assert ended.code == 0, ended.stderr
    folder = tmp_path / ("outputs/run" if reading == HYDRA else "run")
    assert set(load_metrics(folder).evaluation["return_mean"]) == {30.0}
    ended = run("evaluate", str(folder), "--episodes=2", "--trust-code", directory=tmp_path)
    assert ended.code == 0 and "return 10.0 " in ended.stdout, ended.stderr
    ended = run("train", f"--resume={folder}", "--total-steps=1000", "--trust-code", directory=tmp_path)
    assert ended.code == 0, ended.stderr
    assert list(load_metrics(folder).evaluation["return_mean"])[-1] == 10.0


def test_commands_that_name_the_file_give_it_no_options_of_theirs(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(ABSL + ENVIRONMENT)
    ended = run("train", *ALONE, "--ppo.epochs=1", "--run-dir=run", directory=tmp_path)
    assert ended.code == 0, ended.stderr
    assert set(load_metrics(tmp_path / "run").evaluation["return_mean"]) == {10.0}
    named = run("evaluate", "run", "--env-id=script.py:Env", "--episodes=2", directory=tmp_path)
    assert named.code == 0 and "return 10.0 " in named.stdout, named.stderr
    checked = run("doctor", *ALONE, directory=tmp_path)
    assert "script:Env was created, reset and stepped" in " ".join(checked.stdout.split()), checked.stdout
